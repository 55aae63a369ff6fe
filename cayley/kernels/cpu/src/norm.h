/* A normalisation inside a recurrence, for the rows of one thread: y = gamma z + beta with
 * z = (a - mean) / sqrt(variance + eps), a step at a time, and its gradient.
 *
 * Over the layer a row has one mean and one scale; over the batch, and where they are given, a
 * column has. Means are kept less a reference, which is taken from a first.
 */

typedef struct {
    const Site *site;
    const Steps *steps;
    int F, first, per_column, over_batch, units;
    double eps;
    const REAL *gamma, *beta; /* with zeros up to a whole register */
    const REAL *reference;    /* of the units; zeros where there is none */
    ptrdiff_t table;          /* numbers that a step has in a table of statistics */
    NAME(weights) weights;
    NAME(window) window;
    NAME(adjoint) adjoint;
    /* of the step at hand; row i finds its own at i * row */
    const REAL *mean, *scale;
    ptrdiff_t row, reference_row;
    REAL *column, *squares, *given_scale; /* scratch */
    /* of the gradient: with respect to mean and variance of the window, and what they add to that
     * of a, constant + slope z, (units) */
    double *p, *q;
    REAL *constant, *slope;
    /* sums over time of `group` rows each; grad_beta may be NULL */
    int group;
    REAL *grad_gamma, *grad_beta;
} NAME(norm);

/* Make ready for a sequence; called twice, with an arena that counts and with one that gives. */
static void NAME(prepare)(NAME(norm) *norm, Arena *arena, const Lstm *job, const Site *site, int F,
                          const Steps *steps, int first, int last, int backward) {
    const int64_t T = steps->T;
    const int K = job->window, over_batch = job->over_batch, rows = last - first;
    const int units = over_batch ? F : rows, most = units > F ? units : F, own = !site->given;
    const int64_t stored = K - 1 < T ? K - 1 : T, block = K < T ? K : T;
    const int past = own && site->past && K > 1, ends = past || K < T;
    *norm = (NAME(norm)){.site = site, .steps = steps, .F = F, .first = first, .units = units};
    norm->over_batch = over_batch;
    norm->per_column = over_batch || site->given;
    norm->eps = job->eps;
    norm->row = norm->reference_row = !norm->per_column;
    norm->table = over_batch ? F : steps->B;
    norm->gamma = copy_padded(arena, site->gamma, F, NAME(padded)(F), sizeof(REAL));
    norm->beta = copy_padded(arena, site->beta, F, NAME(padded)(F), sizeof(REAL));
    norm->reference = room(arena, most * sizeof(REAL));
    if (site->reference) norm->reference = (const REAL *)site->reference + (over_batch ? 0 : first);
    norm->column = room(arena, NAME(padded)(F) * sizeof(REAL));
    norm->squares = room(arena, NAME(padded)(F) * sizeof(REAL));
    const size_t given = (size_t)(site->given_rows > 1 ? rows : 1) * F * sizeof(REAL);
    if (!own) norm->given_scale = room(arena, given);
    if (past)
        norm->weights = (NAME(weights)){(const REAL *)job->weights + (over_batch ? 0 : first),
                                        over_batch ? 1 : steps->B, !over_batch};
    const size_t row = units * sizeof(double);
    norm->window = (NAME(window)){.K = K, .units = units};
    norm->adjoint = (NAME(adjoint)){.K = K, .units = units, .past_steps = past ? (int)stored : 0};
    if (backward) {
        NAME(adjoint) *a = &norm->adjoint;
        norm->constant = room(arena, most * sizeof(REAL));
        norm->slope = room(arena, most * sizeof(REAL));
        norm->p = room(arena, row);
        norm->q = room(arena, row);
        a->sums = room(arena, 3 * row);
        a->found = room(arena, 3 * row);
        if (ends) a->block = room(arena, 3 * row * block);
        if (K < T) a->beginnings = room(arena, 3 * row * block);
        if (past) a->past_n = room(arena, row * stored);
        for (int64_t t = T - block; t < T; t++) a->n += over_batch ? size_at(steps, t) : 1;
    } else {
        NAME(window) *w = &norm->window;
        w->mean = room(arena, row);
        w->spread = room(arena, row);
        if (ends) {
            w->end_n = room(arena, row * stored);
            w->end_mean = room(arena, row * stored);
            w->end_spread = room(arena, row * stored);
        }
    }
    if (!past || !arena->memory) return;
    const REAL *means = (const REAL *)site->past + (over_batch ? 0 : first);
    if (!backward)
        NAME(sum_ends)(&norm->window, (int)stored, means, means + (K - 1) * norm->table,
                       norm->table, &norm->weights, NULL, 0, over_batch);
    else
        NAME(count_past)(&norm->adjoint, &norm->weights);
}

