/* What the LSTM recurrence takes, in either precision. Shapes are those of cayley.recurrences.lstm:
 * (G, .) is (B, 1) over the layer and (1, F) over the batch. */

typedef struct {
    const void *gamma, *beta;    /* (F); NULL: no normalisation */
    const void *reference;       /* (G, .); NULL for 0 */
    const void *past;            /* (2, K - 1, G, .); NULL for none */
    const void *given;           /* (2, T, given_rows, F); NULL: the sequence's own statistics */
    void *statistics;            /* (4, T, G, .) */
    const void *grad_statistics; /* likewise; NULL for 0 */
    void *grad_gamma, *grad_beta, *grad_past;
    int64_t given_rows;
} Site;

enum { INPUT, RECURRENT, CELL, SITES };

typedef struct {
    int H, window, over_batch;
    double eps;
    const void *x, *h0, *c0, *W, *b; /* b NULL for 0 */
    const void *weights;             /* (K - 1, G, 1) */
    Site sites[SITES];
    void *h, *c, *kept; /* kept: the gates, or with a recurrent normalisation its z */
    /* of the gradient only; grad_h and grad_c NULL for 0, da NULL where it is dx */
    const void *grad_h, *grad_c;
    void *dx, *da, *grad_h0, *grad_c0, *grad_b;
} Lstm;

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
