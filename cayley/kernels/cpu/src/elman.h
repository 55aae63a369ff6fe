/* h_t = phi(x_t + W h_{t-1}; b), or phi(U x_t + c + W h_{t-1}; b), and its gradient. W is a matrix, or
 * factors that are applied one by one. */

typedef struct {
    const Steps *steps;
    const Elman *all;
    NAME(sum) forward;
    REAL *y; /* (B, padded H): where the activation is not computed in registers */
    int factored;
    NAME(factors) factors;
    REAL *work; /* (threads, factors.work) */
} NAME(elman_job);

typedef struct {
    const Steps *steps;
    const Elman *all;
    NAME(sum) back, to_x, to_h0;
    NAME(chunks) chunks;
    REAL *y, *row_grad_b; /* (B, padded H), of the complex activation */
    int factored;
    NAME(factors) factors;
    REAL *work;     /* (threads, factors.work) */
    REAL *row_sums; /* (B, factors.sums) */
    REAL *by_lanes; /* the same of a composition until the end, with rows of each thread for itself */
    int summed;     /* whether the gradient of a matrix is wanted */
} NAME(elman_back_job);

/* One row of complex numbers [Re, Im], m of each; z is kept. */
static void NAME(elman_row_stacked)(int m, const REAL *y, const REAL *b, REAL *h, REAL *z) {
    for (int j = 0; j < m; j += LANES) {
        const int left = m - j;
        const V re = NAME(take)(y + j, left), im = NAME(take)(y + m + j, left);
        const V r = NAME(square_root)(re * re + im * im + (REAL)EPSILON);
        const V a = r + NAME(take)(b + j, left);
        const V scale = NAME(select)(a < 0, (V){0}, a) / (r + (REAL)EPSILON);
        NAME(put)(z + j, re, left);
        NAME(put)(z + m + j, im, left);
        NAME(put)(h + j, re * scale, left);
        NAME(put)(h + m + j, im * scale, left);
    }
}

