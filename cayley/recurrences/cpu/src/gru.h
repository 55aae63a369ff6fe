/* r = sigma(x_r + W_r h), u = sigma(x_u + W_u h), c = phi(x_c + W_c (r h); b), the next state
 * (1 - u) h + u c, and the gradient. phi and its derivative are those of elman.h.
 */

typedef struct {
    const Steps *steps;
    int H, activation;
    const REAL *x, *h0, *b, *packed;
    REAL *h, *gates; /* [r, u, c] of every step */
} NAME(gru_job);

typedef struct {
    const Steps *steps;
    int H, activation;
    const REAL *grad_h, *grad_gates, *h, *gates, *h0, *packed;
    REAL *delta, *grad_h0, *row_grad_b, *reset;
} NAME(gru_back_job);

/* One row: r, u and reset = r h. y_r and y_u are W_r h and W_u h. */
static INLINE void NAME(gru_row)(int n, const REAL *x, const REAL *before, const REAL *y_r,
                                 const REAL *y_u, REAL *gates, REAL *reset) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V r = NAME(sigmoid)(NAME(take)(x + j, left) + NAME(load)(y_r + j));
        const V u = NAME(sigmoid)(NAME(take)(x + n + j, left) + NAME(load)(y_u + j));
        NAME(put)(gates + j, r, left);
        NAME(put)(gates + n + j, u, left);
        NAME(store)(reset + j, r * NAME(take)(before + j, left));
    }
}

/* One row: c and the next state. y_c is W_c (r h). */
static INLINE void NAME(gru_row_state)(const int activation, int n, const REAL *x,
                                       const REAL *before, const REAL *y_c, const REAL *b,
                                       REAL *gates, REAL *h) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V threshold = activation == MODRELU ? NAME(take)(b + j, left) : (V){0};
        const V z = NAME(take)(x + 2 * n + j, left) + NAME(load)(y_c + j);
        const V c = NAME(activate)(activation, z, threshold);
        const V u = NAME(take)(gates + n + j, left), state = NAME(take)(before + j, left);
        NAME(put)(gates + 2 * n + j, c, left);
        /* from the nearer end: exactly the state for u = 0 and exactly c for u = 1 */
        const V way = c - state, from_state = state + u * way, from_c = c - ((REAL)1 - u) * way;
        NAME(put)(h + j, NAME(select)(u < (REAL)0.5, from_state, from_c), left);
    }
}

/* One row: the gradients of what goes into u and c, what c adds to the gradient of b, and
 * direct = (1 - u) g with g the whole gradient of the state. */
static INLINE void NAME(gru_row_state_back)(const int activation, int n, const REAL *grad_h,
                                            const REAL *carry, const REAL *before,
                                            const REAL *gates, const REAL *grad_gates, REAL *delta,
                                            REAL *direct, REAL *grad_b) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        V g = NAME(take)(grad_h + j, left);
        if (carry) g += NAME(load)(carry + j) + NAME(load)(direct + j);
        const V u = NAME(take)(gates + n + j, left), c = NAME(take)(gates + 2 * n + j, left);
        V du = g * (c - NAME(take)(before + j, left)), dc = g * u;
        if (grad_gates) {
            du += NAME(take)(grad_gates + n + j, left);
            dc += NAME(take)(grad_gates + 2 * n + j, left);
        }
        const V d = NAME(pull_back)(activation, dc, c);
        if (activation == MODRELU)
            NAME(store)(grad_b + j,
                        NAME(load)(grad_b + j) + NAME(with_sign_of)(NAME(all)(1), c) * d);
        NAME(put)(delta + n + j, du * (u * ((REAL)1 - u)), left);
        NAME(put)(delta + 2 * n + j, d, left);
        NAME(store)(direct + j, g * ((REAL)1 - u));
    }
}

