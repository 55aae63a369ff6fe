/* [i; f; g; o] = N_x(x_t) + N_h(W h_{t-1} + b), c_t = s(f) c_{t-1} + s(i) tanh(g),
 * h_t = s(o) tanh(N_c(c_t)), and its gradient; each N may be the identity. */

typedef struct {
    const Steps *steps;
    const Lstm *all;
    NAME(sum) forward; /* of a step; b is in it unless it is normalised too */
    const REAL *W, *b; /* W packed for the gradient; b padded */
    NAME(sum) to_x;
    NAME(chunks) chunks;
    int summed; /* whether the gradient of a matrix or bias is wanted */
    /* Sums over time of `group` rows each, which no two threads share: the order of additions does
     * not depend on the number of threads, and they take little of the cache. */
    int group;
    REAL *grad_gamma[SITES], *grad_beta[SITES];
} NAME(lstm_job);

/* From register to register of a row of n numbers; the last one begins early rather than end late,
 * and computes again what it shares with the one before it. Not for sums, nor in place. */
#define ACROSS(j, n) \
    for (int j = 0; j < (n); j = j + LANES < (n) && j + 2 * LANES > (n) ? (n)-LANES : j + LANES)

/* Gates and cell of a row from y. Of the gates only o is needed again in the step; all are kept where
 * their gradient could not find them again. */
static INLINE void NAME(gates_row)(const int keep, int H, const REAL *y, const REAL *before,
                                   REAL *gates, REAL *o, REAL *c) {
    ACROSS(j, H) {
        const int left = H - j;
        V a[4];
        UNROLL for (int k = 0; k < 4; k++) {
            a[k] = NAME(load)(y + k * H + j);
            a[k] = k == 2 ? NAME(tanh)(a[k]) : NAME(sigmoid)(a[k]);
            if (keep && k < 3) NAME(put)(gates + k * H + j, a[k], left);
        }
        NAME(put)(o + j, a[3], left);
        NAME(put)(c + j, a[1] * NAME(take)(before + j, left) + a[0] * a[2], left);
    }
}

/* The gates of a row from the sum y of both terms. */
static void NAME(activate_row)(int H, const REAL *y, REAL *gates) {
    ACROSS(j, H) {
        UNROLL for (int k = 0; k < 4; k++) {
            const V a = NAME(load)(y + k * H + j);
            NAME(put)(gates + k * H + j, k == 2 ? NAME(tanh)(a) : NAME(sigmoid)(a), H - j);
        }
    }
}

/* h = s(o) tanh(y). */
static INLINE void NAME(output_row)(int H, const REAL *o, const REAL *y, REAL *h) {
    ACROSS(j, H)
        NAME(put)(h + j, NAME(take)(o + j, H - j) * NAME(tanh)(NAME(take)(y + j, H - j)), H - j);
}

/* From dh to the gradient of tanh's argument y, and of the output gate's. */
static void NAME(output_row_back)(int H, const REAL *grad_h, const REAL *carry, const REAL *gates,
                                  const REAL *y, REAL *dy, REAL *delta) {
    ACROSS(j, H) {
        const int left = H - j;
        V dh = grad_h ? NAME(take)(grad_h + j, left) : (V){0};
        if (carry) dh += NAME(load)(carry + j);
        const V o = NAME(take)(gates + 3 * H + j, left), u = NAME(tanh)(NAME(take)(y + j, left));
        NAME(store)(dy + j, dh * o * ((REAL)1 - u * u));
        NAME(put)(delta + 3 * H + j, dh * u * o * ((REAL)1 - o), left);
    }
}

/* From dc = dy + grad_c + carry to the gradients of the other gates' arguments and of the cell
 * before. */
static void NAME(gates_row_back)(int H, const REAL *dy, const REAL *grad_c, const REAL *carry,
                                 const REAL *gates, const REAL *before, REAL *delta,
                                 REAL *to_before) {
    ACROSS(j, H) {
        const int left = H - j;
        V dc = NAME(load)(dy + j);
        if (grad_c) dc += NAME(take)(grad_c + j, left);
        if (carry) dc += NAME(load)(carry + j);
        const V i = NAME(take)(gates + j, left), f = NAME(take)(gates + H + j, left);
        const V g = NAME(take)(gates + 2 * H + j, left);
        NAME(put)(delta + j, dc * g * i * ((REAL)1 - i), left);
        NAME(put)(delta + H + j, dc * NAME(take)(before + j, left) * f * ((REAL)1 - f), left);
        NAME(put)(delta + 2 * H + j, dc * i * ((REAL)1 - g * g), left);
        NAME(store)(to_before + j, dc * f);
    }
}

