/* W h of rows of m complex numbers [Re, Im], where W = D3 R2 F^-1 D2 P R1 F D1: phases D, reflections
 * R, a permutation P and the Fourier transform F. LANES rows are computed at once. */

/* A complex number that is the same in all lanes. */
typedef struct {
    REAL re, im;
} NAME(single);

typedef struct {
    NAME(fourier) fourier;
    const int64_t *permutation;    /* (m) */
    const NAME(single) *D;         /* (3, m); the first two are divided by the root of m */
    const NAME(single) *v;         /* (2, m), divided by their largest parts */
    REAL sizes[2], factors[2];     /* what they are divided by, and 2 / v* v, 0 if v is */
    int m;
} NAME(composed);

/* A step of the transposition of LANES rows of LANES numbers: rows and columns whose numbers differ by d
 * change places. */
static INLINE void NAME(exchange)(V *rows, const int d) {
    M odd;
    UNROLL for (int i = 0; i < LANES; i++) odd[i] = i & d ? -1 : 0;
    UNROLL for (int i = 0; i < LANES; i++) {
        if (i & d) continue;
        const V a = rows[i], b = rows[(i | d) % LANES];
        rows[i] = NAME(select)(odd, NAME(swapped)(b, d), a);
        rows[(i | d) % LANES] = NAME(select)(odd, b, NAME(swapped)(a, d));
    }
}

static INLINE void NAME(transpose)(V *rows) {
    if (LANES > 1) NAME(exchange)(rows, 1);
    if (LANES > 2) NAME(exchange)(rows, 2 % LANES);
    if (LANES > 4) NAME(exchange)(rows, 4 % LANES);
    if (LANES > 8) NAME(exchange)(rows, 8 % LANES);
}

/* Rows, and those of them, low, ..., high - 1, that count. */
typedef struct {
    REAL *rows;
    ptrdiff_t stride;
    int low, high;
} NAME(lanes);

/* Row i of numbers in lane i; 0 in the lanes that do not count. */
static void NAME(gather)(const NAME(lanes) *at, int m, NAME(complex) *to) {
    for (int part = 0; part < 2; part++)
        for (int k = 0; k < m; k += LANES) {
            V block[LANES];
            UNROLL for (int i = 0; i < LANES; i++)
                block[i] = i < at->low || i >= at->high
                               ? (V){0}
                               : NAME(take)(at->rows + i * at->stride + part * m + k, m - k);
            NAME(transpose)(block);
            V *target = (V *)(to + k) + part;
            for (int i = 0; i < LANES && i < m - k; i++) target[2 * i] = block[i];
        }
}

/* The way back, in place of what is in the rows or added to it. */
static void NAME(scatter)(const NAME(complex) *from, int m, int added, const NAME(lanes) *at) {
    for (int part = 0; part < 2; part++)
        for (int k = 0; k < m; k += LANES) {
            V block[LANES];
            const V *source = (const V *)(from + k) + part;
            for (int i = 0; i < LANES; i++) block[i] = i < m - k ? source[2 * i] : (V){0};
            NAME(transpose)(block);
            for (int i = at->low; i < at->high; i++) {
                REAL *row = at->rows + i * at->stride + part * m + k;
                NAME(put)(row, added ? NAME(take)(row, m - k) + block[i] : block[i], m - k);
            }
        }
}

/* a v, and conj(a) v */
static INLINE NAME(complex) NAME(times)(NAME(single) a, NAME(complex) v) {
    return (NAME(complex)){a.re * v.re - a.im * v.im, a.re * v.im + a.im * v.re};
}

static INLINE NAME(complex) NAME(inner)(NAME(single) a, NAME(complex) v) {
    return (NAME(complex)){a.re * v.re + a.im * v.im, a.re * v.im - a.im * v.re};
}

/* 2 v* h / (v* v) of a reflection */
static NAME(complex) NAME(part_along)(const NAME(composed) *W, int k, const NAME(complex) *h) {
    const NAME(single) *v = W->v + k * W->m;
    NAME(complex) sum = {(V){0}, (V){0}};
    for (int j = 0; j < W->m; j++) sum = NAME(plus)(sum, NAME(inner)(v[j], h[j]));
    return (NAME(complex)){sum.re * W->factors[k], sum.im * W->factors[k]};
}