/* One row: the gradient of what goes into r, r h, and direct += r v with v the gradient of r h. */
static INLINE void NAME(gru_row_back)(int n, const REAL *v, const REAL *before, const REAL *gates,
                                      const REAL *grad_gates, REAL *delta, REAL *direct,
                                      REAL *reset) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V r = NAME(take)(gates + j, left), back = NAME(load)(v + j);
        const V state = NAME(take)(before + j, left);
        V dr = back * state;
        if (grad_gates) dr += NAME(take)(grad_gates + j, left);
        NAME(put)(delta + j, dr * (r * ((REAL)1 - r)), left);
        NAME(put)(reset + j, r * state, left);
        NAME(store)(direct + j, NAME(load)(direct + j) + r * back);
    }
}

static int NAME(gru_rows)(void *data, int first, int last) {
    const NAME(gru_job) *job = data;
    const ptrdiff_t n = job->H, stride = NAME(padded)(job->H), size = NAME(packed_size)(n, n);
    const REAL *W_r = job->packed, *W_u = W_r + size, *W_c = W_u + size;
    REAL *y_r = allocate(3 * (last - first) * stride * sizeof(REAL));
    if (!y_r) return OUT_OF_MEMORY;
    REAL *y_u = y_r + (last - first) * stride, *reset = y_u + (last - first) * stride;
    REAL *y_c = y_r; /* when r is known */
    for (Walk at = walk(job->steps, 0); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const int kept =
            rows_between(first, last, at.size < at.before_size ? at.size : at.before_size);
        const ptrdiff_t here = (at.offset + first) * n;
        const REAL *after = job->h + (at.before_offset + first) * n, *initial = job->h0 + first * n;
        const REAL *x = job->x + 3 * here, *begin = initial + kept * n;
        REAL *h = job->h + here, *gates = job->gates + 3 * here;
        NAME(product)(W_r, n, n, after, n, y_r, stride, kept);
        NAME(product)(W_u, n, n, after, n, y_u, stride, kept);
        NAME(product)(W_r, n, n, begin, n, y_r + kept * stride, stride, count - kept);
        NAME(product)(W_u, n, n, begin, n, y_u + kept * stride, stride, count - kept);
        for (int i = 0; i < count; i++)
            NAME(gru_row)(n, x + i * 3 * n, (i < kept ? after : initial) + i * n, y_r + i * stride,
                          y_u + i * stride, gates + i * 3 * n, reset + i * stride);
        NAME(product)(W_c, n, n, reset, stride, y_c, stride, count);
        for (int i = 0; i < count; i++) {
            const REAL *before = (i < kept ? after : initial) + i * n;
            if (job->activation == MODRELU)
                NAME(gru_row_state)(MODRELU, n, x + i * 3 * n, before, y_c + i * stride, job->b,
                                    gates + i * 3 * n, h + i * n);
            else
                NAME(gru_row_state)(TANH, n, x + i * 3 * n, before, y_c + i * stride, NULL,
                                    gates + i * 3 * n, h + i * n);
        }
    }
    free(y_r);
    return 0;
}