static void NAME(prepare_sites)(NAME(norm) *norms, Arena *arena, const NAME(lstm_job) *job,
                                int first, int last, int backward) {
    const Lstm *all = job->all;
    for (int k = 0; k < SITES; k++) {
        const Site *site = &all->sites[k];
        if (!site->gamma) continue;
        const int F = k == CELL ? all->H : 4 * all->H;
        NAME(prepare)(&norms[k], arena, all, site, F, job->steps, first, last, backward);
        if (!backward) continue;
        const ptrdiff_t sums = (ptrdiff_t)(first / job->group) * NAME(padded)(F);
        norms[k].group = job->group;
        norms[k].grad_gamma = job->grad_gamma[k] + sums;
        if (job->grad_beta[k]) norms[k].grad_beta = job->grad_beta[k] + sums;
    }
}

static int NAME(lstm_rows)(void *data, const Share *share) {
    const NAME(lstm_job) *job = data;
    const Lstm *all = job->all;
    const int first = share->first, last = share->last;
    const ptrdiff_t H = all->H, F = 4 * H, rows = last - first;
    const ptrdiff_t n_x = all->input.U ? all->input.I : F;
    const ptrdiff_t stride = NAME(padded)(F) + LANES, cell_stride = NAME(padded)(H);
    Arena arena = {0};
    NAME(norm) norms[SITES];
    NAME(norm) *N_x = all->sites[INPUT].gamma ? &norms[INPUT] : NULL;
    NAME(norm) *N_h = all->sites[RECURRENT].gamma ? &norms[RECURRENT] : NULL;
    NAME(norm) *N_c = all->sites[CELL].gamma ? &norms[CELL] : NULL;
    REAL *y = NULL, *y_c = NULL, *o = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        NAME(prepare_sites)(norms, &arena, job, first, last, 0);
        y = room(&arena, rows * stride * sizeof(REAL));
        y_c = room(&arena, cell_stride * sizeof(REAL));
        if (N_h) o = room(&arena, rows * H * sizeof(REAL));
    }
    for (Walk at = walk(job->steps, 0); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const ptrdiff_t here = at.offset + first, before = at.before_offset + first;
        const REAL *h_before = (const REAL *)all->h0 + first * H;
        const REAL *c_before = (const REAL *)all->c0 + first * H;
        if (at.before_size) {
            h_before = (const REAL *)all->h + before * H;
            c_before = (const REAL *)all->c + before * H;
        }
        const REAL *x = (const REAL *)all->input.x + here * n_x;
        REAL *kept = (REAL *)all->kept + here * F;
        REAL *c = (REAL *)all->c + here * H, *h = (REAL *)all->h + here * H;
        const NAME(operands) step = {.x = N_x || N_h ? NULL : x,
                                     .x_stride = n_x,
                                     .a = h_before,
                                     .a_stride = H,
                                     .y = y,
                                     .y_stride = stride,
                                     .width = NAME(padded)(F)};
        NAME(apply)(&job->forward, &step, count);
        if (N_h) NAME(observe)(N_h, at.t, y, stride, job->b, count);
        if (N_x) NAME(observe)(N_x, at.t, x, F, NULL, count);
        REAL *o_here = N_h ? o : kept + 3 * H;
        const ptrdiff_t o_stride = N_h ? H : F;
        for (int i = 0; i < count; i++) {
            REAL *y_i = y + i * stride, *kept_i = kept + i * F, *o_i = o_here + i * o_stride;
            const REAL *x_i = x + i * F, *before_i = c_before + i * H;
            if (N_h) NAME(normalize)(N_h, i, y_i, job->b, kept_i, y_i);
            if (N_x) NAME(add_normalized)(N_x, i, x_i, y_i);
            if (N_h && !N_x) NAME(add_row)(F, x_i, y_i);
            if (N_h)
                NAME(gates_row)(0, H, y_i, before_i, NULL, o_i, c + i * H);
            else
                NAME(gates_row)(1, H, y_i, before_i, kept_i, o_i, c + i * H);
            if (!N_c) NAME(output_row)(H, o_i, c + i * H, h + i * H);
        }
        if (!N_c) continue;
        NAME(observe)(N_c, at.t, c, H, NULL, count);
        for (int i = 0; i < count; i++) {
            NAME(normalize)(N_c, i, c + i * H, NULL, NULL, y_c);
            NAME(output_row)(H, o_here + i * o_stride, y_c, h + i * H);
        }
    }
    free(arena.memory);
    return 0;
}