/* The first `left` lanes, and 0 in the others. */
static INLINE V NAME(keep)(V v, int left) {
    static const INT lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    M lane;
    memcpy(&lane, lanes, sizeof(lane));
    return left >= LANES ? v : NAME(select)(lane < (INT)left, v, (V){0});
}

static INLINE double NAME(total)(V v) {
    double sum = 0;
    UNROLL for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
}

/* A statistic of one row: of its columns from j on, or the same for all of them. */
static INLINE V NAME(of_unit)(const int per_column, const REAL *p, int j, int left) {
    return per_column ? NAME(take)(p + j, left) : NAME(all)(*p);
}

/* What is normalised, less the reference: a, or a + b. */
static INLINE V NAME(centred)(const int per_column, const REAL *a, const REAL *b,
                              const REAL *reference, int j, int left) {
    V v = NAME(take)(a + j, left);
    if (b) v += NAME(load)(b + j);
    return v - NAME(of_unit)(per_column, reference, j, left);
}

/* Mean and population variance of a row, less its reference. */
static void NAME(row_moments)(int F, const REAL *a, const REAL *b, const REAL *reference, REAL *m,
                              REAL *v) {
    V sum = {0};
    for (int j = 0; j < F; j += LANES)
        sum += NAME(keep)(NAME(centred)(0, a, b, reference, j, F - j), F - j);
    const REAL mean = (REAL)(NAME(total)(sum) / F);
    /* the rounding of the mean is found with the squares, and taken off again */
    V rest = {0}, squares = {0};
    for (int j = 0; j < F; j += LANES) {
        const V d = NAME(keep)(NAME(centred)(0, a, b, reference, j, F - j) - mean, F - j);
        rest += d;
        squares += d * d;
    }
    const double correction = NAME(total)(rest) / F;
    const double variance = NAME(total)(squares) / F - correction * correction;
    *m = (REAL)(mean + correction);
    *v = (REAL)(variance < 0 ? 0 : variance);
}

/* The same of each column. */
static void NAME(column_moments)(NAME(norm) *norm, const REAL *a, ptrdiff_t stride, const REAL *b,
                                 int rows, REAL *m, REAL *v) {
    const int F = norm->F;
    const REAL share = (REAL)1 / (rows ? rows : 1);
    REAL *mean = norm->column, *squares = norm->squares;
    memset(mean, 0, NAME(padded)(F) * sizeof(REAL));
    memset(squares, 0, NAME(padded)(F) * sizeof(REAL));
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < F; j += LANES) {
            const V d = NAME(centred)(1, a + i * stride, b, norm->reference, j, F - j);
            NAME(store)(mean + j, NAME(load)(mean + j) + d);
        }
    for (int j = 0; j < F; j++) mean[j] *= share;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < F; j += LANES) {
            const V d = NAME(centred)(1, a + i * stride, b, norm->reference, j, F - j) -
                        NAME(load)(mean + j);
            NAME(store)(squares + j, NAME(load)(squares + j) + d * d);
        }
    for (int j = 0; j < F; j++) {
        m[j] = mean[j];
        v[j] = squares[j] * share;
    }
}