/* h without c v */
static INLINE NAME(complex) NAME(reflected)(NAME(complex) h, NAME(single) v, NAME(complex) c) {
    return NAME(minus)(h, NAME(times)(v, c));
}

static INLINE NAME(complex) *NAME(buffer)(const NAME(composed) *W, REAL *work, int k) {
    return (NAME(complex) *)work + (ptrdiff_t)k * W->m;
}

/* F^-1 D2 P R1 F D1 h, of which buffers 0, ..., 3 keep the stages: D1 h, its transform, what the
 * inverse takes and what it gives. */
static void NAME(to_last_reflection)(const NAME(composed) *W, REAL *work) {
    const int m = W->m;
    NAME(complex) *y = NAME(buffer)(W, work, 0), *s = NAME(buffer)(W, work, 1);
    NAME(complex) *q = NAME(buffer)(W, work, 2), *u = NAME(buffer)(W, work, 3);
    NAME(complex) *other = NAME(buffer)(W, work, 4);
    NAME(complex) *few = NAME(buffer)(W, work, COMPOSED_BUFFERS);
    for (int j = 0; j < m; j++) y[j] = NAME(times)(W->D[j], y[j]);
    NAME(transform)(&W->fourier, 0, y, s, other, few);
    const NAME(complex) along = NAME(part_along)(W, 0, s);
    for (int j = 0; j < m; j++) {
        const ptrdiff_t i = W->permutation[j];
        q[j] = NAME(times)(W->D[m + j], NAME(reflected)(s[i], W->v[i], along));
    }
    NAME(transform)(&W->fourier, 1, q, u, other, few);
}

/* y += W h. */
static void NAME(compose)(const NAME(composed) *W, REAL *work, const NAME(lanes) *h,
                          const NAME(lanes) *y) {
    const int m = W->m;
    NAME(complex) *u = NAME(buffer)(W, work, 3);
    NAME(gather)(h, m, NAME(buffer)(W, work, 0));
    NAME(to_last_reflection)(W, work);
    const NAME(complex) along = NAME(part_along)(W, 1, u);
    for (int j = 0; j < m; j++)
        u[j] = NAME(times)(W->D[2 * m + j], NAME(reflected)(u[j], W->v[m + j], along));
    NAME(scatter)(u, m, 1, y);
}

/* Of a number e^{iw} a and its gradient g, that of w, which is Im(g (e^{iw} a)*), grows a sum. */
static INLINE void NAME(add_turn)(V *sum, NAME(complex) g, NAME(complex) turned) {
    *sum += g.im * turned.re - g.re * turned.im;
}

/* The gradient g of h - v (2 v* h / (v* v)) becomes that of h, and the sums grow by that of v. */
static void NAME(reflect_back)(const NAME(composed) *W, int k, const NAME(complex) *h,
                               NAME(complex) *g, V *of_v) {
    const int m = W->m;
    const NAME(single) *v = W->v + k * m;
    const NAME(complex) c = NAME(part_along)(W, k, h), d = NAME(part_along)(W, k, g);
    const V both = d.re * c.re + d.im * c.im;
    for (int j = 0; j < m; j++) {
        /* both v - conj(c) g - conj(d) h */
        const NAME(complex) a = g[j], b = h[j];
        of_v[j] += both * v[j].re - (c.re * a.re + c.im * a.im) - (d.re * b.re + d.im * b.im);
        of_v[m + j] += both * v[j].im - (c.re * a.im - c.im * a.re) - (d.re * b.im - d.im * b.re);
        g[j] = NAME(reflected)(a, v[j], d);
    }
}

/* From rows h and the gradients delta of W h: those of h, in place of what is in their rows, and the
 * sums grow, for w, (3, m), and for v, (2, 2, m). */
