/* Mean and variance over the last K steps, step by step, and the sums of their gradient.
 *
 * Time is cut into blocks of K steps: a window is the end of one block and the beginning of the
 * next, each summed once, so that a step costs the same whatever K is. Nothing is subtracted from a
 * running sum, so that nothing cancels. A unit is what has statistics of its own: a row over the
 * layer, a column over the batch. The sums are double in either precision.
 */

/* The values behind the past statistics of a unit, k steps after the oldest of them. */
typedef struct {
    const REAL *weights;
    ptrdiff_t step, unit;
} NAME(weights);

static INLINE double NAME(weight)(const NAME(weights) *w, int k, int unit) {
    return w->weights[k * w->step + unit * w->unit];
}

typedef struct {
    int K, units, position, ends; /* ends: how many of them there are */
    double n, *mean, *spread;     /* of the block's steps so far; spread is n times the variance */
    double *end_n, *end_mean, *end_spread; /* of the end of the block before: (stored, units) */
} NAME(window);

/* Add moments to moments. */
static INLINE void NAME(merge)(double *n, double *mean, double *spread, double more_n,
                               double more_mean, double more_spread) {
    const double total = *n + more_n, share = total > 0 ? more_n / total : 0;
    const double d = more_mean - *mean;
    *mean += d * share;
    *spread += more_spread + d * d * (*n * share);
    *n = total;
}

/* The moments of steps k, ..., K - 2 of the K - 1 before the next block, for each k that is stored.
 * Rows of m and v lie `stride` apart; weights are those of the past, or of the steps up to t. */
static void NAME(sum_ends)(NAME(window) *w, int stored, const REAL *m, const REAL *v,
                           ptrdiff_t stride, const NAME(weights) *past, const Steps *steps,
                           int64_t t, int over_batch) {
    for (int i = 0; i < w->units; i++) w->mean[i] = w->spread[i] = 0;
    double *n = w->end_n; /* of the step after */
    for (int k = w->K - 2; k >= 0; k--) {
        const ptrdiff_t at = (ptrdiff_t)(k < stored ? k : stored - 1) * w->units;
        const double each = past ? 0 : over_batch ? size_at(steps, t - (w->K - 2) + k) : 1;
        for (int i = 0; i < w->units; i++) {
            double sum = k == w->K - 2 ? 0 : n[i];
            const double weight = past ? NAME(weight)(past, k, i) : each;
            NAME(merge)(&sum, &w->mean[i], &w->spread[i], weight, m[k * stride + i],
                        weight * v[k * stride + i]);
            w->end_n[at + i] = sum;
            w->end_mean[at + i] = w->mean[i];
            w->end_spread[at + i] = w->spread[i];
        }
        n = w->end_n + at;
    }
    for (int i = 0; i < w->units; i++) w->mean[i] = w->spread[i] = 0;
    w->ends = stored;
    w->position = 0;
    w->n = 0;
}

/* Mean and 1/sqrt(variance + eps) of the window that ends with a step of mean m and variance v. */
static void NAME(push)(NAME(window) *w, const REAL *m, const REAL *v, double weight, int units,
                       double eps, REAL *mean, REAL *scale) {
    if (w->K == 1) {
        for (int i = 0; i < units; i++) {
            mean[i] = m[i];
            scale[i] = (REAL)(1 / sqrt(v[i] + eps));
        }
        return;
    }
    const double before = w->n;
    const int ended = w->position < w->ends;
    const ptrdiff_t end = ended ? (ptrdiff_t)w->position * w->units : 0;
    for (int i = 0; i < units; i++) {
        double n = before, total_mean = w->mean[i], spread = w->spread[i];
        NAME(merge)(&n, &total_mean, &spread, weight, m[i], weight * v[i]);
        w->mean[i] = total_mean;
        w->spread[i] = spread;
        if (ended)
            NAME(merge)(&n, &total_mean, &spread, w->end_n[end + i], w->end_mean[end + i],
                        w->end_spread[end + i]);
        mean[i] = (REAL)total_mean;
        scale[i] = (REAL)(1 / sqrt(spread / n + eps));
    }
    w->n += weight;
    w->position++;
}