/* The beginning of the group after a row, or the end. */
static INLINE int NAME(next_group)(const NAME(lstm_job) *job, int row) {
    const int next = (row + job->group - 1) / job->group * job->group;
    return next < job->steps->B ? next : job->steps->B;
}

static int NAME(lstm_rows_back)(void *data, const Share *share) {
    const NAME(lstm_job) *job = data;
    const Lstm *all = job->all;
    const int first = NAME(next_group)(job, share->first);
    const int last = NAME(next_group)(job, share->last);
    const Input *input = &all->input;
    const ptrdiff_t H = all->H, F = 4 * H, rows = last - first, I = input->I;
    const ptrdiff_t cell_stride = NAME(padded)(H);
    Arena arena = {0};
    NAME(norm) norms[SITES];
    NAME(norm) *N_x = all->sites[INPUT].gamma ? &norms[INPUT] : NULL;
    NAME(norm) *N_h = all->sites[RECURRENT].gamma ? &norms[RECURRENT] : NULL;
    NAME(norm) *N_c = all->sites[CELL].gamma ? &norms[CELL] : NULL;
    REAL *carry_h = NULL, *carry_c = NULL, *next_c = NULL, *dy = NULL, *y = NULL;
    REAL *delta_room = NULL, *gates_room = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && agree(share->team, open_arena(&arena))) {
            free(arena.memory);
            return OUT_OF_MEMORY;
        }
        if (rows) NAME(prepare_sites)(norms, &arena, job, first, last, 1);
        carry_h = room(&arena, rows * cell_stride * sizeof(REAL));
        carry_c = room(&arena, rows * cell_stride * sizeof(REAL));
        next_c = room(&arena, rows * cell_stride * sizeof(REAL));
        dy = room(&arena, rows * cell_stride * sizeof(REAL));
        y = room(&arena, (NAME(padded)(F) + LANES) * sizeof(REAL));
        if (N_x && N_h) delta_room = room(&arena, rows * F * sizeof(REAL));
        if (N_h) gates_room = room(&arena, rows * F * sizeof(REAL));
    }
    /* The gradient of W h + b is that of x too where neither term is normalised; it is needed whole
     * if x is what the input contributes. */
    const int plain = !N_x && !N_h;
    REAL *da_all = plain && !input->U ? input->grad_x : NULL;
    const NAME(chunks) *chunks = &job->chunks;
    const ptrdiff_t stride = da_all ? F : chunks->stride;
    const int thread = share->index;
    REAL *panel = chunks->panels + thread * NAME(panel_size)(chunks->most);
    const NAME(outer_sums) sums = {
        .n = F,
        .factors = {NAME(factor_of)(chunks, thread, STATES, H, all->grad_W, F),
                    NAME(factor_of)(chunks, thread, INPUTS, I, input->grad_U, F)},
        .column_sums = all->grad_b,
    };
    int carried = 0, turn = 0;
    for (Walk at = walk(job->steps, 1); at.more; turn ^= 1) {
        const Chunk chunk = next_chunk(at, chunks->goal);
        REAL *d = da_all ? da_all + chunk.offset * F : chunks->d[turn];
        if (all->grad_W) NAME(rows_before)(sums.factors[0].rows, at, &chunk, all->h, all->h0, H);
        if (input->grad_U)
            NAME(rows_of)(sums.factors[1].rows, (const REAL *)input->x + chunk.offset * I, I,
                          chunk.rows);
        for (int s = 0; s < chunk.steps; s++, advance(&at)) {
            if (!rows) continue;
            const int count = rows_between(first, last, at.size);
            const ptrdiff_t here = at.offset + first;
            const REAL *c_before = at.before_size
                                       ? (const REAL *)all->c + (at.before_offset + first) * H
                                       : (const REAL *)all->c0 + first * H;
            const REAL *grad_h = all->grad_h, *grad_c = all->grad_c;
            if (grad_h) grad_h += here * H;
            if (grad_c) grad_c += here * H;
            const REAL *x = plain ? NULL : (const REAL *)input->x + here * F;
            const REAL *kept = (const REAL *)all->kept + here * F;
            const REAL *gates = N_h ? gates_room : kept, *c = (const REAL *)all->c + here * H;
            REAL *da = d + (here - chunk.offset) * stride;
            REAL *dx = plain ? da : (REAL *)input->grad_x + here * F;
            /* the gradient with respect to the sum of both terms, which each N changes */
            REAL *delta = !N_x ? dx : !N_h ? da : delta_room;
            const ptrdiff_t delta_stride = delta == da ? stride : F;
            if (N_c) NAME(return_to)(N_c, at.t, count);
            if (N_x) NAME(return_to)(N_x, at.t, count);
            for (int i = 0; i < count; i++) {
                if (N_h) {
                    NAME(scale_row)(N_h, kept + i * F, y);
                    if (N_x)
                        NAME(add_normalized)(N_x, i, x + i * F, y);
                    else
                        NAME(add_row)(F, x + i * F, y);
                    NAME(activate_row)(H, y, gates_room + i * F);
                }
                if (N_c) NAME(normalize)(N_c, i, c + i * H, NULL, NULL, y);
                NAME(output_row_back)(H, grad_h ? grad_h + i * H : NULL,
                                      i < carried ? carry_h + i * cell_stride : NULL, gates + i * F,
                                      N_c ? y : c + i * H, dy + i * cell_stride,
                                      delta + i * delta_stride);
            }
            if (N_c) NAME(observe_back)(N_c, 0, at.t, dy, cell_stride, c, H, count);
            for (int i = 0; i < count; i++) {
                REAL *dy_i = dy + i * cell_stride;
                if (N_c) NAME(pull)(N_c, 0, i, dy_i, c + i * H, dy_i);
                NAME(gates_row_back)(H, dy_i, grad_c ? grad_c + i * H : NULL,
                                     i < carried ? carry_c + i * cell_stride : NULL, gates + i * F,
                                     c_before + i * H, delta + i * delta_stride,
                                     next_c + i * cell_stride);
            }
            if (N_x) {
                NAME(observe_back)(N_x, 0, at.t, delta, delta_stride, x, F, count);
                for (int i = 0; i < count; i++)
                    NAME(pull)(N_x, 0, i, delta + i * delta_stride, x + i * F, dx + i * F);
            }
            if (N_h) {
                NAME(observe_back)(N_h, 1, at.t, delta, delta_stride, kept, F, count);
                for (int i = 0; i < count; i++)
                    NAME(pull)(N_h, 1, i, delta + i * delta_stride, kept + i * F, da + i * stride);
            }
            NAME(product)(job->W, F, H, da, stride, carry_h, cell_stride, count);
            if (input->U && input->grad_x) {
                const NAME(operands) to_x = {.a = da,
                                             .a_stride = stride,
                                             .y = (REAL *)input->grad_x + here * I,
                                             .y_stride = I,
                                             .width = (int)I};
                NAME(apply)(&job->to_x, &to_x, count);
            }
            REAL *swap = carry_c;
            carry_c = next_c;
            next_c = swap;
            carried = count;
        }
        meet(share->team);
        if (job->summed)
            NAME(outer)(&sums, d, stride, chunk.rows, panel, thread, share->team->count);
    }
    /* every sequence has the first step */
    for (int i = 0; i < rows; i++) {
        memcpy((REAL *)all->grad_h0 + (first + i) * H, carry_h + i * cell_stride, H * sizeof(REAL));
        memcpy((REAL *)all->grad_c0 + (first + i) * H, carry_c + i * cell_stride, H * sizeof(REAL));
    }
    for (int k = 0; k < SITES; k++)
        if (rows && all->sites[k].gamma) NAME(finish_back)(&norms[k]);
    free(arena.memory);
    return 0;
}