/* Mean and scale at a step of statistics that are given. */
static void NAME(look_up)(NAME(norm) *norm, int64_t t, int rows) {
    const Site *site = norm->site;
    const ptrdiff_t table = (ptrdiff_t)site->given_rows * norm->F;
    const REAL *given = site->given;
    const int own = site->given_rows > 1;
    const ptrdiff_t n = own ? (ptrdiff_t)rows * norm->F : norm->F;
    norm->mean = given + t * table + (own ? (ptrdiff_t)norm->first * norm->F : 0);
    const REAL *variance = norm->mean + norm->steps->T * table;
    for (ptrdiff_t j = 0; j < n; j++)
        norm->given_scale[j] = (REAL)(1 / sqrt(variance[j] + norm->eps));
    norm->scale = norm->given_scale;
    norm->row = own ? norm->F : 0;
}

/* A row of one of the four tables of statistics: 0 mean, 1 variance, 2 mean and 3 scale of the
 * window. */
static INLINE REAL *NAME(statistic)(const NAME(norm) *norm, int which, int64_t t) {
    return (REAL *)norm->site->statistics + (which * norm->steps->T + t) * norm->table +
           (norm->over_batch ? 0 : norm->first);
}

/* Look at the mean and scale of a step that has been normalised before. */
static void NAME(return_to)(NAME(norm) *norm, int64_t t, int rows) {
    if (norm->site->given) {
        NAME(look_up)(norm, t, rows);
        return;
    }
    norm->mean = NAME(statistic)(norm, 2, t);
    norm->scale = NAME(statistic)(norm, 3, t);
}

/* Take in the rows of a step, and find the mean and scale to normalise them with. */
static void NAME(observe)(NAME(norm) *norm, int64_t t, const REAL *a, ptrdiff_t stride,
                          const REAL *b, int rows) {
    if (norm->site->given) {
        NAME(look_up)(norm, t, rows);
        return;
    }
    REAL *m = NAME(statistic)(norm, 0, t), *v = NAME(statistic)(norm, 1, t);
    if (norm->over_batch)
        NAME(column_moments)(norm, a, stride, b, rows, m, v);
    else
        for (int i = 0; i < rows; i++)
            NAME(row_moments)(norm->F, a + i * stride, b, norm->reference + i, m + i, v + i);
    NAME(window) *window = &norm->window;
    REAL *mean = NAME(statistic)(norm, 2, t), *scale = NAME(statistic)(norm, 3, t);
    NAME(push)(window, m, v, norm->over_batch ? rows : 1, norm->over_batch ? norm->F : rows,
               norm->eps, mean, scale);
    if (window->K > 1 && window->position == window->K && t + 1 < norm->steps->T) {
        const int64_t first = t - (window->K - 2);
        NAME(sum_ends)(window, window->K - 1, NAME(statistic)(norm, 0, first),
                       NAME(statistic)(norm, 1, first), norm->table, NULL, norm->steps, t,
                       norm->over_batch);
    }
    norm->mean = mean;
    norm->scale = scale;
}

/* y = gamma z + beta of a row, or y + gamma z + beta; z is kept where there is room for it. */
static INLINE void NAME(affine)(const int per_column, const int add, const NAME(norm) *norm, int i,
                                const REAL *a, const REAL *b, REAL *z, REAL *y) {
    const REAL *reference = norm->reference + i * norm->reference_row;
    const REAL *mean = norm->mean + i * norm->row, *scale = norm->scale + i * norm->row;
    for (int j = 0; j < norm->F; j += LANES) {
        const int left = norm->F - j;
        const V d = NAME(centred)(per_column, a, b, reference, j, left) -
                    NAME(of_unit)(per_column, mean, j, left);
        const V normal = d * NAME(of_unit)(per_column, scale, j, left);
        if (z) NAME(put)(z + j, normal, left);
        V result = NAME(load)(norm->gamma + j) * normal + NAME(load)(norm->beta + j);
        if (add) result += NAME(load)(y + j);
        NAME(store)(y + j, result);
    }
}

static void NAME(normalize)(const NAME(norm) *norm, int i, const REAL *a, const REAL *b, REAL *z,
                            REAL *y) {
    if (norm->per_column)
        NAME(affine)(1, 0, norm, i, a, b, z, y);
    else
        NAME(affine)(0, 0, norm, i, a, b, z, y);
}

