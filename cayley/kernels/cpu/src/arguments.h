/* What the recurrences take, in either precision. Shapes are those of cayley.recurrences. A gradient
 * that is NULL is not wanted; those of matrices are transposed. */

/* What the input contributes to F sums a step: U x + c, or x itself, with F columns, if U is NULL. */
typedef struct {
    const void *x, *U, *c; /* (rows, I), (F, I), (F); c NULL for 0 */
    void *grad_x, *grad_U, *grad_c;
    int64_t I;
} Input;

/* A matrix as a diagonal of phases and layers of plane rotations. Layer l turns pairs of coordinates
 * strides[l] apart, a power of two, in blocks[l] blocks of two strides from offsets[l] on. */
typedef struct {
    const void *theta, *phi, *omega; /* of all pairs, one layer after another, and (H / 2) */
    const int64_t *offsets, *blocks, *strides;
    int64_t layers;
    void *grad_theta, *grad_phi, *grad_omega; /* of the gradient only */
} Rotations;

/* A matrix as D3 R2 F^-1 D2 P R1 F D1, with m = H / 2. */
typedef struct {
    const void *w, *v;                    /* (3, m), (2, 2, m) */
    const int64_t *permutation, *radices; /* (m); factors of m, 2, 4 and odd ones */
    int64_t stages;                       /* the number of radices, at least 1 */
    void *grad_w, *grad_v;                /* of the gradient only */
} Composition;

typedef struct {
    Input input;
    const void *h0, *W, *b;
    void *h, *z;
    /* of the gradient only; grad_z NULL for 0 */
    const void *grad_h, *grad_z;
    void *grad_h0, *grad_W, *grad_b;
    int64_t H, activation;
    /* one of them instead of W, with the complex modReLU; NULL: W */
    const Rotations *rotations;
    const Composition *composition;
} Elman;

/* One step; Wt is W transposed, and the state is the output again, in other memory or in the same. */
typedef struct {
    const void *x, *h, *U, *c, *Wt, *b; /* (B, I), (B, H), (H, I), (H), (H, H); c, b NULL for none */
    void *output, *state;
    int64_t B, I, H, activation;
} ElmanStep;

typedef struct {
    Input input; /* F = 3H */
    const void *h0, *W, *b;
    void *h, *gates;
    /* of the gradient only; grad_gates NULL for 0 */
    const void *grad_h, *grad_gates;
    void *grad_h0, *grad_W, *grad_b;
    int64_t H;
} Gru;

/* One normalisation: (G, .) is (B, 1) over the layer and (1, F) over the batch. */

typedef struct {
    const void *gamma, *beta;    /* (F); NULL: no normalisation */
    const void *reference;       /* (G, .); NULL for 0 */
    const void *past;            /* (2, K - 1, G, .); NULL for none */
    const void *given;           /* (2, T, given_rows, F); NULL: the sequence's own statistics */
    void *statistics;            /* (4, T, G, .) */
    const void *grad_statistics; /* likewise; NULL for 0 */
    void *grad_gamma, *grad_beta, *grad_past;
    int64_t given_rows;
} Site;

enum { INPUT, RECURRENT, CELL, SITES };

typedef struct {
    int H, window, over_batch;
    double eps;
    Input input; /* F = 4H; no c: b is its place. U only without normalisations of either term */
    const void *h0, *c0, *W, *b; /* b NULL for 0 */
    const void *weights;         /* (K - 1, G, 1) */
    Site sites[SITES];
    void *h, *c, *kept; /* kept: the gates, or with a recurrent normalisation its z */
    /* of the gradient only; grad_h and grad_c NULL for 0 */
    const void *grad_h, *grad_c;
    void *grad_h0, *grad_c0, *grad_W, *grad_b;
} Lstm;

/* The scaled Cayley transform. A is skew-symmetric, by the entries of so many diagonals above the main
 * one, one diagonal after another. */
typedef struct {
    const void *x, *D; /* x as A above; (n) */
    void *W, *X;       /* (n, n) */
    int64_t n, bandwidth;
    /* of the gradient only */
    const void *grad_W; /* (n, n), with strides */
    int64_t row_stride, column_stride;
    void *grad_x;
} Cayley;