static void NAME(compose_back)(const NAME(composed) *W, REAL *work, const NAME(lanes) *h,
                               const NAME(lanes) *delta, const NAME(lanes) *grad_h, V *sums) {
    const int m = W->m;
    const NAME(complex) *y = NAME(buffer)(W, work, 0), *s = NAME(buffer)(W, work, 1);
    const NAME(complex) *q = NAME(buffer)(W, work, 2), *u = NAME(buffer)(W, work, 3);
    NAME(complex) *other = NAME(buffer)(W, work, 4), *g = NAME(buffer)(W, work, 5);
    NAME(complex) *p = NAME(buffer)(W, work, 6), *few = NAME(buffer)(W, work, COMPOSED_BUFFERS);
    V *of_v = sums + 3 * m;
    NAME(gather)(h, m, NAME(buffer)(W, work, 0));
    NAME(to_last_reflection)(W, work);
    NAME(gather)(delta, m, g);
    const NAME(complex) along = NAME(part_along)(W, 1, u);
    for (int j = 0; j < m; j++) {
        g[j] = NAME(inner)(W->D[2 * m + j], g[j]);
        NAME(add_turn)(sums + 2 * m + j, g[j], NAME(reflected)(u[j], W->v[m + j], along));
    }
    NAME(reflect_back)(W, 1, u, g, of_v + 2 * m);
    NAME(transform)(&W->fourier, 0, g, p, other, few);
    for (int j = 0; j < m; j++) {
        NAME(add_turn)(sums + m + j, p[j], q[j]);
        g[W->permutation[j]] = NAME(inner)(W->D[m + j], p[j]);
    }
    NAME(reflect_back)(W, 0, s, g, of_v);
    NAME(transform)(&W->fourier, 1, g, p, other, few);
    for (int j = 0; j < m; j++) {
        NAME(add_turn)(sums + j, p[j], y[j]);
        p[j] = NAME(inner)(W->D[j], p[j]);
    }
    NAME(scatter)(p, m, 0, grad_h);
}

/* Room for it, in both rounds of an arena; in the second it is also computed. */
static NAME(composed) NAME(room_for_composed)(Arena *arena, const Composition *all, int m) {
    NAME(composed) W = {.m = m, .permutation = all->permutation};
    REAL *cos_k = room(arena, m * sizeof(REAL)), *sin_k = room(arena, m * sizeof(REAL));
    NAME(single) *D = room(arena, 3 * m * sizeof(*D)), *v = room(arena, 2 * m * sizeof(*v));
    W.fourier = (NAME(fourier)){.m = m, .stages = (int)all->stages, .radices = all->radices,
                                .cos = cos_k, .sin = sin_k};
    for (int s = 0; s < W.fourier.stages; s++)
        if (all->radices[s] > W.fourier.most) W.fourier.most = (int)all->radices[s];
    W.D = D, W.v = v;
    if (!arena->memory) return W;
    const REAL *w = all->w, *parts = all->v;
    const double root = sqrt(m);
    for (int k = 0; k < m; k++) {
        sin_k[k] = (REAL)NAME(sine_of_quarters)(4 * (int64_t)k, m);
        cos_k[k] = (REAL)NAME(sine_of_quarters)(4 * (int64_t)k + m, m);
    }
    for (int k = 0; k < 3 * m; k++) {
        const double scale = k < 2 * m ? 1 / root : 1;
        D[k] = (NAME(single)){(REAL)(scale * cos(w[k])), (REAL)(scale * sin(w[k]))};
    }
    for (int k = 0; k < 2; k++, parts += 2 * m) {
        REAL largest = 0, square = 0;
        for (int j = 0; j < 2 * m; j++) {
            const REAL size = parts[j] < 0 ? -parts[j] : parts[j];
            if (size > largest) largest = size;
        }
        W.sizes[k] = largest == 0 ? 1 : largest;
        for (int j = 0; j < m; j++) {
            const NAME(single) one = {parts[j] / W.sizes[k], parts[m + j] / W.sizes[k]};
            v[k * m + j] = one;
            square += one.re * one.re + one.im * one.im;
        }
        W.factors[k] = square == 0 ? 0 : 2 / square;
    }
    return W;
}

/* How many numbers a thread computes with: buffers, and room for a stage of an odd radix. */
static size_t NAME(composed_work)(const NAME(composed) *W) {
    return ((size_t)COMPOSED_BUFFERS * W->m + W->fourier.most) * 2 * LANES;
}

/* The gradients from the sums of all rows. */
static void NAME(gradients_of_composed)(const NAME(composed) *W, const REAL *sums,
                                        const Composition *all) {
    const int m = W->m;
    REAL *grad_v = all->grad_v;
    memcpy(all->grad_w, sums, 3 * m * sizeof(REAL));
    for (int j = 0; j < 4 * m; j++) grad_v[j] = sums[3 * m + j] / W->sizes[j / (2 * m)];
}
