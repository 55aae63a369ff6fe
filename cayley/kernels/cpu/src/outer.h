/* Gradients of matrices: sums over rows k of all steps, S[j][i] += sum_k a[k][j] d[k][i].
 *
 * The sums are transposed gradients. d is the gradient of what a step adds up; a is what the matrix
 * was multiplied by, and its rows may lie anywhere. Every entry of S is one chain of multiply-adds in
 * the order of k, whichever thread it falls to.
 */

typedef struct {
    int n;
    const REAL **rows; /* a[k] */
    REAL *strips;      /* room for a in strips of TILE_ROWS columns; NULL: a is read where it lies */
    REAL *sums;        /* (n, stride); NULL: not wanted */
    ptrdiff_t stride;
} NAME(factor);

static INLINE int NAME(strips)(int n) { return (n + TILE_ROWS - 1) / TILE_ROWS; }

/* Rows j, ..., j + rows - 1 of the sums in the columns of one panel of d. */
static INLINE void NAME(outer_tile)(const int rows, const int columns, const NAME(factor) *a, int j,
                                    const REAL *d, ptrdiff_t d_stride, int count, int i0, int left) {
    V sum[TILE_ROWS][COLUMNS];
    REAL *sums = a->sums + j * a->stride + i0;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < columns; i++) sum[r][i] = TAKE(sums + r * a->stride, i, left);
    const int in_strip = j % TILE_ROWS;
    const REAL *strip = a->strips ? a->strips + (size_t)(j - in_strip) * count + in_strip : NULL;
    for (int k = 0; k < count; k++, d += d_stride) {
        const REAL *a_k = strip ? strip + k * TILE_ROWS : a->rows[k] + j;
        V p[COLUMNS];
        UNROLL for (int i = 0; i < columns; i++) p[i] = *(const V *)(d + i * LANES);
        UNROLL for (int r = 0; r < rows; r++) {
            const V v = NAME(all)(a_k[r]);
            UNROLL for (int i = 0; i < columns; i++)
                sum[r][i] = NAME(multiply_add)(v, p[i], sum[r][i]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int i = 0; i < columns; i++) PUT(sums + r * a->stride, i, sum[r][i], left);
}

#define CASE(rows, columns)                                                       \
    case TILE_SIZE(rows, columns):                                                \
        NAME(outer_tile)(rows, columns, a, j, d, d_stride, count, i0, left);      \
        break;

static void NAME(some_sums)(int rows, int columns, const NAME(factor) *a, int j, const REAL *d,
                            ptrdiff_t d_stride, int count, int i0, int left) {
    switch (TILE_SIZE(rows, columns)) { TILES(CASE) }
}
#undef CASE

/* Copy strips begin, ..., end - 1 of a. */
static void NAME(cut)(const NAME(factor) *a, int begin, int end, int count) {
    for (int k = 0; k < count; k++)
        for (int j = begin * TILE_ROWS; j < a->n && j < end * TILE_ROWS; j += TILE_ROWS) {
            const int width = a->n - j < TILE_ROWS ? a->n - j : TILE_ROWS;
            for (int r = 0; r < width; r++)
                a->strips[(size_t)j * count + k * TILE_ROWS + r] = a->rows[k][j + r];
        }
}

/* sum[i] += sum_k d[k][i] in the columns of one panel; with states s, sum_k sgn(s[k][i]) d[k][i]. */
static void NAME(add_columns)(const REAL *d, ptrdiff_t d_stride, int count, int columns,
                              const REAL *states, ptrdiff_t state_stride, REAL *sum, int left) {
    const M sign = (M)NAME(all)(-(REAL)0);
    V total[COLUMNS];
    UNROLL for (int i = 0; i < COLUMNS; i++)
        total[i] = i < columns ? NAME(take)(sum + i * LANES, left - i * LANES) : (V){0};
    for (int k = 0; k < count; k++, d += d_stride)
        UNROLL for (int i = 0; i < COLUMNS; i++) {
            if (i >= columns) break;
            V v = *(const V *)(d + i * LANES);
            if (states) {
                const REAL *s = states + k * state_stride + i * LANES;
                v = (V)((M)v ^ (sign & (M)NAME(take)(s, left - i * LANES)));
            }
            total[i] += v;
        }
    UNROLL for (int i = 0; i < COLUMNS; i++)
        if (i < columns) NAME(put)(sum + i * LANES, total[i], left - i * LANES);
}

/* Everything that rows d of n columns add to; what is NULL is not wanted. */
typedef struct {
    int n;
    NAME(factor) factors[2];
    REAL *column_sums; /* (n) */
    REAL *signed_sums; /* (n), with the signs of the states */
    const REAL *states;
    ptrdiff_t state_stride;
} NAME(outer_sums);

/* Where a chunk of d is copied, a panel after another. */
static INLINE size_t NAME(panel_size)(int count) { return (size_t)count * COLUMNS * LANES; }

/* What falls to one thread of the work for `count` rows of d. */
static void NAME(outer)(const NAME(outer_sums) *all, const REAL *d, ptrdiff_t d_stride, int count,
                        REAL *panel, int thread, int threads) {
    const int vectors = NAME(vectors)(all->n);
    const int aligned = d_stride % LANES == 0 && (uintptr_t)d % VECTOR_BYTES == 0;
    for (int i = 0; i < vectors; i += COLUMNS) {
        const int columns = vectors - i < COLUMNS ? vectors - i : COLUMNS, i0 = i * LANES;
        const REAL *rows = d + i0;
        ptrdiff_t stride = d_stride;
        if (!aligned || vectors > COLUMNS) {
            stride = columns * LANES;
            rows = panel;
            for (int k = 0; k < count; k++)
                for (int v = 0; v < columns; v++)
                    *(V *)(panel + k * stride + v * LANES) = NAME(take)(
                        d + k * d_stride + i0 + v * LANES, all->n - i0 - v * LANES);
        }
        for (int f = 0; f < 2; f++) {
            const NAME(factor) *a = &all->factors[f];
            if (!a->sums) continue;
            const int strips = NAME(strips)(a->n);
            const int begin = strips * thread / threads, end = strips * (thread + 1) / threads;
            if (i == 0 && a->strips) NAME(cut)(a, begin, end, count);
            const int last = end * TILE_ROWS < a->n ? end * TILE_ROWS : a->n;
            for (int j = begin * TILE_ROWS, height; j < last; j += height) {
                height = NAME(height)(last - j);
                NAME(some_sums)(height, columns, a, j, rows, stride, count, i0,
                                all->n - i0 - (columns - 1) * LANES);
            }
        }
        if (thread != (i / COLUMNS) % threads) continue;
        if (all->column_sums)
            NAME(add_columns)(rows, stride, count, columns, NULL, 0, all->column_sums + i0,
                              all->n - i0);
        if (all->signed_sums)
            NAME(add_columns)(rows, stride, count, columns, all->states + i0,
                              all->state_stride, all->signed_sums + i0, all->n - i0);
    }
}

/* Memory for the chunks of a gradient. A chunk is small enough to stay near, and long enough that the
 * sums, which may not, are not fetched for a few rows. Chunks of d take turns between two places:
 * threads that are done with one go on while others still read it. They meet after each chunk, also
 * where nothing is summed: the next but one is in the same place, where a row of one thread, if steps
 * differ in size, is that of another. */
typedef struct {
    int goal, most; /* rows of a chunk: at least, unless it is the last, and at most */
    ptrdiff_t stride;
    REAL *d[2];
    REAL *panels;               /* for each thread */
    REAL *strips[FACTORS];      /* for each factor */
    const REAL **rows[FACTORS]; /* for each thread and factor */
} NAME(chunks);

/* Room for chunks of d with n columns and factors with n_a columns each, for `threads` threads. */
static void NAME(room_for_chunks)(NAME(chunks) *chunks, Arena *arena, const Steps *steps, int n,
                                  const int n_a[FACTORS], int threads) {
    chunks->goal = 512 <= steps->rows ? 512 : (int)steps->rows + 1; /* all, if there are any */
    chunks->most = chunks->goal + steps->B;
    chunks->stride = NAME(padded)(n);
    for (int i = 0; i < 2; i++)
        chunks->d[i] = room(arena, chunks->most * chunks->stride * sizeof(REAL));
    chunks->panels = room(arena, threads * NAME(panel_size)(chunks->most) * sizeof(REAL));
    for (int f = 0; f < FACTORS; f++) {
        chunks->rows[f] = room(arena, (size_t)threads * chunks->most * sizeof(REAL *));
        /* long rows lie far apart: a copy pays */
        if (n_a[f] > 512 && NAME(vectors)(n) > COLUMNS)
            chunks->strips[f] = room(
                arena, (size_t)chunks->most * NAME(strips)(n_a[f]) * TILE_ROWS * sizeof(REAL));
    }
}

/* A thread's factor of n columns, the f-th of FACTORS. */
static NAME(factor) NAME(factor_of)(const NAME(chunks) *chunks, int thread, int f, int n,
                                    void *sums, ptrdiff_t stride) {
    return (NAME(factor)){.n = n,
                          .rows = chunks->rows[f] + (size_t)thread * chunks->most,
                          .strips = chunks->strips[f],
                          .sums = sums,
                          .stride = stride};
}

/* The rows of h before each row of the chunk that begins at a step of a walk. */
static void NAME(rows_before)(const REAL **rows, Walk at, const Chunk *chunk, const REAL *h,
                              const REAL *h0, ptrdiff_t n) {
    for (int s = 0; s < chunk->steps; s++, advance(&at))
        for (int i = 0; i < at.size; i++)
            rows[at.offset - chunk->offset + i] =
                i < at.before_size ? h + (at.before_offset + i) * n : h0 + i * n;
}

/* Sums begin at 0; those that are NULL are not wanted. */
static void NAME(clear)(void *sums, size_t n) {
    if (sums) memset(sums, 0, n * sizeof(REAL));
}

/* The rows of a chunk of a. */
static void NAME(rows_of)(const REAL **rows, const REAL *a, ptrdiff_t n, int count) {
    for (int k = 0; k < count; k++) rows[k] = a + k * n;
}
