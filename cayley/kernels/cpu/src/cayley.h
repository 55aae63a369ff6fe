/* W = (2X - I) D with X = (I + A)^-1, the scaled Cayley transform of a skew-symmetric A, and its
 * gradient.
 *
 * The inverse is computed in double precision for both. What comes out in single precision is then
 * off by its last rounding only, and needs no correction; corrections would take longer. In double
 * precision one Newton-Schulz step, W + (I - W W^T) W / 2, removes what rounding leaves.
 */

#if BITS == 64
/* Columns that are eliminated together. */
#define PANEL 8

/* Numbers that a row of the matrices has room for. */
static INLINE ptrdiff_t NAME(row_size)(int n) { return (n + PANEL - 1) / PANEL * PANEL; }

static void NAME(swap)(REAL *a, REAL *b, ptrdiff_t stride, int n) {
    for (int i = 0; i < n; i++) {
        const REAL kept = a[i * stride];
        a[i * stride] = b[i * stride];
        b[i * stride] = kept;
    }
}

/* The row from k on whose entry in column k is largest. */
static int NAME(pivot)(const REAL *A, int n, ptrdiff_t stride, int k) {
    int best = k;
    for (int i = k + 1; i < n; i++)
        if (fabs(A[i * stride + k]) > fabs(A[best * stride + k])) best = i;
    return best;
}

/* Eliminate column k in the columns of its panel, which begins at k0. What a panel is left with is
 * what all other columns are to be multiplied by. */
static void NAME(eliminate)(REAL *A, int n, ptrdiff_t stride, int k0, int k) {
    REAL *row = A + k * stride + k0, unit[PANEL] = {0};
    const REAL inverse = 1 / row[k - k0];
    V pivot_row[PANEL / LANES];
    M others[PANEL / LANES];
    unit[k - k0] = 1;
    UNROLL for (int j = 0; j < PANEL / LANES; j++) {
        const V e = NAME(load)(unit + j * LANES);
        others[j] = e == 0;
        pivot_row[j] = inverse * NAME(select)(others[j], NAME(load)(row + j * LANES), e);
    }
    for (int i = 0; i < n; i++) {
        REAL *other = A + i * stride + k0;
        const V factor = NAME(all)(-other[k - k0]);
        UNROLL for (int j = 0; j < PANEL / LANES; j++) {
            const V rest = (V)(others[j] & (M)NAME(load)(other + j * LANES));
            NAME(store)(other + j * LANES, NAME(multiply_add)(factor, pivot_row[j], rest));
        }
    }
    UNROLL for (int j = 0; j < PANEL / LANES; j++) NAME(store)(row + j * LANES, pivot_row[j]);
}

/* A becomes its inverse, by Gauss-Jordan elimination. Without a search for pivots none would be
 * small, since every Schur complement of I + A has a symmetric part of at least I; but entries could
 * grow by the norm of A, and as many digits be lost. */
static void NAME(invert)(REAL *A, int n, REAL *packed, int *pivots) {
    const ptrdiff_t stride = NAME(row_size)(n);
    for (int k0 = 0; k0 < n; k0 += PANEL) {
        const int width = n - k0 < PANEL ? n - k0 : PANEL;
        for (int k = k0; k < k0 + width; k++) {
            pivots[k] = NAME(pivot)(A, n, stride, k);
            if (pivots[k] != k) NAME(swap)(A + k * stride, A + pivots[k] * stride, 1, n);
            NAME(eliminate)(A, n, stride, k0, k);
        }
        /* the panel's rows give way to multiples of them; its own columns are done */
        REAL *rows = A + k0 * stride, block[PANEL][PANEL];
        for (int i = 0; i < width; i++) {
            memcpy(block[i], rows + i * stride + k0, sizeof block[i]);
            memset(rows + i * stride + k0, 0, sizeof block[i]);
        }
        NAME(pack)(packed, rows, stride, 1, width, n);
        for (int i = 0; i < width; i++) {
            memset(rows + i * stride, 0, n * sizeof(REAL));
            memcpy(rows + i * stride + k0, block[i], sizeof block[i]);
        }
        const NAME(sum) f = {.n_a = width, .n_out = n, .W = packed, .activation = IDENTITY};
        const NAME(operands) o = {.x = A,
                                  .a = A + k0,
                                  .y = A,
                                  .x_stride = stride,
                                  .a_stride = stride,
                                  .y_stride = stride,
                                  .width = NAME(padded)(n)};
        NAME(apply)(&f, &o, n);
    }
    for (int k = n - 1; k >= 0; k--)
        if (pivots[k] != k) NAME(swap)(A + k, A + pivots[k], stride, n);
}

