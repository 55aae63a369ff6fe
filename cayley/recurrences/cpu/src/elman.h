/* h_t = phi(x_t + W h_{t-1}; b) and its gradient. */

typedef struct {
    const Steps *steps;
    int H, activation;
    const REAL *x, *h0, *b, *packed;
    REAL *h, *z;
} NAME(elman_job);

typedef struct {
    const Steps *steps;
    int H, activation;
    const REAL *grad_h, *grad_z, *h, *z, *b, *packed;
    REAL *delta, *grad_h0, *row_grad_b;
} NAME(elman_back_job);

static INLINE V NAME(activate)(const int activation, V z, V b) {
    switch (activation) {
    case MODRELU: {
        const V a = NAME(absolute)(z) + b;
        /* comparisons that let a NaN through; sgn(0) = 0 */
        const V clipped = NAME(select)(a < 0, (V){0}, a);
        return NAME(select)(z == 0, (V){0}, NAME(with_sign_of)(clipped, z));
    }
    case RELU: return NAME(select)(z < 0, (V){0}, z);
    case LEAKY_RELU: return NAME(select)(z > 0, z, z * (REAL)NEGATIVE_SLOPE);
    case TANH: return NAME(tanh)(z);
    default: return z;
    }
}

/* The gradient with respect to z, from that with respect to h. */
static INLINE V NAME(pull_back)(const int activation, V g, V h) {
    switch (activation) {
    case MODRELU: return NAME(select)(h != 0, g, (V){0});
    case RELU: return NAME(select)(h > 0, g, (V){0});
    case LEAKY_RELU: return NAME(select)(h > 0, g, g * (REAL)NEGATIVE_SLOPE);
    case TANH: return g * ((REAL)1 - h * h);
    default: return g;
    }
}

/* One row: h = phi(x + y; b). */
static INLINE void NAME(elman_row)(const int activation, int n, const REAL *x, const REAL *y,
                                   const REAL *b, REAL *h) {
    for (int j = 0; j < n; j += LANES) {
        const V z = NAME(take)(x + j, n - j) + NAME(load)(y + j);
        const V threshold = activation == MODRELU ? NAME(take)(b + j, n - j) : (V){0};
        NAME(put)(h + j, NAME(activate)(activation, z, threshold), n - j);
    }
}

/* One row of complex numbers [Re, Im], m of each; z is kept. */
static INLINE void NAME(elman_row_stacked)(int m, const REAL *x, const REAL *y, const REAL *b,
                                           REAL *h, REAL *z) {
    for (int j = 0; j < m; j += LANES) {
        const int left = m - j;
        const V re = NAME(take)(x + j, left) + NAME(take)(y + j, left);
        const V im = NAME(take)(x + m + j, left) + NAME(take)(y + m + j, left);
        const V r = NAME(square_root)(re * re + im * im + (REAL)EPSILON);
        const V a = r + NAME(take)(b + j, left);
        const V scale = NAME(select)(a < 0, (V){0}, a) / (r + (REAL)EPSILON);
        NAME(put)(z + j, re, left);
        NAME(put)(z + m + j, im, left);
        NAME(put)(h + j, re * scale, left);
        NAME(put)(h + m + j, im * scale, left);
    }
}

/* One row: delta = phi'(h)^T (g + carry), and what it adds to the gradient of b. */
static INLINE void NAME(elman_row_back)(const int activation, int n, const REAL *g,
                                        const REAL *carry, const REAL *h, REAL *delta,
                                        REAL *grad_b) {
    for (int j = 0; j < n; j += LANES) {
        V total = NAME(take)(g + j, n - j);
        if (carry) total += NAME(load)(carry + j);
        const V state = NAME(take)(h + j, n - j);
        const V d = NAME(pull_back)(activation, total, state);
        if (activation == MODRELU)
            NAME(store)(grad_b + j,
                        NAME(load)(grad_b + j) + NAME(with_sign_of)(NAME(all)(1), state) * d);
        NAME(put)(delta + j, d, n - j);
    }
}

static INLINE void NAME(elman_row_stacked_back)(int m, const REAL *g, const REAL *carry,
                                                const REAL *z, const REAL *b, REAL *delta,
                                                REAL *grad_b) {
    for (int j = 0; j < m; j += LANES) {
        const int left = m - j;
        V g_re = NAME(take)(g + j, left), g_im = NAME(take)(g + m + j, left);
        if (carry) {
            g_re += NAME(take)(carry + j, left);
            g_im += NAME(take)(carry + m + j, left);
        }
        const V re = NAME(take)(z + j, left), im = NAME(take)(z + m + j, left);
        const V threshold = NAME(take)(b + j, left);
        const V r = NAME(square_root)(re * re + im * im + (REAL)EPSILON);
        const V s = r + (REAL)EPSILON;
        const M active = r + threshold > 0;
        /* <z, g> / (r + eps): what the gradient says about the modulus */
        const V radial = NAME(select)(active, (re * g_re + im * g_im) / s, (V){0});
        const V scale = NAME(select)(active, (r + threshold) / s, (V){0});
        const V curvature = radial * ((REAL)EPSILON - threshold) / (r * s);
        NAME(put)(delta + j, g_re * scale + re * curvature, left);
        NAME(put)(delta + m + j, g_im * scale + im * curvature, left);
        NAME(put)(grad_b + j, NAME(take)(grad_b + j, left) + radial, left);
    }
}