static int NAME(gru_rows_back)(void *data, int first, int last) {
    const NAME(gru_back_job) *job = data;
    const ptrdiff_t n = job->H, stride = NAME(padded)(job->H);
    const REAL *W_gates = job->packed, *W_c = W_gates + NAME(packed_size)(2 * n, n);
    /* what a step hands to the one before it is carry + direct */
    REAL *carry = allocate(2 * (last - first) * stride * sizeof(REAL));
    if (!carry) return OUT_OF_MEMORY;
    REAL *direct = carry + (last - first) * stride;
    REAL *v = carry; /* between the two passes of a step */
    int carried = 0;
    for (Walk at = walk(job->steps, 1); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const int kept =
            rows_between(first, last, at.size < at.before_size ? at.size : at.before_size);
        const ptrdiff_t here = (at.offset + first) * n;
        const REAL *after = job->h + (at.before_offset + first) * n, *initial = job->h0 + first * n;
        const REAL *grad_h = job->grad_h + here, *gates = job->gates + 3 * here;
        const REAL *grad_gates = job->grad_gates ? job->grad_gates + 3 * here : NULL;
        REAL *delta = job->delta + 3 * here, *reset = job->reset + here;
        for (int i = 0; i < count; i++) {
            const REAL *before = (i < kept ? after : initial) + i * n;
            const REAL *carry_i = i < carried ? carry + i * stride : NULL;
            const REAL *grad_i = grad_gates ? grad_gates + i * 3 * n : NULL;
            REAL *grad_b = job->row_grad_b + (first + i) * stride;
            if (job->activation == MODRELU)
                NAME(gru_row_state_back)(MODRELU, n, grad_h + i * n, carry_i, before,
                                         gates + i * 3 * n, grad_i, delta + i * 3 * n,
                                         direct + i * stride, grad_b);
            else
                NAME(gru_row_state_back)(TANH, n, grad_h + i * n, carry_i, before,
                                         gates + i * 3 * n, grad_i, delta + i * 3 * n,
                                         direct + i * stride, NULL);
        }
        NAME(product)(W_c, n, n, delta + 2 * n, 3 * n, v, stride, count);
        for (int i = 0; i < count; i++)
            NAME(gru_row_back)(n, v + i * stride, (i < kept ? after : initial) + i * n,
                               gates + i * 3 * n, grad_gates ? grad_gates + i * 3 * n : NULL,
                               delta + i * 3 * n, direct + i * stride, reset + i * n);
        NAME(product)(W_gates, 2 * n, n, delta, 3 * n, carry, stride, count);
        /* sequences with no step before this one hand their gradient to h0 */
        for (int i = kept; i < count; i++)
            for (int j = 0; j < n; j++)
                job->grad_h0[(first + i) * n + j] = carry[i * stride + j] + direct[i * stride + j];
        carried = kept;
    }
    free(carry);
    return 0;
}

static int NAME(gru)(const Steps *steps, int H, const void *x, const void *h0, const void *W,
                     const void *b, void *h, void *gates, int threads) {
    const size_t size = NAME(packed_size)(H, H);
    REAL *packed = allocate(3 * size * sizeof(REAL));
    if (!packed) return OUT_OF_MEMORY;
    /* y_j = sum_k h_k W_jk for each of the three */
    for (int gate = 0; gate < 3; gate++)
        NAME(pack)(packed + gate * size, (const REAL *)W + (size_t)gate * H * H, 1, H, H, H);
    advise_huge_pages(h, steps->rows * H * sizeof(REAL));
    advise_huge_pages(gates, steps->rows * 3 * H * sizeof(REAL));
    NAME(gru_job) job = {steps, H, b ? MODRELU : TANH, x, h0, b, packed, h, gates};
    const int error = split(NAME(gru_rows), &job, steps, threads);
    free(packed);
    return error;
}

static int NAME(gru_back)(const Steps *steps, int H, const void *grad_h, const void *grad_gates,
                          const void *h, const void *gates, const void *h0, const void *W,
                          const void *b, void *delta, void *grad_h0, void *grad_b, void *reset,
                          int threads) {
    const size_t size = NAME(packed_size)(H, H), sums = (size_t)steps->B * NAME(padded)(H);
    REAL *packed = allocate((3 * size + sums) * sizeof(REAL));
    if (!packed) return OUT_OF_MEMORY;
    REAL *row_grad_b = packed + 3 * size;
    memset(row_grad_b, 0, sums * sizeof(REAL));
    /* y_j = sum_k delta_k W_kj: r and u in one sum, then c */
    NAME(pack)(packed, W, H, 1, 2 * H, H);
    NAME(pack)(packed + 2 * size, (const REAL *)W + (size_t)2 * H * H, H, 1, H, H);
    advise_huge_pages(delta, steps->rows * 3 * H * sizeof(REAL));
    advise_huge_pages(reset, steps->rows * H * sizeof(REAL));
    NAME(gru_back_job) job = {steps, H,  b ? MODRELU : TANH, grad_h, grad_gates, h,
                              gates, h0, packed,             delta,  grad_h0,    row_grad_b,
                              reset};
    const int error = split(NAME(gru_rows_back), &job, steps, threads);
    if (b) NAME(sum_rows)(row_grad_b, steps->B, NAME(padded)(H), grad_b, H);
    free(packed);
    return error;
}
