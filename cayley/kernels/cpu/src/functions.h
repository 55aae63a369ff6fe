/* Exponential functions of vectors, right to a few units in the last place. */

#define EXPONENT_BIAS (sizeof(REAL) == 4 ? 127 : 1023)
#define FRACTION_BITS (sizeof(REAL) == 4 ? 23 : 52)
/* the last whole x before e^x overflows; e^-x - 1 is -1 and 1 / e^x is flushed to 0 from there on */
#define EXPONENT_LIMIT (sizeof(REAL) == 4 ? (REAL)88 : (REAL)709)

/* 2^k for whole k in the range of the exponent. */
static INLINE V NAME(power_of_two)(M k) { return (V)((k + EXPONENT_BIAS) << FRACTION_BITS); }

/* e^x - 1 = 2^k (e^r - 1) + (2^k - 1) with x = k ln 2 + r, |r| <= ln(2)/2, and the series of e^r - 1;
 * right also in relative terms where x is small, since k is 0 there. |x| is cut at the limit; a NaN
 * stays one. */
static INLINE V NAME(expm1)(V x) {
    const V limit = NAME(all)(EXPONENT_LIMIT);
    x = NAME(select)(x > limit, limit, NAME(select)(x < -limit, -limit, x));
    /* adding and taking away 1.5 * 2^FRACTION_BITS rounds to a whole number */
    const V magic = NAME(all)((REAL)1.5 * (REAL)((INT)1 << FRACTION_BITS));
    const V shifted = x * (REAL)1.44269504088896340736 + magic;
    const V whole = shifted - magic;
    const M k = (M)shifted - (M)magic;
    /* ln 2 in two parts, the first short enough that its product with k is exact */
    const REAL high = sizeof(REAL) == 4 ? (REAL)0.693359375 : (REAL)0x1.62e42fee00000p-1;
    const REAL low = sizeof(REAL) == 4 ? (REAL)-2.12194440054690583e-4
                                       : (REAL)1.90821492927058770002e-10;
    const V r = (x - whole * high) - whole * low;
    V sum = NAME(all)(0);
    const int terms = sizeof(REAL) == 4 ? 8 : 14;
    static const double factorials[] = {1,     1,      2,       6,        24,        120,       720,
                                        5040,  40320,  362880,  3628800,  39916800,  479001600,
                                        6227020800., 87178291200.};
    UNROLL for (int i = terms; i >= 2; i--) sum = sum * r + (REAL)(1 / factorials[i]);
    const V series = sum * r * r + r;
    const V scale = NAME(power_of_two)(k);
    return scale * series + (scale - (REAL)1);
}

static INLINE V NAME(tanh)(V x) {
    const V e = NAME(expm1)(x + x);
    return e / (e + (REAL)2);
}

static INLINE V NAME(sigmoid)(V x) { return (REAL)1 / (NAME(expm1)(-x) + (REAL)2); }

static INLINE V NAME(square_root)(V x) {
    V y;
    UNROLL for (int i = 0; i < LANES; i++) y[i] = sizeof(REAL) == 4 ? sqrtf(x[i]) : sqrt(x[i]);
    return y;
}

#undef EXPONENT_BIAS
#undef FRACTION_BITS
#undef EXPONENT_LIMIT
