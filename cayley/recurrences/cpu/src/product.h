/* Products of a few rows with a matrix that stays the same: y = a P.
 *
 * The matrix is packed once: panels of COLUMNS registers (the last may be narrower), and in each
 * panel one row after another, so that a product reads it from front to back. Every entry of y is
 * one chain of multiply-adds in the order of k, wherever its row lies in the batch: the result does
 * not depend on how rows are given to threads.
 */

#define TILE_ROWS 6

static INLINE size_t NAME(packed_size)(int n_in, int n_out) {
    return (size_t)n_in * NAME(padded)(n_out);
}

/* P[k][j] = W[k * row_stride + j * column_stride], k < n_in, j < n_out; 0 beyond n_out. */
static void NAME(pack)(
    REAL *P, const REAL *W, ptrdiff_t row_stride, ptrdiff_t column_stride, int n_in, int n_out) {
    for (int j0 = 0; j0 < NAME(padded)(n_out); j0 += COLUMNS * LANES) {
        const int left = NAME(padded)(n_out) - j0;
        const int width = left < COLUMNS * LANES ? left : COLUMNS * LANES;
        for (int k = 0; k < n_in; k++, P += width)
            for (int j = 0; j < width; j++)
                P[j] = j0 + j < n_out ? W[k * row_stride + (j0 + j) * column_stride] : 0;
    }
}

/* `rows` rows of y in the columns of one panel, which is `columns` registers wide. */
static INLINE void NAME(tile)(const int rows, const int columns, int n_in, const REAL *P,
                              const REAL *a, ptrdiff_t a_stride, REAL *y, ptrdiff_t y_stride) {
    V sum[TILE_ROWS][COLUMNS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++) sum[i][j] = (V){0};
    for (int k = 0; k < n_in; k++, P += columns * LANES) {
        V p[COLUMNS];
        UNROLL for (int j = 0; j < columns; j++) {
            p[j] = *(const V *)(P + j * LANES);
            /* a large matrix comes from afar, and the processor does not look ahead far enough */
            __builtin_prefetch(P + (16 * columns + j) * LANES);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const V v = NAME(all)(a[i * a_stride + k]);
            UNROLL for (int j = 0; j < columns; j++) sum[i][j] += v * p[j];
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < columns; j++)
            *(V *)(y + i * y_stride + j * LANES) = sum[i][j];
}

#define TILE(rows, columns)                                                     \
    case (rows) * 8 + (columns):                                                \
        NAME(tile)(rows, columns, n_in, P, a, a_stride, y, y_stride);           \
        break;
#if COLUMNS == 4
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3) TILE(rows, 4)
#else
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
#endif

static void NAME(some_rows)(int rows, int columns, int n_in, const REAL *P, const REAL *a,
                            ptrdiff_t a_stride, REAL *y, ptrdiff_t y_stride) {
    switch (rows * 8 + columns) {
        TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6)
    }
}

/* y = a P for a of (rows, n_in). y is aligned, its rows hold padded(n_out) numbers, those beyond
 * n_out come out 0. */
static void NAME(product)(const REAL *P, int n_in, int n_out, const REAL *a, ptrdiff_t a_stride,
                          REAL *y, ptrdiff_t y_stride, int rows) {
    /* tiles of as equal a height as can be had */
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int j = 0; j < NAME(vectors)(n_out); j += COLUMNS) {
        const int left = NAME(vectors)(n_out) - j;
        const int columns = left < COLUMNS ? left : COLUMNS;
        for (int i = 0; i < tiles; i++) {
            const int begin = rows * i / tiles, end = rows * (i + 1) / tiles;
            NAME(some_rows)(end - begin, columns, n_in, P, a + begin * a_stride, a_stride,
                            y + begin * y_stride + j * LANES, y_stride);
        }
        P += (size_t)columns * LANES * n_in;
    }
}

/* The sum of rows, one after another: each sequence has a sum of its own over time, so that the order
 * of additions does not depend on the number of threads. */
static void NAME(sum_rows)(const REAL *a, int rows, ptrdiff_t stride, REAL *sum, int n) {
    memset(sum, 0, n * sizeof(REAL));
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++) sum[j] += a[i * stride + j];
}

#undef TILE_ROWS
#undef TILE
#undef TILES
