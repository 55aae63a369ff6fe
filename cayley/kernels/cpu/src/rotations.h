/* W h of rows of m complex numbers [Re, Im], where W is a product of layers that turn pairs of them:
 *
 *     h_k <- (a_k + i b_k) (c_k h_k + s_k h_p),   p the partner of k.
 *
 * The first layer is applied last; it is the diagonal, which has no pairs. */

typedef struct {
    int begin, end, stride; /* from, to; of the diagonal the stride is 0 */
    const REAL *c, *s, *a, *b; /* (m) */
} NAME(layer);

typedef struct {
    int m, count;
    NAME(layer) *layers;
} NAME(turns);

/* v with lane i where lane i ^ stride was. */
static INLINE V NAME(swapped)(V v, const int stride) {
    V w;
    UNROLL for (int i = 0; i < LANES; i++) w[i] = v[i ^ stride];
    return w;
}

/* Complex numbers of some coordinates, and what a layer does to them. */
typedef struct {
    V re, im;
} NAME(complex);

typedef struct {
    V c, s, a, b;
} NAME(turn);

static INLINE NAME(turn) NAME(turn_at)(const NAME(layer) *layer, int j, int left) {
    return (NAME(turn)){NAME(take)(layer->c + j, left), NAME(take)(layer->s + j, left),
                        NAME(take)(layer->a + j, left), NAME(take)(layer->b + j, left)};
}

static INLINE NAME(complex) NAME(numbers_at)(const REAL *row, int m, int j, int left) {
    return (NAME(complex)){NAME(take)(row + j, left), NAME(take)(row + m + j, left)};
}

static INLINE void NAME(put_numbers)(REAL *row, int m, int j, int left, NAME(complex) v) {
    NAME(put)(row + j, v.re, left);
    NAME(put)(row + m + j, v.im, left);
}

static INLINE NAME(complex) NAME(turned)(NAME(complex) v, NAME(complex) other, NAME(turn) by) {
    const V re = by.c * v.re + by.s * other.re, im = by.c * v.im + by.s * other.im;
    return (NAME(complex)){by.a * re - by.b * im, by.a * im + by.b * re};
}

/* v without the phase of its layer. */
static INLINE NAME(complex) NAME(unphased)(NAME(complex) v, NAME(turn) by) {
    return (NAME(complex)){by.a * v.re + by.b * v.im, by.a * v.im - by.b * v.re};
}

static INLINE NAME(complex) NAME(unturned)(NAME(complex) v, NAME(complex) other, NAME(turn) by) {
    return (NAME(complex)){by.c * v.re - by.s * other.re, by.c * v.im - by.s * other.im};
}

/* One layer of a row of m numbers. Pairs with a short stride are within a register. */
static INLINE void NAME(turn_layer)(const NAME(layer) *layer, const int stride, int m, REAL *row) {
    for (int j = layer->begin; j < layer->end; j += LANES) {
        const NAME(turn) by = NAME(turn_at)(layer, j, layer->end - j);
        const NAME(complex) v = NAME(numbers_at)(row, m, j, layer->end - j);
        const NAME(complex) other = {NAME(swapped)(v.re, stride), NAME(swapped)(v.im, stride)};
        NAME(put_numbers)(row, m, j, layer->end - j, NAME(turned)(v, other, by));
    }
}

static INLINE void NAME(turn_far)(const NAME(layer) *layer, int stride, int m, REAL *row) {
    for (int block = layer->begin; block < layer->end; block += 2 * stride)
        for (int j = block; j < block + stride; j += LANES) {
            const int k = j + stride;
            const NAME(complex) v = NAME(numbers_at)(row, m, j, LANES);
            const NAME(complex) other = NAME(numbers_at)(row, m, k, LANES);
            const NAME(turn) by = NAME(turn_at)(layer, j, LANES);
            const NAME(turn) by_other = NAME(turn_at)(layer, k, LANES);
            NAME(put_numbers)(row, m, j, LANES, NAME(turned)(v, other, by));
            NAME(put_numbers)(row, m, k, LANES, NAME(turned)(other, v, by_other));
        }
}