/* The activation is a constant in each of these loops over rows. */
#define ROWS(kind)                                                                              \
    case kind:                                                                                  \
        for (int i = 0; i < count; i++)                                                         \
            NAME(elman_row)(kind, n, x + i * n, y + i * stride, job->b, h + i * n);             \
        break;

static int NAME(elman_rows)(void *data, int first, int last) {
    const NAME(elman_job) *job = data;
    const ptrdiff_t n = job->H, stride = NAME(padded)(job->H);
    REAL *y_all = allocate((last - first) * stride * sizeof(REAL));
    if (!y_all) return OUT_OF_MEMORY;
    for (Walk at = walk(job->steps, 0); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const int kept = rows_between(first, last, at.size < at.before_size ? at.size : at.before_size);
        REAL *y = y_all, *h = job->h + (at.offset + first) * n;
        const REAL *x = job->x + (at.offset + first) * n;
        NAME(product)(job->packed, n, n, job->h + (at.before_offset + first) * n, n, y, stride, kept);
        NAME(product)(job->packed, n, n, job->h0 + (first + kept) * n, n, y + kept * stride, stride,
                      count - kept);
        switch (job->activation) {
            ROWS(MODRELU)
            ROWS(RELU)
            ROWS(LEAKY_RELU)
            ROWS(TANH)
            ROWS(IDENTITY)
        default:
            for (int i = 0; i < count; i++)
                NAME(elman_row_stacked)(n / 2, x + i * n, y + i * stride, job->b, h + i * n,
                                        job->z + (at.offset + first + i) * n);
        }
    }
    free(y_all);
    return 0;
}
#undef ROWS

#define ROWS(kind)                                                                              \
    case kind:                                                                                  \
        for (int i = 0; i < count; i++)                                                         \
            NAME(elman_row_back)(kind, n, g + i * n, i < carried ? carry + i * stride : NULL,   \
                                 h + i * n, delta + i * n, grad_b + i * stride);                \
        break;

static int NAME(elman_rows_back)(void *data, int first, int last) {
    const NAME(elman_back_job) *job = data;
    const ptrdiff_t n = job->H, stride = NAME(padded)(job->H);
    REAL *carry = allocate((last - first) * stride * sizeof(REAL));
    if (!carry) return OUT_OF_MEMORY;
    REAL *grad_b = job->row_grad_b + first * stride;
    int carried = 0;
    for (Walk at = walk(job->steps, 1); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const ptrdiff_t here = (at.offset + first) * n;
        const REAL *g = job->grad_h + here, *h = job->h + here;
        REAL *delta = job->delta + here;
        switch (job->activation) {
            ROWS(MODRELU)
            ROWS(RELU)
            ROWS(LEAKY_RELU)
            ROWS(TANH)
            ROWS(IDENTITY)
        default:
            for (int i = 0; i < count; i++)
                NAME(elman_row_stacked_back)(n / 2, g + i * n, i < carried ? carry + i * stride : NULL,
                                             job->z + here + i * n, job->b, delta + i * n,
                                             grad_b + i * stride);
        }
        if (job->grad_z)
            for (ptrdiff_t i = 0; i < count * n; i++) delta[i] += job->grad_z[here + i];
        NAME(product)(job->packed, n, n, delta, n, carry, stride, count);
        /* sequences with no step before this one hand their gradient to h0 */
        carried = rows_between(first, last, at.size < at.before_size ? at.size : at.before_size);
        for (int i = carried; i < count; i++)
            memcpy(job->grad_h0 + (first + i) * n, carry + i * stride, n * sizeof(REAL));
    }
    free(carry);
    return 0;
}
#undef ROWS

static int NAME(elman)(const Steps *steps, int H, int activation, const void *x, const void *h0,
                       const void *W, const void *b, void *h, void *z, int threads) {
    REAL *packed = allocate(NAME(packed_size)(H, H) * sizeof(REAL));
    if (!packed) return OUT_OF_MEMORY;
    /* y_j = sum_k h_k W_jk */
    NAME(pack)(packed, W, 1, H, H, H);
    advise_huge_pages(h, steps->rows * H * sizeof(REAL));
    NAME(elman_job) job = {steps, H, activation, x, h0, b, packed, h, z};
    const int error = split(NAME(elman_rows), &job, steps, threads);
    free(packed);
    return error;
}

static int NAME(elman_back)(const Steps *steps, int H, int activation, const void *grad_h,
                            const void *grad_z, const void *h, const void *z, const void *W,
                            const void *b, void *delta, void *grad_h0, void *grad_b, int threads) {
    const size_t sums = (size_t)steps->B * NAME(padded)(H);
    REAL *packed = allocate((NAME(packed_size)(H, H) + sums) * sizeof(REAL));
    if (!packed) return OUT_OF_MEMORY;
    REAL *row_grad_b = packed + NAME(packed_size)(H, H);
    memset(row_grad_b, 0, sums * sizeof(REAL));
    /* y_j = sum_k delta_k W_kj */
    NAME(pack)(packed, W, H, 1, H, H);
    advise_huge_pages(delta, steps->rows * H * sizeof(REAL));
    NAME(elman_back_job) job = {steps,  H, activation, grad_h, grad_z,  h,
                                z,      b, packed,     delta,  grad_h0, row_grad_b};
    const int error = split(NAME(elman_rows_back), &job, steps, threads);
    if (b) NAME(sum_rows)(row_grad_b, steps->B, NAME(padded)(H), grad_b,
                          activation == MODRELU ? H : H / 2);
    free(packed);
    return error;
}
