/* Fourier transforms of m complex numbers, of LANES vectors at once: number k of all is in one register
 * for the real and one for the imaginary parts. m is a product of radices.
 *
 * They are Stockham's: a stage reads one buffer and fills another, and the numbers end up in order.
 * Nothing is divided by a power of m. */

typedef struct {
    int m, stages, most; /* most: the largest radix */
    const int64_t *radices;
    const REAL *cos, *sin; /* of 2 pi k / m, (m) */
} NAME(fourier);

/* The sine of a / m quarters of a circle, a < 8 m, by an angle of at most an eighth of it. */
static double NAME(sine_of_quarters)(int64_t a, int64_t m) {
    const double unit = 1.5707963267948966 / m;
    double sign = 1;
    a %= 4 * m;
    if (a > 2 * m) a = 4 * m - a, sign = -1;
    if (a > m) a = 2 * m - a;
    return sign * (2 * a > m ? cos(unit * (m - a)) : sin(unit * a));
}

/* Where a stage reads and writes. The inverse transform is the same with real and imaginary parts
 * exchanged. */
typedef struct {
    const V *from_re, *from_im;
    V *re, *im;
} NAME(buffers);

static INLINE NAME(complex) NAME(read)(const NAME(buffers) *at, ptrdiff_t k) {
    return (NAME(complex)){at->from_re[2 * k], at->from_im[2 * k]};
}

/* Number k becomes v e^(-2 pi i t / m). */
static INLINE void NAME(write)(const NAME(fourier) *f, const NAME(buffers) *at, ptrdiff_t k, ptrdiff_t t,
                               NAME(complex) v) {
    const REAL c = f->cos[t], s = f->sin[t];
    at->re[2 * k] = v.re * c + v.im * s;
    at->im[2 * k] = v.im * c - v.re * s;
}

static INLINE NAME(complex) NAME(plus)(NAME(complex) a, NAME(complex) b) {
    return (NAME(complex)){a.re + b.re, a.im + b.im};
}

static INLINE NAME(complex) NAME(minus)(NAME(complex) a, NAME(complex) b) {
    return (NAME(complex)){a.re - b.re, a.im - b.im};
}

/* a - i b */
static INLINE NAME(complex) NAME(minus_turned)(NAME(complex) a, NAME(complex) b) {
    return (NAME(complex)){a.re + b.im, a.im - b.re};
}

/* A stage of radix r, after stages whose radices have the product `stride`: of the numbers p + j n / r
 * of each of `stride` interleaved sequences of n, it makes r sums for every p. */
#define EACH_OF_STAGE                                                       \
    for (ptrdiff_t p = 0, n_r = f->m / (stride * r); p < n_r; p++)          \
        for (ptrdiff_t q = 0; q < stride; q++)
#define TAKEN(j) NAME(read)(at, q + stride * (p + n_r * (j)))
#define GIVEN(k, v) NAME(write)(f, at, q + stride * (r * p + (k)), p * (k) * stride, v)

static void NAME(stage_of_two)(const NAME(fourier) *f, const NAME(buffers) *at, ptrdiff_t stride) {
    const int r = 2;
    EACH_OF_STAGE {
        const NAME(complex) a = TAKEN(0), b = TAKEN(1);
        GIVEN(0, NAME(plus)(a, b));
        GIVEN(1, NAME(minus)(a, b));
    }
}

static void NAME(stage_of_four)(const NAME(fourier) *f, const NAME(buffers) *at, ptrdiff_t stride) {
    const int r = 4;
    EACH_OF_STAGE {
        const NAME(complex) a = TAKEN(0), b = TAKEN(1), c = TAKEN(2), d = TAKEN(3);
        const NAME(complex) even = NAME(plus)(a, c), odd = NAME(plus)(b, d);
        const NAME(complex) across = NAME(minus)(a, c), turned = NAME(minus)(b, d);
        const NAME(complex) minus = {-turned.re, -turned.im};
        GIVEN(0, NAME(plus)(even, odd));
        GIVEN(1, NAME(minus_turned)(across, turned));
        GIVEN(2, NAME(minus)(even, odd));
        GIVEN(3, NAME(minus_turned)(across, minus));
    }
}

/* An odd radix. The terms j and r - j have the same cosine and the opposite sine, and so have the
 * results k and r - k. `few` has room for r - 1 numbers. */
static void NAME(stage_of_odd)(const NAME(fourier) *f, const NAME(buffers) *at, ptrdiff_t stride,
                               const int r, NAME(complex) *few) {
    const int pairs = r / 2;
    const ptrdiff_t root = f->m / r;
    NAME(complex) *sums = few, *differences = few + pairs;
    EACH_OF_STAGE {
        const NAME(complex) first = TAKEN(0);
        NAME(complex) all = first;
        for (int j = 1; j <= pairs; j++) {
            const NAME(complex) a = TAKEN(j), b = TAKEN(r - j);
            sums[j - 1] = NAME(plus)(a, b);
            differences[j - 1] = NAME(minus)(a, b);
            all = NAME(plus)(all, sums[j - 1]);
        }
        GIVEN(0, all);
        for (int k = 1; k <= pairs; k++) {
            NAME(complex) even = first, odd = {(V){0}, (V){0}};
            for (int j = 1, t = 0; j <= pairs; j++) {
                t = t + k < r ? t + k : t + k - r;
                const REAL c = f->cos[t * root], s = f->sin[t * root];
                even.re += c * sums[j - 1].re;
                even.im += c * sums[j - 1].im;
                odd.re += s * differences[j - 1].re;
                odd.im += s * differences[j - 1].im;
            }
            const NAME(complex) minus = {-odd.re, -odd.im};
            GIVEN(k, NAME(minus_turned)(even, odd));
            GIVEN(r - k, NAME(minus_turned)(even, minus));
        }
    }
}

#undef EACH_OF_STAGE
#undef TAKEN
#undef GIVEN

/* to = F from, or without a division F^-1 from. The three buffers differ. */
static void NAME(transform)(const NAME(fourier) *f, int inverse, const NAME(complex) *from,
                            NAME(complex) *to, NAME(complex) *other, NAME(complex) *few) {
    ptrdiff_t stride = 1;
    for (int s = 0; s < f->stages; s++) {
        NAME(complex) *into = (f->stages - s) % 2 ? to : other;
        const int r = (int)f->radices[s];
        const V *source = (const V *)from;
        V *target = (V *)into;
        const NAME(buffers) at = {source + inverse, source + 1 - inverse, target + inverse,
                                  target + 1 - inverse};
        if (r == 2)
            NAME(stage_of_two)(f, &at, stride);
        else if (r == 4)
            NAME(stage_of_four)(f, &at, stride);
        else
            NAME(stage_of_odd)(f, &at, stride, r, few);
        stride *= r;
        from = into;
    }
}
