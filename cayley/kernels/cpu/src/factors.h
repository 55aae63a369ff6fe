/* W as factors that are applied to rows one by one: rotations, or a composition. */

typedef struct {
    int H, is_composed;
    NAME(turns) turns;
    NAME(composed) composed;
    size_t work;    /* numbers that a thread computes with */
    ptrdiff_t sums; /* numbers of a row that gradients are made from */
} NAME(factors);

static NAME(factors) NAME(room_for_factors)(Arena *arena, const Elman *all) {
    NAME(factors) W = {.H = (int)all->H, .is_composed = all->composition != NULL};
    if (W.is_composed) {
        W.composed = NAME(room_for_composed)(arena, all->composition, W.H / 2);
        W.work = NAME(composed_work)(&W.composed);
        W.sums = 7 * (W.H / 2);
    } else if (all->rotations) {
        W.turns = NAME(room_for_turns)(arena, all->rotations, W.H / 2);
        W.work = NAME(padded)(W.H);
        W.sums = (ptrdiff_t)W.turns.count * W.H;
    }
    return W;
}

/* Those of the lanes of rows i, ..., i + LANES - 1 that are rows low, ..., high - 1. */
static INLINE NAME(lanes) NAME(lanes_of)(const REAL *rows, ptrdiff_t stride, int i, int low, int high) {
    const int left = high - i;
    return (NAME(lanes)){(REAL *)rows + i * stride, stride, low > i ? low - i : 0,
                         left < LANES ? left : LANES};
}

/* y += W h in rows low, ..., high - 1. */
static void NAME(add_factored)(const NAME(factors) *W, REAL *work, const REAL *h, REAL *y,
                               ptrdiff_t stride, int low, int high) {
    const int n = W->H;
    if (W->is_composed) {
        for (int i = low - low % LANES; i < high; i += LANES) {
            const NAME(lanes) from = NAME(lanes_of)(h, n, i, low, high);
            const NAME(lanes) to = NAME(lanes_of)(y, stride, i, low, high);
            NAME(compose)(&W->composed, work, &from, &to);
        }
        return;
    }
    for (int i = low; i < high; i++) {
        memcpy(work, h + i * n, n * sizeof(REAL));
        NAME(turn_row)(&W->turns, work);
        NAME(add_row)(n, work, y + i * stride);
    }
}

/* What the gradients delta of W h say, in rows low, ..., high - 1: about h, the gradient, and in sums
 * about the factors. Those of a composition are kept by lanes. */
static void NAME(factored_back)(const NAME(factors) *W, REAL *work, const REAL *h, const REAL *delta,
                                ptrdiff_t delta_stride, REAL *grad, ptrdiff_t grad_stride, int low,
                                int high, REAL *sums) {
    const int n = W->H;
    if (W->is_composed) {
        for (int i = low - low % LANES; i < high; i += LANES) {
            const NAME(lanes) from = NAME(lanes_of)(h, n, i, low, high);
            const NAME(lanes) given = NAME(lanes_of)(delta, delta_stride, i, low, high);
            const NAME(lanes) to = NAME(lanes_of)(grad, grad_stride, i, low, high);
            NAME(compose_back)(&W->composed, work, &from, &given, &to, (V *)(sums + i * W->sums));
        }
        return;
    }
    for (int i = low; i < high; i++) {
        memcpy(work, h + i * n, n * sizeof(REAL));
        memcpy(grad + i * grad_stride, delta + i * delta_stride, n * sizeof(REAL));
        NAME(turn_row)(&W->turns, work);
        NAME(turn_row_back)(&W->turns, work, grad + i * grad_stride, sums + i * W->sums);
    }
}

/* Rows of sums that were kept by lanes. */
static void NAME(rows_of_lanes)(const NAME(factors) *W, const REAL *sums, int rows, REAL *to) {
    for (int i = 0; i < rows; i++) {
        const REAL *lane = sums + (i - i % LANES) * W->sums + i % LANES;
        for (ptrdiff_t k = 0; k < W->sums; k++) to[i * W->sums + k] = lane[k * LANES];
    }
}

/* The gradients of the factors from the sums of all rows. */
static void NAME(gradients_of_factors)(const NAME(factors) *W, const REAL *sums, const Elman *all) {
    if (W->is_composed)
        NAME(gradients_of_composed)(&W->composed, sums, all->composition);
    else
        NAME(gradients_of_turns)(&W->turns, sums, all->rotations);
}