static void NAME(add_normalized)(const NAME(norm) *norm, int i, const REAL *a, REAL *y) {
    if (norm->per_column)
        NAME(affine)(1, 1, norm, i, a, NULL, NULL, y);
    else
        NAME(affine)(0, 1, norm, i, a, NULL, NULL, y);
}

/* y = gamma z + beta of a row. */
static void NAME(scale_row)(const NAME(norm) *norm, const REAL *z, REAL *y) {
    for (int j = 0; j < norm->F; j += LANES)
        NAME(store)(y + j, NAME(load)(norm->gamma + j) * NAME(take)(z + j, norm->F - j) +
                               NAME(load)(norm->beta + j));
}

/* z of a row from j on: as it was kept, or found again from a. */
static INLINE V NAME(normal)(const int per_column, const int kept, const NAME(norm) *norm, int i,
                             const REAL *a, int j) {
    const int left = norm->F - j;
    if (kept) return NAME(take)(a + j, left);
    const REAL *reference = norm->reference + i * norm->reference_row;
    const V d = NAME(centred)(per_column, a, NULL, reference, j, left) -
                NAME(of_unit)(per_column, norm->mean + i * norm->row, j, left);
    return d * NAME(of_unit)(per_column, norm->scale + i * norm->row, j, left);
}

/* The gradients with respect to mean and variance of the window, from those of a step's rows: less
 * the sums of g s and g s z s/2, with g that of z and s the scale. */
static INLINE void NAME(sum_gradients)(const int per_column, const int kept, NAME(norm) *norm,
                                       const REAL *dy, ptrdiff_t dy_stride, const REAL *a,
                                       ptrdiff_t a_stride, int rows) {
    const int F = norm->F;
    if (per_column) {
        REAL *sum = norm->column, *product = norm->squares;
        memset(sum, 0, NAME(padded)(F) * sizeof(REAL));
        memset(product, 0, NAME(padded)(F) * sizeof(REAL));
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < F; j += LANES) {
                const V g = NAME(take)(dy + i * dy_stride + j, F - j) * NAME(load)(norm->gamma + j);
                const V z = NAME(normal)(1, kept, norm, i, a + i * a_stride, j);
                NAME(store)(sum + j, NAME(load)(sum + j) + g);
                NAME(store)(product + j, NAME(load)(product + j) + g * z);
            }
        for (int j = 0; j < F; j++) {
            const double scale = norm->scale[j];
            norm->p[j] = -scale * sum[j];
            norm->q[j] = -0.5 * scale * scale * product[j];
        }
        return;
    }
    for (int i = 0; i < rows; i++) {
        V sum = {0}, product = {0};
        for (int j = 0; j < F; j += LANES) {
            const V g = NAME(take)(dy + i * dy_stride + j, F - j) * NAME(load)(norm->gamma + j);
            sum += g;
            product += g * NAME(normal)(0, kept, norm, i, a + i * a_stride, j);
        }
        const double scale = norm->scale[i];
        norm->p[i] = -scale * NAME(total)(sum);
        norm->q[i] = -0.5 * scale * scale * NAME(total)(product);
    }
}

/* What the gradient of a step's rows needs of the statistics, from dy, the gradient of y, and z
 * where it was kept, or a. */
