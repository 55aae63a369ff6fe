/* Activations of vectors, and their derivatives. */

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