/* Over the batch rows depend on one another, and one thread takes them all. */
static int NAME(share_out)(Body body, NAME(lstm_job) *job, int threads) {
    if (!job->steps->rows) return 0;
    for (int k = 0; k < SITES; k++) {
        const Site *site = &job->all->sites[k];
        if (site->gamma && !site->given && job->all->over_batch) threads = 1;
    }
    return split(body, job, job->steps, threads);
}

static int NAME(lstm)(const Steps *steps, const Lstm *all, int threads) {
    const int H = all->H, F = 4 * H, I = (int)all->input.I;
    const size_t bytes = steps->rows * H * sizeof(REAL);
    NAME(lstm_job) job = {.steps = steps, .all = all};
    Arena arena = {0};
    REAL *U = NULL, *W = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        W = room(&arena, NAME(packed_size)(H, F) * sizeof(REAL));
        if (all->input.U) U = room(&arena, NAME(packed_size)(I, F) * sizeof(REAL));
        job.b = copy_padded(&arena, all->b, F, NAME(padded)(F) + LANES, sizeof(REAL));
    }
    /* y_j = sum_k x_k U_jk + sum_k h_k W_jk */
    if (U) NAME(pack)(U, all->input.U, 1, I, I, F);
    NAME(pack)(W, all->W, 1, H, H, F);
    job.forward = (NAME(sum)){
        .n_x = I, .n_a = H, .n_out = F, .U = U, .W = W, .activation = IDENTITY};
    if (!all->sites[RECURRENT].gamma) job.forward.c = job.b;
    advise_huge_pages(all->h, bytes);
    advise_huge_pages(all->c, bytes);
    advise_huge_pages(all->kept, 4 * bytes);
    const int error = NAME(share_out)(NAME(lstm_rows), &job, threads);
    free(arena.memory);
    return error;
}