static void NAME(observe_back)(NAME(norm) *norm, const int kept, int64_t t, const REAL *dy,
                               ptrdiff_t dy_stride, const REAL *a, ptrdiff_t a_stride, int rows) {
    NAME(return_to)(norm, t, rows);
    if (norm->site->given) return;
    const REAL *m = NAME(statistic)(norm, 0, t);
    if (norm->over_batch && kept)
        NAME(sum_gradients)(1, 1, norm, dy, dy_stride, a, a_stride, rows);
    else if (norm->over_batch)
        NAME(sum_gradients)(1, 0, norm, dy, dy_stride, a, a_stride, rows);
    else if (kept)
        NAME(sum_gradients)(0, 1, norm, dy, dy_stride, a, a_stride, rows);
    else
        NAME(sum_gradients)(0, 0, norm, dy, dy_stride, a, a_stride, rows);
    const int units = norm->over_batch ? norm->F : rows;
    const int values = norm->over_batch ? rows : norm->F;
    const double weight = norm->over_batch ? rows : 1;
    NAME(adjoint) *sums = &norm->adjoint;
    if (sums->K > 1) {
        const Steps *steps = norm->steps;
        NAME(push_back)(sums, t, steps->T, units, norm->p, norm->q, norm->mean);
        sums->n -= (int64_t)weight;
        if (t >= sums->K) sums->n += norm->over_batch ? size_at(steps, t - sums->K) : 1;
    }
    const REAL *external = norm->site->grad_statistics;
    if (external) external += NAME(statistic)(norm, 0, t) - (REAL *)norm->site->statistics;
    const ptrdiff_t variances = norm->steps->T * norm->table;
    const double *P = sums->found, *Q = P + norm->units, *R = Q + norm->units;
    for (int i = 0; i < units; i++) {
        double dm = norm->p[i], dv = norm->q[i];
        if (sums->K > 1) {
            dm = weight * (P[i] + 2 * (Q[i] * m[i] - R[i]));
            dv = weight * Q[i];
        }
        if (external) {
            dm += external[i];
            dv += external[variances + i];
        }
        norm->constant[i] = (REAL)((dm + 2 * dv * ((double)norm->mean[i] - m[i])) / values);
        norm->slope[i] = (REAL)(2 * dv / ((double)norm->scale[i] * values));
    }
}

/* The gradient of a row of a, and what the row adds to those of gamma, of beta and of a bias. */
static INLINE void NAME(pull_row)(const int per_column, const int kept, NAME(norm) *norm, int i,
                                  const REAL *dy, const REAL *a, REAL *da) {
    const ptrdiff_t sums = (ptrdiff_t)(i / norm->group) * NAME(padded)(norm->F);
    REAL *grad_gamma = norm->grad_gamma + sums;
    REAL *grad_beta = norm->grad_beta ? norm->grad_beta + sums : NULL;
    const ptrdiff_t unit = norm->site->given ? 0 : norm->row;
    for (int j = 0; j < norm->F; j += LANES) {
        const int left = norm->F - j;
        const V g = NAME(take)(dy + j, left), z = NAME(normal)(per_column, kept, norm, i, a, j);
        const V scale = NAME(of_unit)(per_column, norm->scale + i * norm->row, j, left);
        const V slope = NAME(of_unit)(per_column, norm->slope + i * unit, j, left);
        const V constant = NAME(of_unit)(per_column, norm->constant + i * unit, j, left);
        const V d = g * NAME(load)(norm->gamma + j) * scale + (constant + slope * z);
        NAME(store)(grad_gamma + j, NAME(load)(grad_gamma + j) + g * z);
        if (grad_beta) NAME(store)(grad_beta + j, NAME(load)(grad_beta + j) + g);
        NAME(put)(da + j, d, left);
    }
}

static void NAME(pull)(NAME(norm) *norm, const int kept, int i, const REAL *dy, const REAL *a,
                       REAL *da) {
    if (norm->per_column && kept)
        NAME(pull_row)(1, 1, norm, i, dy, a, da);
    else if (norm->per_column)
        NAME(pull_row)(1, 0, norm, i, dy, a, da);
    else if (kept)
        NAME(pull_row)(0, 1, norm, i, dy, a, da);
    else
        NAME(pull_row)(0, 0, norm, i, dy, a, da);
}

/* After the first step: the gradient with respect to the past. */
static void NAME(finish_back)(NAME(norm) *norm) {
    const Site *site = norm->site;
    if (!site->past || site->given || norm->window.K == 1) return;
    const ptrdiff_t variances = (norm->window.K - 1) * norm->table;
    const ptrdiff_t own = norm->over_batch ? 0 : norm->first;
    REAL *grad = (REAL *)site->grad_past + own;
    NAME(pull_past)(&norm->adjoint, norm->steps->T, &norm->weights, (const REAL *)site->past + own,
                    norm->table, grad, grad + variances);
}
