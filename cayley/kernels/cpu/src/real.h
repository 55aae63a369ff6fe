/* Everything for one precision and one instruction set.
 *
 * Included once for each pair, with REAL (float or double), INT (the integer of its size),
 * VECTOR_BYTES (the size of a register), COLUMNS (registers across a tile of a product) and
 * NAME(word) (which makes a word unique) defined. Vectors are those of GCC and Clang, which turn
 * them into instructions of the target that is in force.
 */

#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define V NAME(vector)
#define M NAME(mask)
#define VU NAME(unaligned)

typedef REAL V __attribute__((vector_size(VECTOR_BYTES)));
typedef INT M __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL VU __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

static INLINE V NAME(load)(const REAL *p) { return *(const VU *)p; }

static INLINE void NAME(store)(REAL *p, V v) { *(VU *)p = v; }

/* The first `left` numbers at p, and 0 in the lanes beyond them. */
static INLINE V NAME(take)(const REAL *p, int left) {
    if (left >= LANES) return NAME(load)(p);
#if MASKED && BITS == 32
    return (V)_mm512_maskz_loadu_ps((1u << left) - 1, p);
#elif MASKED
    return (V)_mm512_maskz_loadu_pd((1u << left) - 1, p);
#else
    V v = {0};
    memcpy(&v, p, left * sizeof(REAL));
    return v;
#endif
}

/* The lanes that are among the first `left` numbers at p. */
static INLINE void NAME(put)(REAL *p, V v, int left) {
    if (left >= LANES)
        NAME(store)(p, v);
    else
#if MASKED && BITS == 32
        _mm512_mask_storeu_ps(p, (1u << left) - 1, (__m512)v);
#elif MASKED
        _mm512_mask_storeu_pd(p, (1u << left) - 1, (__m512d)v);
#else
        memcpy(p, &v, left * sizeof(REAL));
#endif
}

static INLINE V NAME(all)(REAL value) { return value - (V){0}; }

/* a b + c, rounded once where the processor can: left to the compiler, some fuse the one tile and not
 * the other (GCC 13 does not fuse what it takes for a single chain), and the bits of a row would
 * depend on the tile that it falls into. */
static INLINE V NAME(multiply_add)(V a, V b, V c) {
#if VECTOR_BYTES == 64 && BITS == 32
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VECTOR_BYTES == 64
    return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif VECTOR_BYTES == 32 && BITS == 32
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif VECTOR_BYTES == 32
    return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__) && BITS == 32
    return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#elif defined(__aarch64__)
    return (V)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

static INLINE V NAME(select)(M mask, V yes, V no) { return (V)((mask & (M)yes) | (~mask & (M)no)); }

static INLINE V NAME(absolute)(V v) {
    const M sign = (M)NAME(all)(-(REAL)0);
    return (V)(~sign & (M)v);
}

static INLINE V NAME(with_sign_of)(V v, V s) {
    const M sign = (M)NAME(all)(-(REAL)0);
    return (V)((~sign & (M)v) | (sign & (M)s));
}

/* Registers that a row of n numbers fills, and the numbers that these hold. */
static INLINE int NAME(vectors)(int n) { return (n + LANES - 1) / LANES; }
static INLINE int NAME(padded)(int n) { return NAME(vectors)(n) * LANES; }

#include "functions.h"
#include "activations.h"
#include "product.h"
#include "outer.h"
#include "cayley.h"
#include "rotations.h"
#include "fourier.h"
#include "composition.h"
#include "factors.h"
#include "elman.h"
#include "step.h"
#include "gru.h"
#include "window.h"
#include "norm.h"
#include "lstm.h"

#undef TILE_ROWS
#undef TILE_WIDTHS
#undef TILES
#undef TILE_SIZE
#undef TAKE
#undef PUT
#undef LANES
#undef V
#undef M
#undef VU