/* W + (I - W W^T) W / 2 in place of W; S and Y have room for as much. */
static void NAME(refine)(REAL *W, int n, REAL *packed, REAL *S, REAL *Y) {
    const ptrdiff_t stride = NAME(row_size)(n);
    NAME(pack)(packed, W, 1, stride, n, n);
    NAME(product)(packed, n, n, W, stride, S, stride, n);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++)
            S[i * stride + j] = ((i == j) - S[i * stride + j]) / 2;
    NAME(pack)(packed, W, stride, 1, n, n);
    /* summed up apart from W, or each of n additions would round as W does */
    NAME(product)(packed, n, n, S, stride, Y, stride, n);
    for (ptrdiff_t i = 0; i < n * stride; i++) W[i] += Y[i];
}
#endif

static int NAME(form)(const Cayley *all) {
    const ptrdiff_t n = all->n;
    const ptrdiff_t stride = JOIN(row_size, ISA, 64)(n);
    const REAL *x = all->x, *D = all->D;
    REAL *X = all->X, *W = all->W;
    Arena arena = {0};
    double *A = NULL, *packed = NULL, *S = NULL, *Y = NULL;
    int *pivots = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        A = room(&arena, n * stride * sizeof(double));
        packed = room(&arena, (BITS == 64 && n > PANEL ? n : PANEL) * stride * sizeof(double));
        if (BITS == 64) S = room(&arena, n * stride * sizeof(double));
        if (BITS == 64) Y = room(&arena, n * stride * sizeof(double));
        pivots = room(&arena, n * sizeof(int));
    }
    const unsigned control = flush_denormals();
    /* an infinite A has 0 for its inverse: what is not finite is passed on by hand */
    double finite = 0;
    for (ptrdiff_t d = 1; d <= all->bandwidth; d++)
        for (ptrdiff_t i = 0; i + d < n; i++, x++) {
            A[i * stride + i + d] = *x;
            A[(i + d) * stride + i] = -*x;
            finite += 0 * *x;
        }
    for (ptrdiff_t i = 0; i < n; i++) A[i * stride + i] = 1;
    JOIN(invert, ISA, 64)(A, n, packed, pivots);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++) {
            X[i * n + j] = (REAL)(A[i * stride + j] + finite);
            A[i * stride + j] = 2 * A[i * stride + j] - (i == j);
        }
    if (BITS == 64) JOIN(refine, ISA, 64)(A, n, packed, S, Y);
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++) W[i * n + j] = (REAL)(A[i * stride + j] + finite) * D[j];
    restore_denormals(control);
    free(arena.memory);
    return 0;
}

/* 2 (R - R^T) above the diagonal, with R = X D G^T X. */
static int NAME(form_back)(const Cayley *all) {
    const ptrdiff_t n = all->n;
    const ptrdiff_t stride = NAME(padded)(n);
    const REAL *X = all->X, *D = all->D;
    REAL *grad_x = all->grad_x, *packed = NULL, *scaled = NULL, *product = NULL;
    Arena arena = {0};
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        packed = room(&arena, NAME(packed_size)(n, n) * sizeof(REAL));
        scaled = room(&arena, n * stride * sizeof(REAL));
        product = room(&arena, n * stride * sizeof(REAL));
    }
    const unsigned control = flush_denormals();
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < n; j++) scaled[i * stride + j] = X[i * n + j] * D[j];
    NAME(pack)(packed, all->grad_W, all->column_stride, all->row_stride, n, n);
    NAME(product)(packed, n, n, scaled, stride, product, stride, n);
    NAME(pack)(packed, X, n, 1, n, n);
    REAL *R = scaled;
    NAME(product)(packed, n, n, product, stride, R, stride, n);
    for (ptrdiff_t d = 1; d <= all->bandwidth; d++)
        for (ptrdiff_t i = 0; i + d < n; i++)
            *grad_x++ = 2 * (R[i * stride + i + d] - R[(i + d) * stride + i]);
    restore_denormals(control);
    free(arena.memory);
    return 0;
}
