/* One step h' = phi(U x + c + W h; b) of the few rows of a stream. W is transposed and is read as it
 * is: packing it would take longer than the product. */

/* registers across a tile: sums that do not wait for one another */
#define STEP_COLUMNS 8

static INLINE REAL NAME(dot)(const REAL *a, const REAL *b, int n) {
    V even = {0}, odd = {0};
    int i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        even = NAME(multiply_add)(NAME(load)(a + i), NAME(load)(b + i), even);
        odd = NAME(multiply_add)(NAME(load)(a + i + LANES), NAME(load)(b + i + LANES), odd);
    }
    for (; i < n; i += LANES)
        even = NAME(multiply_add)(NAME(take)(a + i, n - i), NAME(take)(b + i, n - i), even);
    const V sum = even + odd;
    REAL total = 0;
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    return total;
}

/* The `columns` registers of z = U x + c + W h from unit j0 on; the last may lack some numbers. */
static INLINE void NAME(step_tile)(
    const int columns, const ElmanStep *all, const REAL *x, const REAL *h, int j0, REAL *z) {
    const ptrdiff_t H = all->H, I = all->I;
    const REAL *U = all->U, *c = all->c, *Wt = (const REAL *)all->Wt + j0;
    const int left = (int)H - j0, last = columns - 1, in_last = left - last * LANES;
    V sum[STEP_COLUMNS] = {{0}};
    for (int j = 0; j < columns * LANES && j < left; j++)
        sum[j / LANES][j % LANES] = (c ? c[j0 + j] : 0) + NAME(dot)(U + (j0 + j) * I, x, (int)I);
    for (ptrdiff_t k = 0; k < H; k++, Wt += H) {
        const V v = NAME(all)(h[k]);
        UNROLL for (int j = 0; j < last; j++)
            sum[j] = NAME(multiply_add)(v, NAME(load)(Wt + j * LANES), sum[j]);
        sum[last] = NAME(multiply_add)(v, NAME(take)(Wt + last * LANES, in_last), sum[last]);
    }
    for (int j = 0; j < columns; j++) NAME(put)(z + j0 + j * LANES, sum[j], left - j * LANES);
}

static int NAME(elman_step)(const ElmanStep *all) {
    const int H = (int)all->H, activation = (int)all->activation;
    const REAL *b = all->b;
    for (ptrdiff_t row = 0; row < all->B; row++) {
        const REAL *x = (const REAL *)all->x + row * all->I, *h = (const REAL *)all->h + row * H;
        REAL *output = (REAL *)all->output + row * H, *state = (REAL *)all->state + row * H;
        int j = 0;
        for (; j + STEP_COLUMNS * LANES <= H; j += STEP_COLUMNS * LANES)
            NAME(step_tile)(STEP_COLUMNS, all, x, h, j, output);
        for (; j + 2 * LANES <= H; j += 2 * LANES) NAME(step_tile)(2, all, x, h, j, output);
        for (; j < H; j += LANES) NAME(step_tile)(1, all, x, h, j, output);
        if (activation == MODRELU_STACKED)
            NAME(elman_row_stacked)(H / 2, output, b, output, state);
        else
            for (j = 0; j < H; j += LANES) {
                const V threshold = b ? NAME(take)(b + j, H - j) : (V){0};
                const V z = NAME(take)(output + j, H - j);
                NAME(put)(output + j, NAME(activate)(activation, z, threshold), H - j);
            }
        if (state != output) memcpy(state, output, H * sizeof(REAL));
    }
    return 0;
}

#undef STEP_COLUMNS