/* The same backwards for a row h and its gradient g, and what they add to the gradients of angles and
 * phases: Im(g h*) to those of phases, Re(g p*) to those of angles, where p is the partner. */
static INLINE void NAME(turn_layer_back)(const NAME(layer) *layer, const int stride, int m, REAL *h,
                                         REAL *g, REAL *of_angles, REAL *of_phases) {
    for (int j = layer->begin; j < layer->end; j += LANES) {
        const int left = layer->end - j;
        const NAME(turn) by = NAME(turn_at)(layer, j, left);
        const NAME(complex) v = NAME(unphased)(NAME(numbers_at)(h, m, j, left), by);
        const NAME(complex) d = NAME(unphased)(NAME(numbers_at)(g, m, j, left), by);
        NAME(add)(of_phases + j, d.im * v.re - d.re * v.im, left);
        const NAME(complex) other = {NAME(swapped)(v.re, stride), NAME(swapped)(v.im, stride)};
        const NAME(complex) d_other = {NAME(swapped)(d.re, stride), NAME(swapped)(d.im, stride)};
        NAME(add)(of_angles + j, d.re * other.re + d.im * other.im, left);
        NAME(put_numbers)(h, m, j, left, NAME(unturned)(v, other, by));
        NAME(put_numbers)(g, m, j, left, NAME(unturned)(d, d_other, by));
    }
}

static INLINE void NAME(turn_far_back)(const NAME(layer) *layer, int stride, int m, REAL *h, REAL *g,
                                       REAL *of_angles, REAL *of_phases) {
    for (int block = layer->begin; block < layer->end; block += 2 * stride)
        for (int j = block; j < block + stride; j += LANES) {
            const int k = j + stride;
            const NAME(turn) by = NAME(turn_at)(layer, j, LANES);
            const NAME(turn) by_other = NAME(turn_at)(layer, k, LANES);
            const NAME(complex) v = NAME(unphased)(NAME(numbers_at)(h, m, j, LANES), by);
            const NAME(complex) d = NAME(unphased)(NAME(numbers_at)(g, m, j, LANES), by);
            const NAME(complex) other = NAME(unphased)(NAME(numbers_at)(h, m, k, LANES), by_other);
            const NAME(complex) d_other = NAME(unphased)(NAME(numbers_at)(g, m, k, LANES), by_other);
            NAME(add)(of_phases + j, d.im * v.re - d.re * v.im, LANES);
            NAME(add)(of_phases + k, d_other.im * other.re - d_other.re * other.im, LANES);
            NAME(add)(of_angles + j, d.re * other.re + d.im * other.im, LANES);
            NAME(add)(of_angles + k, d_other.re * v.re + d_other.im * v.im, LANES);
            NAME(put_numbers)(h, m, j, LANES, NAME(unturned)(v, other, by));
            NAME(put_numbers)(h, m, k, LANES, NAME(unturned)(other, v, by_other));
            NAME(put_numbers)(g, m, j, LANES, NAME(unturned)(d, d_other, by));
            NAME(put_numbers)(g, m, k, LANES, NAME(unturned)(d_other, d, by_other));
        }
}

/* The stride is a constant in each case. Those that no register holds are never met, but compiled:
 * their remainder keeps lanes in range. */
#define NEAR(function, ...)                                                           \
    case 0: NAME(function)(layer, 0, __VA_ARGS__); break;                             \
    case 1: NAME(function)(layer, 1, __VA_ARGS__); break;                             \
    case 2: if (LANES > 2) NAME(function)(layer, 2 % LANES, __VA_ARGS__); break;      \
    case 4: if (LANES > 4) NAME(function)(layer, 4 % LANES, __VA_ARGS__); break;      \
    case 8: if (LANES > 8) NAME(function)(layer, 8 % LANES, __VA_ARGS__); break;

/* row = W row. */
static void NAME(turn_row)(const NAME(turns) *turns, REAL *row) {
    for (int l = turns->count - 1; l >= 0; l--) {
        const NAME(layer) *layer = &turns->layers[l];
        if (layer->stride >= LANES)
            NAME(turn_far)(layer, layer->stride, turns->m, row);
        else
            switch (layer->stride) { NEAR(turn_layer, turns->m, row) }
    }
}

