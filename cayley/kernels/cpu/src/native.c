/* The recurrences and the scaled Cayley transform in C: entries compiled for several instruction sets
 * and chosen when called. No header of torch or Python is used; Python calls through ctypes.
 */

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { MODRELU, RELU, LEAKY_RELU, TANH, IDENTITY, MODRELU_STACKED };
enum { OUT_OF_MEMORY = 1 };
/* what the gradients of matrices are sums of products with */
enum { STATES, INPUTS, RESETS, FACTORS };
/* what a composition and its gradient keep of each row */
enum { COMPOSED_BUFFERS = 7 };
#define MAX_THREADS 256
/* the constants of cayley.activations */
#define EPSILON 1e-5
#define NEGATIVE_SLOPE 0.01

#include "machine.h"
#include "steps.h"
#include "arguments.h"

#define PASTE(word, isa, bits) word##_##isa##_##bits
#define JOIN(word, isa, bits) PASTE(word, isa, bits)
#define NAME(word) JOIN(word, ISA, BITS)

#if defined(__clang__)
#define TARGET(flags) \
    PRAGMA(clang attribute push(__attribute__((target(flags))), apply_to = function))
#define END_TARGET PRAGMA(clang attribute pop)
#else
#define TARGET(flags) PRAGMA(GCC push_options) PRAGMA(GCC target(flags))
#define END_TARGET PRAGMA(GCC pop_options)
#endif
#define PRAGMA(words) _Pragma(#words)

/* what every processor of the architecture has: SSE2, or NEON with its 32 registers */
#define ISA plain
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define COLUMNS 4
#else
#define COLUMNS 2
#endif
#include "precisions.h"

#if defined(__x86_64__)
TARGET("avx2,fma")
#define ISA avx2
#define VECTOR_BYTES 32
#define COLUMNS 2
#include "precisions.h"
END_TARGET

TARGET("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#define ISA avx512
#define VECTOR_BYTES 64
#define COLUMNS 4
#include "precisions.h"
END_TARGET
#endif

/* The best instruction set of this processor: 0 plain, 1 AVX2, 2 AVX-512. */
int cayley_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

#if defined(__x86_64__)
#define CALL(function, ...)                                                   \
    switch (isa * 2 + (bits == 64)) {                                         \
    case 5: return function##_avx512_64(__VA_ARGS__);                         \
    case 4: return function##_avx512_32(__VA_ARGS__);                         \
    case 3: return function##_avx2_64(__VA_ARGS__);                           \
    case 2: return function##_avx2_32(__VA_ARGS__);                           \
    case 1: return function##_plain_64(__VA_ARGS__);                          \
    default: return function##_plain_32(__VA_ARGS__);                         \
    }
#else
#define CALL(function, ...)                                                   \
    (void)isa;                                                                \
    return bits == 64 ? function##_plain_64(__VA_ARGS__) : function##_plain_32(__VA_ARGS__);
#endif

int cayley_elman(int isa, int bits, const Steps *steps, const Elman *all, int threads) {
    CALL(elman, steps, all, threads)
}

int cayley_elman_back(int isa, int bits, const Steps *steps, const Elman *all, int threads) {
    CALL(elman_back, steps, all, threads)
}

int cayley_elman_step(int isa, int bits, const ElmanStep *all) { CALL(elman_step, all) }

int cayley_gru(int isa, int bits, const Steps *steps, const Gru *all, int threads) {
    CALL(gru, steps, all, threads)
}

int cayley_gru_back(int isa, int bits, const Steps *steps, const Gru *all, int threads) {
    CALL(gru_back, steps, all, threads)
}

int cayley_lstm(int isa, int bits, const Steps *steps, const Lstm *all, int threads) {
    CALL(lstm, steps, all, threads)
}

int cayley_lstm_back(int isa, int bits, const Steps *steps, const Lstm *all, int threads) {
    CALL(lstm_back, steps, all, threads)
}

int cayley_form(int isa, int bits, const Cayley *all) { CALL(form, all) }

int cayley_form_back(int isa, int bits, const Cayley *all) { CALL(form_back, all) }