/* The gradient with respect to mean and variance of a step is a sum over the windows it is in: over
 * this step and the K - 1 after it, the end of a block and the beginning of the next. */
typedef struct {
    int K, units, after; /* after: the steps of the block after this one */
    double *sums;        /* of this block's steps so far, (3, units) */
    double *block;       /* what each of its steps adds, (K, 3, units) */
    double *beginnings;  /* sums of the first 1, 2, ... steps of the block after, likewise */
    double *found;       /* of the window's steps, (3, units) */
    double *past_n;      /* values before the first step in the window of a step, (K - 1, units) */
    int past_steps;
    int64_t n; /* values in the window of a step, the past apart */
} NAME(adjoint);

/* The values before the first step that are in the window of each of the first K - 1 steps. */
static void NAME(count_past)(NAME(adjoint) *a, const NAME(weights) *weights) {
    for (int i = 0; i < a->units; i++) {
        double n = 0;
        for (int k = a->K - 2; k >= 0; k--) {
            n += NAME(weight)(weights, k, i);
            if (k < a->past_steps) a->past_n[(ptrdiff_t)k * a->units + i] = n;
        }
    }
}

/* Replace what each step adds by the sum from the block's first step to it. */
static void NAME(sum_beginnings)(double *block, int steps, ptrdiff_t row) {
    for (int k = 1; k < steps; k++, block += row)
        for (int i = 0; i < row; i++) block[row + i] += block[i];
}

/* Take in p and q, the gradients with respect to mean and variance of the window of step t. */
static void NAME(push_back)(NAME(adjoint) *a, int64_t t, int64_t T, int count, const double *p,
                            const double *q, const REAL *mean) {
    const int position = (int)(t % a->K), units = a->units;
    const ptrdiff_t row = 3 * (ptrdiff_t)units;
    if (position == a->K - 1 && t + 1 < T) {
        a->after = T - t - 1 < a->K ? (int)(T - t - 1) : a->K;
        NAME(sum_beginnings)(a->block, a->after, row);
        double *swap = a->block;
        a->block = a->beginnings;
        a->beginnings = swap;
        memset(a->sums, 0, row * sizeof(double));
    }
    double *new = a->block ? a->block + position * row : a->found;
    memset(new, 0, row * sizeof(double));
    const double *past = a->past_n && t < a->past_steps ? a->past_n + t * units : NULL;
    for (int i = 0; i < count; i++) {
        const double share = 1 / (a->n + (past ? past[i] : 0));
        new[i] = p[i] * share;
        new[units + i] = q[i] * share;
        new[2 * units + i] = q[i] * share * mean[i];
    }
    for (int i = 0; i < row; i++) a->sums[i] += new[i];
    const int first = position < a->after ? position : a->after;
    const double *rest = first ? a->beginnings + (first - 1) * row : NULL;
    for (int i = 0; i < row; i++) a->found[i] = a->sums[i] + (rest ? rest[i] : 0);
}

/* After step 0: the gradient with respect to the past. */
static void NAME(pull_past)(NAME(adjoint) *a, int64_t T, const NAME(weights) *weights,
                            const REAL *means, ptrdiff_t stride, REAL *grad_means,
                            REAL *grad_variances) {
    const int units = a->units;
    const ptrdiff_t row = 3 * (ptrdiff_t)units;
    NAME(sum_beginnings)(a->block, T < a->K ? (int)T : a->K, row);
    for (int k = 0; k < a->K - 1; k++) {
        const double *sums = a->block + (k < T ? k : T - 1) * row;
        for (int i = 0; i < units; i++) {
            const double w = NAME(weight)(weights, k, i);
            const double Q = sums[units + i], R = sums[2 * units + i];
            const ptrdiff_t at = k * stride + i;
            grad_means[at] = (REAL)(w * (sums[i] + 2 * (Q * means[at] - R)));
            grad_variances[at] = (REAL)(w * Q);
        }
    }
}