/* One row: delta from the gradient g of h, and what it adds to the gradient of b. */
static void NAME(elman_row_stacked_back)(int m, const REAL *g, const REAL *z, const REAL *b,
                                         REAL *delta, REAL *grad_b) {
    for (int j = 0; j < m; j += LANES) {
        const int left = m - j;
        const V g_re = NAME(take)(g + j, left), g_im = NAME(take)(g + m + j, left);
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

static int NAME(elman_rows)(void *data, const Share *share) {
    const NAME(elman_job) *job = data;
    const Elman *all = job->all;
    const int first = share->first, last = share->last;
    const ptrdiff_t n = all->H, stride = NAME(padded)(n), n_x = job->forward.U ? all->input.I : n;
    const int in_registers = all->activation != TANH && all->activation != MODRELU_STACKED;
    REAL *y = job->y + first * stride, *work = job->work + share->index * job->factors.work;
    const ptrdiff_t y_stride = in_registers ? n : stride;
    NAME(operands) o = {.x_stride = n_x, .a_stride = n, .y_stride = y_stride, .width = (int)y_stride};
    for (Walk at = walk(job->steps, 0); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const int kept = rows_between(first, last, kept_rows(&at));
        REAL *h = (REAL *)all->h + (at.offset + first) * n;
        o.x = (const REAL *)all->input.x + (at.offset + first) * n_x;
        o.a = (const REAL *)all->h + (at.before_offset + first) * n;
        o.y = in_registers ? h : y;
        if (job->factored) {
            const REAL *before = o.a, *h0 = (const REAL *)all->h0 + first * n;
            o.a = NULL;
            NAME(apply)(&job->forward, &o, count);
            NAME(add_factored)(&job->factors, work, before, y, stride, 0, kept);
            NAME(add_factored)(&job->factors, work, h0, y, stride, kept, count);
        } else {
            NAME(apply)(&job->forward, &o, kept);
            o.x += kept * n_x;
            o.a = (const REAL *)all->h0 + (first + kept) * n;
            o.y += kept * o.y_stride;
            NAME(apply)(&job->forward, &o, count - kept);
        }
        if (in_registers) continue;
        for (int i = 0; i < count; i++)
            if (all->activation == TANH)
                for (int j = 0; j < n; j += LANES)
                    NAME(put)(h + i * n + j, NAME(tanh)(NAME(load)(y + i * stride + j)), n - j);
            else
                NAME(elman_row_stacked)(n / 2, y + i * stride, all->b, h + i * n,
                                        (REAL *)all->z + (at.offset + first + i) * n);
    }
    return 0;
}

static int NAME(elman_rows_back)(void *data, const Share *share) {
    const NAME(elman_back_job) *job = data;
    const Elman *all = job->all;
    const Input *input = &all->input;
    const int first = share->first, last = share->last;
    const int stacked = all->activation == MODRELU_STACKED;
    const ptrdiff_t n = all->H, padded = NAME(padded)(n), I = input->I;
    /* without U, delta is the gradient of x */
    REAL *delta_all = input->U ? NULL : input->grad_x;
    const ptrdiff_t stride = delta_all ? n : padded;
    const NAME(chunks) *chunks = &job->chunks;
    REAL *panel = chunks->panels + share->index * NAME(panel_size)(chunks->most);
    NAME(outer_sums) sums = {
        .n = (int)n,
        .factors = {NAME(factor_of)(chunks, share->index, STATES, (int)n, all->grad_W, n),
                    NAME(factor_of)(chunks, share->index, INPUTS, (int)I, input->grad_U, n)},
        .column_sums = input->grad_c,
        .signed_sums = stacked ? NULL : all->grad_b,
        .state_stride = n,
    };
    REAL *y = job->y + first * padded, *row_grad_b = job->row_grad_b + first * padded;
    NAME(operands) o = {.x_stride = n, .a_stride = stride, .state_stride = n};
    o.y_stride = stacked ? padded : stride;
    o.width = stacked || !delta_all ? padded : n;
    const NAME(factors) *W = &job->factors;
    REAL *work = job->work + share->index * W->work;
    REAL *row_sums = job->row_sums + first * W->sums;
    /* not more rows than this are in the registers of the threads before */
    REAL *by_lanes = job->by_lanes + (first / LANES + share->index) * LANES * W->sums;
    REAL *factor_sums = W->is_composed ? by_lanes : row_sums;
    int carried = 0, turn = 0;
    for (Walk at = walk(job->steps, 1); at.more; turn ^= 1) {
        const Chunk chunk = next_chunk(at, chunks->goal);
        REAL *d = delta_all ? delta_all + chunk.offset * n : chunks->d[turn];
        if (sums.factors[0].sums)
            NAME(rows_before)(sums.factors[0].rows, at, &chunk, all->h, all->h0, n);
        if (sums.factors[1].sums)
            NAME(rows_of)(sums.factors[1].rows, (const REAL *)input->x + chunk.offset * I, I,
                          chunk.rows);
        sums.states = (const REAL *)all->h + chunk.offset * n;
        for (int s = 0; s < chunk.steps; s++, advance(&at)) {
            const int count = rows_between(first, last, at.size);
            const ptrdiff_t here = at.offset + first;
            REAL *delta = d + (here - chunk.offset) * stride;
            o.x = (const REAL *)all->grad_h + here * n;
            o.state = stacked ? NULL : (const REAL *)all->h + here * n;
            o.y = stacked ? y : delta;
            if (job->factored) {
                NAME(factored_back)(W, work, (const REAL *)all->h + here * n, o.a, stride, y, padded, 0,
                                    carried, factor_sums);
                for (int i = 0; i < carried; i++)
                    NAME(add_row)((int)n, o.x + i * n, y + i * padded);
            } else
                NAME(apply)(&job->back, &o, carried);
            /* those that end here have nothing to receive */
            NAME(operands) ends = o;
            ends.x += carried * n;
            ends.a = NULL;
            if (ends.state) ends.state += carried * n;
            ends.y += carried * o.y_stride;
            NAME(apply)(&job->back, &ends, count - carried);
            for (int i = 0; stacked && i < count; i++) {
                const ptrdiff_t row = (here + i) * n;
                REAL *delta_i = delta + i * stride;
                NAME(elman_row_stacked_back)(n / 2, y + i * padded, (const REAL *)all->z + row,
                                             all->b, delta_i, row_grad_b + i * padded);
                if (all->grad_z)
                    NAME(add_row)((int)n, (const REAL *)all->grad_z + row, delta_i);
            }
            if (input->U && input->grad_x) {
                const NAME(operands) to_x = {.a = delta,
                                             .a_stride = stride,
                                             .y = (REAL *)input->grad_x + here * I,
                                             .y_stride = I,
                                             .width = (int)I};
                NAME(apply)(&job->to_x, &to_x, count);
            }
            /* sequences with no step before this one hand their gradient to h0 */
            carried = rows_between(first, last, kept_rows(&at));
            o.a = delta;
            if (job->factored) {
                NAME(factored_back)(W, work, (const REAL *)all->h0 + first * n, delta, stride,
                                    (REAL *)all->grad_h0 + first * n, n, carried, count, factor_sums);
                continue;
            }
            const NAME(operands) to_h0 = {.a = delta + carried * stride,
                                          .a_stride = stride,
                                          .y = (REAL *)all->grad_h0 + (first + carried) * n,
                                          .y_stride = n,
                                          .width = (int)n};
            NAME(apply)(&job->to_h0, &to_h0, count - carried);
        }
        meet(share->team);
        if (job->summed)
            NAME(outer)(&sums, d, stride, chunk.rows, panel, share->index, share->team->count);
    }
    if (W->is_composed) NAME(rows_of_lanes)(W, by_lanes, last - first, row_sums);
    return 0;
}

static int NAME(elman)(const Steps *steps, const Elman *all, int threads) {
    const int H = (int)all->H, I = (int)all->input.I, padded = NAME(padded)(H);
    NAME(elman_job) job = {.steps = steps, .all = all};
    job.factored = all->rotations || all->composition;
    Arena arena = {0};
    REAL *U = NULL, *W = NULL;
    const REAL *b = NULL, *c = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        if (all->W) W = room(&arena, NAME(packed_size)(H, H) * sizeof(REAL));
        if (all->input.U) U = room(&arena, NAME(packed_size)(I, H) * sizeof(REAL));
        c = copy_padded(&arena, all->input.c, H, padded, sizeof(REAL));
        if (all->activation == MODRELU) b = copy_padded(&arena, all->b, H, padded, sizeof(REAL));
        job.y = room(&arena, (size_t)steps->B * padded * sizeof(REAL));
        if (job.factored) job.factors = NAME(room_for_factors)(&arena, all);
        job.work = room(&arena, most_threads(steps, threads) * job.factors.work * sizeof(REAL));
    }
    /* y_j = sum_k x_k U_jk + sum_k h_k W_jk */
    if (U) NAME(pack)(U, all->input.U, 1, I, I, H);
    if (W) NAME(pack)(W, all->W, 1, H, H, H);
    job.forward = (NAME(sum)){I, H, H, U, W, c, b, (int)all->activation};
    advise_huge_pages(all->h, steps->rows * H * sizeof(REAL));
    if (all->activation == MODRELU_STACKED)
        advise_huge_pages(all->z, steps->rows * H * sizeof(REAL));
    const int error = split(NAME(elman_rows), &job, steps, threads);
    free(arena.memory);
    return error;
}

static int NAME(elman_back)(const Steps *steps, const Elman *all, int threads) {
    const int H = (int)all->H, I = (int)all->input.I, padded = NAME(padded)(H);
    const Input *input = &all->input;
    NAME(elman_back_job) job = {.steps = steps, .all = all};
    job.factored = all->rotations || all->composition;
    Arena arena = {0};
    REAL *U = NULL, *W = NULL, *sums = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        if (all->W) W = room(&arena, NAME(packed_size)(H, H) * sizeof(REAL));
        if (input->U) U = room(&arena, NAME(packed_size)(H, I) * sizeof(REAL));
        job.y = room(&arena, (size_t)steps->B * padded * sizeof(REAL));
        job.row_grad_b = room(&arena, (size_t)steps->B * padded * sizeof(REAL));
        NAME(room_for_chunks)(&job.chunks, &arena, steps, H, (int[FACTORS]){H, input->U ? I : 0},
                              most_threads(steps, threads));
        if (job.factored) job.factors = NAME(room_for_factors)(&arena, all);
        job.work = room(&arena, most_threads(steps, threads) * job.factors.work * sizeof(REAL));
        sums = room(&arena, job.factors.sums * sizeof(REAL));
        job.row_sums = room(&arena, steps->B * job.factors.sums * sizeof(REAL));
        const size_t lanes = (steps->B / LANES + most_threads(steps, threads)) * (size_t)LANES;
        job.by_lanes = room(&arena, job.factors.is_composed * lanes * job.factors.sums * sizeof(REAL));
    }
    /* y_j = sum_k delta_k W_kj */
    if (W) NAME(pack)(W, all->W, H, 1, H, H);
    if (U) NAME(pack)(U, input->U, I, 1, H, I);
    const int stacked = all->activation == MODRELU_STACKED;
    job.back = (NAME(sum)){.n_a = H, .n_out = H, .W = W, .activation = IDENTITY};
    job.to_h0 = job.back;
    if (!stacked) job.back.activation = (int)all->activation;
    job.to_x = (NAME(sum)){.n_a = H, .n_out = I, .W = U, .activation = IDENTITY};
    job.summed = all->grad_W || input->grad_U || input->grad_c || (all->grad_b && !stacked);
    NAME(clear)(all->grad_W, (size_t)H * H);
    NAME(clear)(input->grad_U, (size_t)I * H);
    NAME(clear)(input->grad_c, H);
    if (!stacked) NAME(clear)(all->grad_b, H);
    if (!input->U && input->grad_x)
        advise_huge_pages(input->grad_x, steps->rows * H * sizeof(REAL));
    const int error = split(NAME(elman_rows_back), &job, steps, threads);
    if (stacked && all->grad_b)
        NAME(sum_rows)(job.row_grad_b, steps->B, padded, all->grad_b, H / 2);
    if (job.factored) {
        NAME(sum_rows)(job.row_sums, steps->B, job.factors.sums, sums, job.factors.sums);
        NAME(gradients_of_factors)(&job.factors, sums, all);
    }
    free(arena.memory);
    return error;
}