static int NAME(lstm_back)(const Steps *steps, const Lstm *all, int threads) {
    const Input *input = &all->input;
    const int H = all->H, F = 4 * H, I = (int)input->I;
    const int fit = steps->B / 16, group = fit < 1 ? 1 : fit > 8 ? 8 : fit;
    const int groups = (steps->B + group - 1) / group;
    NAME(lstm_job) job = {.steps = steps, .all = all, .group = group};
    Arena arena = {0};
    REAL *U = NULL, *W = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        W = room(&arena, NAME(packed_size)(F, H) * sizeof(REAL));
        if (input->U) U = room(&arena, NAME(packed_size)(F, I) * sizeof(REAL));
        NAME(room_for_chunks)(&job.chunks, &arena, steps, F, (int[FACTORS]){H, input->U ? I : 0},
                              most_threads(steps, threads));
        for (int k = 0; k < SITES; k++) {
            if (!all->sites[k].gamma) continue;
            const size_t sums = (size_t)groups * NAME(padded)(k == CELL ? H : F) * sizeof(REAL);
            job.grad_gamma[k] = room(&arena, sums);
            /* beta of the input has the gradient of the recurrent one's */
            if (k != INPUT || !all->sites[RECURRENT].gamma) job.grad_beta[k] = room(&arena, sums);
        }
    }
    /* y_j = sum_k da_k W_kj */
    NAME(pack)(W, all->W, H, 1, F, H);
    if (U) NAME(pack)(U, input->U, I, 1, F, I);
    job.W = W;
    job.to_x = (NAME(sum)){.n_a = F, .n_out = I, .W = U, .activation = IDENTITY};
    job.summed = all->grad_W || all->grad_b || input->grad_U;
    NAME(clear)(all->grad_W, (size_t)H * F);
    NAME(clear)(all->grad_b, F);
    NAME(clear)(input->grad_U, (size_t)I * F);
    if (!input->U && input->grad_x)
        advise_huge_pages(input->grad_x, (size_t)steps->rows * F * sizeof(REAL));
    const int error = NAME(share_out)(NAME(lstm_rows_back), &job, threads);
    for (int k = 0; k < SITES; k++) {
        const Site *site = &all->sites[k];
        if (!site->gamma) continue;
        const int n = k == CELL ? H : F;
        const REAL *sums = job.grad_beta[k] ? job.grad_beta[k] : job.grad_beta[RECURRENT];
        NAME(sum_rows)(job.grad_gamma[k], groups, NAME(padded)(n), site->grad_gamma, n);
        NAME(sum_rows)(sums, groups, NAME(padded)(n), site->grad_beta, n);
    }
    free(arena.memory);
    return error;
}
#undef ACROSS
