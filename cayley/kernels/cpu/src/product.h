/* A few rows of y = phi(c + x + a W), or phi(c + x U + a W), with matrices that stay the same.
 *
 * A matrix is packed once: panels of COLUMNS registers (the last may be narrower), and in each panel
 * one row after another, so that a product reads it from front to back. Every entry of y is one
 * chain of multiply-adds in the order of k, wherever its row lies in the batch: the result does not
 * depend on how rows are given to threads.
 */

#define TILE_ROWS 6

/* Every size of a tile: rows, and registers across. Few heights keep the library small, and what is
 * left of the rows after tiles of full height is little. */
#if COLUMNS == 4
#define TILE_WIDTHS(CASE, rows) CASE(rows, 1) CASE(rows, 2) CASE(rows, 3) CASE(rows, 4)
#else
#define TILE_WIDTHS(CASE, rows) CASE(rows, 1) CASE(rows, 2)
#endif
#define TILES(CASE) \
    TILE_WIDTHS(CASE, 1) TILE_WIDTHS(CASE, 2) TILE_WIDTHS(CASE, 4) TILE_WIDTHS(CASE, 6)
#define TILE_SIZE(rows, columns) ((rows) * 8 + (columns))

/* The height of the next tile if `left` rows are left. */
static INLINE int NAME(height)(int left) {
    return left >= 6 ? 6 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static INLINE size_t NAME(packed_size)(int n_in, int n_out) {
    return (size_t)n_in * NAME(padded)(n_out);
}

/* P[k][j] = W[k * row_stride + j * column_stride], k < n_in, j < n_out; 0 beyond n_out. */
static void NAME(pack)(
    REAL *P, const REAL *W, ptrdiff_t row_stride, ptrdiff_t column_stride, int n_in, int n_out) {
    for (int j0 = 0; j0 < NAME(padded)(n_out); j0 += COLUMNS * LANES) {
        const ptrdiff_t left = NAME(padded)(n_out) - j0, filled = n_out - j0;
        const ptrdiff_t width = left < COLUMNS * LANES ? left : COLUMNS * LANES;
        for (ptrdiff_t k = 0; k < n_in; k++, P += width)
            for (ptrdiff_t j = 0; j < width; j++)
                P[j] = j < filled ? W[k * row_stride + (j0 + j) * column_stride] : 0;
    }
}

/* What makes y. With U NULL, x has n_out columns and is added as it is; x NULL adds nothing. */
typedef struct {
    int n_x, n_a, n_out;
    const REAL *U, *W; /* packed */
    const REAL *c, *b; /* padded: what is added to every row, and the threshold; NULL for 0 */
    int activation;
} NAME(sum);

/* Rows of the factors and of the result, of which `width` columns may be written. With a state h, y
 * is phi'(h) times the sum. */
typedef struct {
    const REAL *x, *a, *state;
    REAL *y;
    ptrdiff_t x_stride, a_stride, state_stride, y_stride;
    int width;
} NAME(operands);

/* sum += a P. */
static INLINE void NAME(accumulate)(const int rows, const int columns, int n_in, const REAL *P,
                                    const REAL *a, ptrdiff_t stride, V sum[TILE_ROWS][COLUMNS]) {
    for (int k = 0; k < n_in; k++, P += columns * LANES) {
        V p[COLUMNS];
        UNROLL for (int j = 0; j < columns; j++) {
            p[j] = *(const V *)(P + j * LANES);
            /* a large matrix comes from afar, and the processor does not look ahead far enough */
            __builtin_prefetch(P + (16 * columns + j) * LANES);
        }
        UNROLL for (int i = 0; i < rows; i++) {
            const V v = NAME(all)(a[i * stride + k]);
            UNROLL for (int j = 0; j < columns; j++)
                sum[i][j] = NAME(multiply_add)(v, p[j], sum[i][j]);
        }
    }
}

/* Only the last register of a tile may lack some numbers. */
#define TAKE(p, j, left) \
    ((j) + 1 < columns ? NAME(load)((p) + (j)*LANES) : NAME(take)((p) + (j)*LANES, left))
#define PUT(p, j, v, left)                               \
    ((j) + 1 < columns ? NAME(store)((p) + (j)*LANES, v) \
                       : NAME(put)((p) + (j)*LANES, v, left))
/* The activation is a constant in each of these loops, and the sums stay in registers. */
#define FINISH(kind)                                                                   \
    case kind:                                                                         \
        UNROLL for (int j = 0; j < columns; j++) {                                     \
            const V b = kind == MODRELU ? NAME(load)(f->b + j0 + j * LANES) : (V){0};  \
            UNROLL for (int i = 0; i < rows; i++)                                      \
                PUT(y + i * o->y_stride, j, NAME(activate)(kind, sum[i][j], b), room); \
        }                                                                              \
        break;
#define FINISH_BACK(kind)                                                               \
    case kind:                                                                          \
        UNROLL for (int i = 0; i < rows; i++)                                           \
            UNROLL for (int j = 0; j < columns; j++) {                                  \
                const V h = TAKE(state + i * o->state_stride, j, left);                 \
                PUT(y + i * o->y_stride, j, NAME(pull_back)(kind, sum[i][j], h), room); \
            }                                                                           \
        break;

/* `rows` rows of y from `row` on, in the columns of one panel, which is `columns` registers wide and
 * begins at j0. */
static INLINE void NAME(tile)(const int rows, const int columns, const NAME(sum) *f,
                              const NAME(operands) *o, int row, int j0) {
    V sum[TILE_ROWS][COLUMNS];
    const REAL *x = o->x ? o->x + row * o->x_stride : NULL;
    REAL *y = o->y + row * o->y_stride + j0;
    const int before_last = j0 + (columns - 1) * LANES;
    const int left = f->n_out - before_last, room = o->width - before_last;
    UNROLL for (int j = 0; j < columns; j++) {
        const V c = f->c ? NAME(load)(f->c + j0 + j * LANES) : (V){0};
        UNROLL for (int i = 0; i < rows; i++)
            sum[i][j] = x && !f->U ? c + TAKE(x + i * o->x_stride + j0, j, left) : c;
    }
    if (x && f->U)
        NAME(accumulate)(rows, columns, f->n_x, f->U + (size_t)j0 * f->n_x, x, o->x_stride, sum);
    if (o->a)
        NAME(accumulate)(rows, columns, f->n_a, f->W + (size_t)j0 * f->n_a,
                         o->a + row * o->a_stride, o->a_stride, sum);
    if (!o->state) {
        switch (f->activation) {
            FINISH(MODRELU)
            FINISH(RELU)
            FINISH(LEAKY_RELU)
        default:
            FINISH(IDENTITY)
        }
        return;
    }
    const REAL *state = o->state + row * o->state_stride + j0;
    switch (f->activation) {
        FINISH_BACK(MODRELU)
        FINISH_BACK(RELU)
        FINISH_BACK(LEAKY_RELU)
        FINISH_BACK(TANH)
    default:
        FINISH_BACK(IDENTITY)
    }
}

#define CASE(rows, columns) \
    case TILE_SIZE(rows, columns): NAME(tile)(rows, columns, f, o, row, j0); break;

static void NAME(some_rows)(int rows, int columns, const NAME(sum) *f, const NAME(operands) *o,
                            int row, int j0) {
    switch (TILE_SIZE(rows, columns)) { TILES(CASE) }
}

/* `rows` rows of y. */
static void NAME(apply)(const NAME(sum) *f, const NAME(operands) *o, int rows) {
    const int vectors = NAME(vectors)(f->n_out);
    for (int j = 0; j < vectors; j += COLUMNS) {
        const int columns = vectors - j < COLUMNS ? vectors - j : COLUMNS;
        for (int i = 0, height; i < rows; i += height) {
            height = NAME(height)(rows - i);
            NAME(some_rows)(height, columns, f, o, i, j * LANES);
        }
    }
}

/* y = a P for a of (rows, n_in). The rows of y hold padded(n_out) numbers, those beyond n_out come
 * out 0. */
static void NAME(product)(const REAL *P, int n_in, int n_out, const REAL *a, ptrdiff_t a_stride,
                          REAL *y, ptrdiff_t y_stride, int rows) {
    const NAME(sum) f = {.n_a = n_in, .n_out = n_out, .W = P, .activation = IDENTITY};
    const NAME(operands) o = {
        .a = a, .y = y, .a_stride = a_stride, .y_stride = y_stride, .width = NAME(padded)(n_out)};
    NAME(apply)(&f, &o, rows);
}

static INLINE void NAME(add)(REAL *sum, V v, int left) {
    NAME(put)(sum, NAME(take)(sum, left) + v, left);
}

/* sum += a. */
static void NAME(add_row)(int n, const REAL *a, REAL *sum) {
    for (int j = 0; j < n; j += LANES) NAME(add)(sum + j, NAME(take)(a + j, n - j), n - j);
}

/* The sum of rows, one after another: each sequence has a sum of its own over time, so that the order
 * of additions does not depend on the number of threads. */
static void NAME(sum_rows)(const REAL *a, int rows, ptrdiff_t stride, REAL *sum, ptrdiff_t n) {
    memset(sum, 0, n * sizeof(REAL));
    for (int i = 0; i < rows; i++)
        for (ptrdiff_t j = 0; j < n; j++) sum[j] += a[i * stride + j];
}

#undef CASE
#undef FINISH
#undef FINISH_BACK
