/* What depends on the compiler, the processor and the system. */

#define INLINE inline __attribute__((always_inline, unused))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Whether the rest of a row is read and written by the masks of AVX-512, which sanitizers of gcc do not
 * look at. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MASKED 0
#else
#define MASKED (VECTOR_BYTES == 64)
#endif

static void *allocate(size_t bytes) {
    void *p = NULL;
    return posix_memalign(&p, 64, bytes ? bytes : 64) ? NULL : p;
}

/* Memory in parts: a first round counts them, a second gives them out. All are 0 at first. */
typedef struct {
    char *memory;
    size_t used;
} Arena;

static void *room(Arena *arena, size_t bytes) {
    void *part = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (bytes + 63) & ~(size_t)63;
    return part;
}

static int open_arena(Arena *arena) {
    arena->memory = allocate(arena->used);
    if (!arena->memory) return OUT_OF_MEMORY;
    memset(arena->memory, 0, arena->used);
    arena->used = 0;
    return 0;
}

/* n numbers with zeros after them, up to `padded`; NULL for NULL. */
static void *copy_padded(Arena *arena, const void *from, size_t n, size_t padded, size_t size) {
    if (!from) return NULL;
    void *to = room(arena, padded * size);
    if (to) memcpy(to, from, n * size);
    return to;
}

/* Large results are written once from front to back: with small pages the first touch of each costs
 * as much as the arithmetic. */
static void advise_huge_pages(void *p, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 4096, begin = ((uintptr_t)p + page - 1) & ~(page - 1);
    const uintptr_t end = ((uintptr_t)p + bytes) & ~(page - 1);
    if (bytes >= (size_t)4 << 20) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)p, (void)bytes;
#endif
}

/* Numbers too small for a full fraction take a hundred times as long as others; a gradient that
 * vanishes is full of them. They count as 0 while a sequence runs. */
static unsigned flush_denormals(void) {
#if defined(__x86_64__)
    const unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(control | 0x8040);
    return control;
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    /* "memory", here and below: or the compiler may move arithmetic past the change */
    __asm__ volatile("msr fpcr, %0" ::"r"(control | (1u << 24)) : "memory");
    return (unsigned)control;
#else
    return 0;
#endif
}

static void restore_denormals(unsigned control) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(control);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)control) : "memory");
#else
    (void)control;
#endif
}