/* From h = W row and the gradient g of it: h becomes the row again and g its gradient, and the sums
 * grow, (2, layers, m): of all angles, and of all phases. */
static void NAME(turn_row_back)(const NAME(turns) *turns, REAL *h, REAL *g, REAL *sums) {
    const int m = turns->m;
    for (int l = 0; l < turns->count; l++) {
        const NAME(layer) *layer = &turns->layers[l];
        REAL *of_angles = sums + (ptrdiff_t)l * m, *of_phases = of_angles + (ptrdiff_t)turns->count * m;
        if (layer->stride >= LANES)
            NAME(turn_far_back)(layer, layer->stride, m, h, g, of_angles, of_phases);
        else
            switch (layer->stride) { NEAR(turn_layer_back, m, h, g, of_angles, of_phases) }
    }
}

#undef NEAR

static INLINE REAL NAME(cosine)(REAL x) { return sizeof(REAL) == 4 ? cosf(x) : cos(x); }
static INLINE REAL NAME(sine)(REAL x) { return sizeof(REAL) == 4 ? sinf(x) : sin(x); }

/* Room for turns, in both rounds of an arena; in the second they are also computed. */
static NAME(turns) NAME(room_for_turns)(Arena *arena, const Rotations *all, int m) {
    NAME(turns) turns = {.m = m, .count = (int)all->layers + 1};
    turns.layers = room(arena, turns.count * sizeof(NAME(layer)));
    const REAL *theta = all->theta, *phi = all->phi, *omega = all->omega;
    for (int l = 0; l < turns.count; l++) {
        REAL *c = room(arena, m * sizeof(REAL)), *s = room(arena, m * sizeof(REAL));
        REAL *a = room(arena, m * sizeof(REAL)), *b = room(arena, m * sizeof(REAL));
        if (!arena->memory) continue;
        NAME(layer) *layer = &turns.layers[l];
        *layer = (NAME(layer)){.end = m, .c = c, .s = s, .a = a, .b = b};
        if (l == 0) {
            for (int j = 0; j < m; j++)
                c[j] = 1, a[j] = NAME(cosine)(omega[j]), b[j] = NAME(sine)(omega[j]);
            continue;
        }
        layer->begin = (int)all->offsets[l - 1], layer->stride = (int)all->strides[l - 1];
        layer->end = layer->begin + 2 * (int)all->blocks[l - 1] * layer->stride;
        for (int block = layer->begin; block < layer->end; block += 2 * layer->stride)
            for (int j = block; j < block + layer->stride; j++, theta++, phi++) {
                const int k = j + layer->stride;
                c[j] = c[k] = NAME(cosine)(*theta);
                s[j] = -(s[k] = NAME(sine)(*theta));
                a[j] = NAME(cosine)(*phi), b[j] = NAME(sine)(*phi);
                a[k] = 1;
            }
    }
    return turns;
}

/* The gradients of angles and phases from the sums of all rows: to turn further moves the first of a
 * pair along minus its partner, and the second along its partner. */
static void NAME(gradients_of_turns)(const NAME(turns) *turns, const REAL *sums, const Rotations *all) {
    const int m = turns->m;
    const REAL *of_phases = sums + (ptrdiff_t)turns->count * m;
    REAL *theta = all->grad_theta, *phi = all->grad_phi;
    memcpy(all->grad_omega, of_phases, m * sizeof(REAL));
    for (int l = 1; l < turns->count; l++) {
        const NAME(layer) *layer = &turns->layers[l];
        const REAL *angle = sums + (ptrdiff_t)l * m, *phase = of_phases + (ptrdiff_t)l * m;
        for (int block = layer->begin; block < layer->end; block += 2 * layer->stride)
            for (int j = block; j < block + layer->stride; j++) {
                *theta++ = angle[j + layer->stride] - angle[j];
                *phi++ = phase[j];
            }
    }
}
