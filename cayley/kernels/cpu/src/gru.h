/* r = sigma(x_r + W_r h), u = sigma(x_u + W_u h), c = phi(x_c + W_c (r h); b), the next state
 * (1 - u) h + u c, and the gradient. phi and its derivative are those of elman.h.
 */

typedef struct {
    const Steps *steps;
    const Gru *all;
    int activation;
    NAME(sum) gates[3];
    REAL *y_r, *y_u, *reset; /* (B, padded H) */
} NAME(gru_job);

typedef struct {
    const Steps *steps;
    const Gru *all;
    int activation;
    const REAL *W_gates, *W_c; /* packed */
    NAME(sum) to_x;
    NAME(chunks) chunks;
    REAL *reset[2];       /* r h of a chunk, (rows, padded H) */
    REAL *carry, *direct; /* (B, padded H): what a step hands to the one before it is their sum */
    int summed;           /* whether the gradient of a matrix or bias is wanted */
} NAME(gru_back_job);

/* One row: r, u and reset = r h from what they are functions of. */
static INLINE void NAME(gru_row)(int n, const REAL *before, const REAL *y_r, const REAL *y_u,
                                 REAL *gates, REAL *reset) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V r = NAME(sigmoid)(NAME(load)(y_r + j));
        const V u = NAME(sigmoid)(NAME(load)(y_u + j));
        NAME(put)(gates + j, r, left);
        NAME(put)(gates + n + j, u, left);
        NAME(store)(reset + j, r * NAME(take)(before + j, left));
    }
}

/* One row: c and the next state. */
static INLINE void NAME(gru_row_state)(const int activation, int n, const REAL *before,
                                       const REAL *y_c, const REAL *b, REAL *gates, REAL *h) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V threshold = activation == MODRELU ? NAME(take)(b + j, left) : (V){0};
        const V c = NAME(activate)(activation, NAME(load)(y_c + j), threshold);
        const V u = NAME(take)(gates + n + j, left), state = NAME(take)(before + j, left);
        NAME(put)(gates + 2 * n + j, c, left);
        /* from the nearer end: exactly the state for u = 0 and exactly c for u = 1 */
        const V way = c - state, from_state = state + u * way, from_c = c - ((REAL)1 - u) * way;
        NAME(put)(h + j, NAME(select)(u < (REAL)0.5, from_state, from_c), left);
    }
}

/* One row: the gradients of what goes into u and c, and direct = (1 - u) g with g the whole gradient
 * of the state. */
static INLINE void NAME(gru_row_state_back)(const int activation, int n, const REAL *grad_h,
                                            const REAL *carry, const REAL *before,
                                            const REAL *gates, const REAL *grad_gates, REAL *delta,
                                            REAL *direct) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        V g = NAME(take)(grad_h + j, left);
        if (carry) g += NAME(load)(carry + j) + NAME(load)(direct + j);
        const V u = NAME(take)(gates + n + j, left), c = NAME(take)(gates + 2 * n + j, left);
        V du = g * (c - NAME(take)(before + j, left)), dc = g * u;
        if (grad_gates) {
            du += NAME(take)(grad_gates + n + j, left);
            dc += NAME(take)(grad_gates + 2 * n + j, left);
        }
        const V d = NAME(pull_back)(activation, dc, c);
        NAME(put)(delta + n + j, du * (u * ((REAL)1 - u)), left);
        NAME(put)(delta + 2 * n + j, d, left);
        NAME(store)(direct + j, g * ((REAL)1 - u));
    }
}

/* One row: the gradient of what goes into r, r h, and direct += r v with v the gradient of r h. */
static INLINE void NAME(gru_row_back)(int n, const REAL *v, const REAL *before, const REAL *gates,
                                      const REAL *grad_gates, REAL *delta, REAL *direct,
                                      REAL *reset) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V r = NAME(take)(gates + j, left), back = NAME(load)(v + j);
        const V state = NAME(take)(before + j, left);
        V dr = back * state;
        if (grad_gates) dr += NAME(take)(grad_gates + j, left);
        NAME(put)(delta + j, dr * (r * ((REAL)1 - r)), left);
        NAME(store)(reset + j, r * state);
        NAME(store)(direct + j, NAME(load)(direct + j) + r * back);
    }
}

static int NAME(gru_rows)(void *data, const Share *share) {
    const NAME(gru_job) *job = data;
    const Gru *all = job->all;
    const int first = share->first, last = share->last;
    const ptrdiff_t n = all->H, stride = NAME(padded)(n), n_x = all->input.U ? all->input.I : 3 * n;
    REAL *y_r = job->y_r + first * stride, *y_u = job->y_u + first * stride;
    REAL *reset = job->reset + first * stride, *y_c = y_r; /* when r is known */
    for (Walk at = walk(job->steps, 0); at.more; advance(&at)) {
        const int count = rows_between(first, last, at.size);
        const int kept = rows_between(first, last, kept_rows(&at));
        const ptrdiff_t here = (at.offset + first) * n;
        const REAL *after = (const REAL *)all->h + (at.before_offset + first) * n;
        const REAL *initial = (const REAL *)all->h0 + first * n;
        const REAL *x = (const REAL *)all->input.x + (at.offset + first) * n_x;
        REAL *h = (REAL *)all->h + here, *gates = (REAL *)all->gates + 3 * here;
        for (int gate = 0; gate < 3; gate++) {
            NAME(operands) o = {.x = all->input.U ? x : x + gate * n,
                                .x_stride = n_x,
                                .a = gate < 2 ? after : reset,
                                .a_stride = gate < 2 ? n : stride,
                                .y = gate == 1 ? y_u : y_r,
                                .y_stride = stride,
                                .width = (int)stride};
            if (gate == 2) {
                for (int i = 0; i < count; i++)
                    NAME(gru_row)(n, (i < kept ? after : initial) + i * n, y_r + i * stride,
                                  y_u + i * stride, gates + i * 3 * n, reset + i * stride);
                NAME(apply)(&job->gates[gate], &o, count);
                continue;
            }
            NAME(apply)(&job->gates[gate], &o, kept);
            o.x += kept * n_x;
            o.a = initial + kept * n;
            o.y += kept * stride;
            NAME(apply)(&job->gates[gate], &o, count - kept);
        }
        for (int i = 0; i < count; i++) {
            const REAL *before = (i < kept ? after : initial) + i * n;
            if (job->activation == MODRELU)
                NAME(gru_row_state)(MODRELU, n, before, y_c + i * stride, all->b, gates + i * 3 * n,
                                    h + i * n);
            else
                NAME(gru_row_state)(TANH, n, before, y_c + i * stride, NULL, gates + i * 3 * n,
                                    h + i * n);
        }
    }
    return 0;
}

/* delta and r h of one thread's rows at one step. */
static void NAME(gru_step_back)(const NAME(gru_back_job) *job, const Walk *at, int first, int last,
                                int carried, REAL *delta, ptrdiff_t stride, REAL *reset) {
    const Gru *all = job->all;
    const ptrdiff_t n = all->H, padded = NAME(padded)(n);
    const int count = rows_between(first, last, at->size);
    const int kept = rows_between(first, last, kept_rows(at));
    const ptrdiff_t here = (at->offset + first) * n;
    const REAL *after = (const REAL *)all->h + (at->before_offset + first) * n;
    const REAL *initial = (const REAL *)all->h0 + first * n;
    const REAL *grad_h = (const REAL *)all->grad_h + here;
    const REAL *gates = (const REAL *)all->gates + 3 * here;
    const REAL *grad_gates = all->grad_gates ? (const REAL *)all->grad_gates + 3 * here : NULL;
    REAL *carry = job->carry + first * padded, *direct = job->direct + first * padded;
    REAL *v = carry; /* between the two passes of a step */
    for (int i = 0; i < count; i++) {
        const REAL *before = (i < kept ? after : initial) + i * n;
        const REAL *carry_i = i < carried ? carry + i * padded : NULL;
        const REAL *grad_i = grad_gates ? grad_gates + i * 3 * n : NULL;
        if (job->activation == MODRELU)
            NAME(gru_row_state_back)(MODRELU, n, grad_h + i * n, carry_i, before, gates + i * 3 * n,
                                     grad_i, delta + i * stride, direct + i * padded);
        else
            NAME(gru_row_state_back)(TANH, n, grad_h + i * n, carry_i, before, gates + i * 3 * n,
                                     grad_i, delta + i * stride, direct + i * padded);
    }
    NAME(product)(job->W_c, n, n, delta + 2 * n, stride, v, padded, count);
    for (int i = 0; i < count; i++)
        NAME(gru_row_back)(n, v + i * padded, (i < kept ? after : initial) + i * n,
                           gates + i * 3 * n, grad_gates ? grad_gates + i * 3 * n : NULL,
                           delta + i * stride, direct + i * padded, reset + i * padded);
    NAME(product)(job->W_gates, 2 * n, n, delta, stride, carry, padded, count);
    /* sequences with no step before this one hand their gradient to h0 */
    for (int i = kept; i < count; i++)
        for (int j = 0; j < n; j++)
            ((REAL *)all->grad_h0)[(first + i) * n + j] =
                carry[i * padded + j] + direct[i * padded + j];
}

static int NAME(gru_rows_back)(void *data, const Share *share) {
    const NAME(gru_back_job) *job = data;
    const Gru *all = job->all;
    const Input *input = &all->input;
    const NAME(chunks) *chunks = &job->chunks;
    const int first = share->first, last = share->last, thread = share->index;
    const ptrdiff_t n = all->H, padded = NAME(padded)(n), I = input->I;
    /* without U, delta is the gradient of x */
    REAL *delta_all = input->U ? NULL : input->grad_x;
    const ptrdiff_t stride = delta_all ? 3 * n : chunks->stride;
    REAL *panel = chunks->panels + thread * NAME(panel_size)(chunks->most);
    const NAME(factor) states = NAME(factor_of)(chunks, thread, STATES, n, all->grad_W, 3 * n);
    const NAME(factor) resets = NAME(factor_of)(
        chunks, thread, RESETS, n, all->grad_W ? (REAL *)all->grad_W + 2 * n : NULL, 3 * n);
    const NAME(factor) inputs = NAME(factor_of)(chunks, thread, INPUTS, I, input->grad_U, 3 * n);
    int carried = 0, turn = 0;
    for (Walk at = walk(job->steps, 1); at.more; turn ^= 1) {
        const Chunk chunk = next_chunk(at, chunks->goal);
        REAL *d = delta_all ? delta_all + chunk.offset * 3 * n : chunks->d[turn];
        NAME(rows_before)(states.rows, at, &chunk, all->h, all->h0, n);
        NAME(rows_of)(resets.rows, job->reset[turn], padded, chunk.rows);
        if (inputs.sums)
            NAME(rows_of)(inputs.rows, (const REAL *)input->x + chunk.offset * I, I, chunk.rows);
        for (int s = 0; s < chunk.steps; s++, advance(&at)) {
            const ptrdiff_t row = at.offset + first - chunk.offset;
            REAL *delta = d + row * stride;
            NAME(gru_step_back)(job, &at, first, last, carried, delta, stride,
                                job->reset[turn] + row * padded);
            carried = rows_between(first, last, kept_rows(&at));
            if (!input->U || !input->grad_x) continue;
            const NAME(operands) to_x = {.a = delta,
                                         .a_stride = stride,
                                         .y = (REAL *)input->grad_x + (at.offset + first) * I,
                                         .y_stride = I,
                                         .width = (int)I};
            NAME(apply)(&job->to_x, &to_x, rows_between(first, last, at.size));
        }
        meet(share->team);
        if (!job->summed) continue;
        const NAME(outer_sums) of_gates = {.n = 2 * n, .factors = {states}};
        const NAME(outer_sums) of_c = {
            .n = n,
            .factors = {resets},
            .signed_sums = all->grad_b,
            .states = (const REAL *)all->gates + chunk.offset * 3 * n + 2 * n,
            .state_stride = 3 * n,
        };
        const NAME(outer_sums) of_all = {
            .n = 3 * n, .factors = {inputs}, .column_sums = input->grad_c};
        const int threads = share->team->count;
        if (all->grad_W) NAME(outer)(&of_gates, d, stride, chunk.rows, panel, thread, threads);
        if (all->grad_W || all->grad_b)
            NAME(outer)(&of_c, d + 2 * n, stride, chunk.rows, panel, thread, threads);
        if (input->grad_U || input->grad_c)
            NAME(outer)(&of_all, d, stride, chunk.rows, panel, thread, threads);
    }
    return 0;
}

static int NAME(gru)(const Steps *steps, const Gru *all, int threads) {
    const int H = (int)all->H, I = (int)all->input.I;
    const size_t row = NAME(padded)(H) * sizeof(REAL);
    NAME(gru_job) job = {.steps = steps, .all = all, .activation = all->b ? MODRELU : TANH};
    Arena arena = {0};
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        for (int gate = 0; gate < 3; gate++) {
            REAL *U = NULL, *W = room(&arena, NAME(packed_size)(H, H) * sizeof(REAL));
            if (all->input.U) U = room(&arena, NAME(packed_size)(I, H) * sizeof(REAL));
            const REAL *c = all->input.c;
            if (c) c = copy_padded(&arena, c + gate * H, H, NAME(padded)(H), sizeof(REAL));
            job.gates[gate] = (NAME(sum)){
                .n_x = I, .n_a = H, .n_out = H, .U = U, .W = W, .c = c, .activation = IDENTITY};
            if (!round) continue;
            /* y_j = sum_k x_k U_jk + sum_k h_k W_jk for each of the three */
            NAME(pack)(W, (const REAL *)all->W + (size_t)gate * H * H, 1, H, H, H);
            if (U) NAME(pack)(U, (const REAL *)all->input.U + (size_t)gate * H * I, 1, I, I, H);
        }
        job.y_r = room(&arena, steps->B * row);
        job.y_u = room(&arena, steps->B * row);
        job.reset = room(&arena, steps->B * row);
    }
    advise_huge_pages(all->h, steps->rows * H * sizeof(REAL));
    advise_huge_pages(all->gates, steps->rows * 3 * H * sizeof(REAL));
    const int error = split(NAME(gru_rows), &job, steps, threads);
    free(arena.memory);
    return error;
}

static int NAME(gru_back)(const Steps *steps, const Gru *all, int threads) {
    const Input *input = &all->input;
    const int H = (int)all->H, I = (int)input->I, F = 3 * H;
    const size_t row = NAME(padded)(H) * sizeof(REAL);
    NAME(gru_back_job) job = {.steps = steps, .all = all, .activation = all->b ? MODRELU : TANH};
    Arena arena = {0};
    REAL *W_gates = NULL, *W_c = NULL, *U = NULL;
    for (int round = 0; round < 2; round++) {
        if (round && open_arena(&arena)) return OUT_OF_MEMORY;
        W_gates = room(&arena, NAME(packed_size)(2 * H, H) * sizeof(REAL));
        W_c = room(&arena, NAME(packed_size)(H, H) * sizeof(REAL));
        if (input->U) U = room(&arena, NAME(packed_size)(F, I) * sizeof(REAL));
        job.carry = room(&arena, steps->B * row);
        job.direct = room(&arena, steps->B * row);
        NAME(room_for_chunks)(&job.chunks, &arena, steps, F,
                              (int[FACTORS]){H, input->U ? I : 0, H}, most_threads(steps, threads));
        for (int i = 0; i < 2; i++) job.reset[i] = room(&arena, job.chunks.most * row);
    }
    /* y_j = sum_k delta_k W_kj: r and u in one sum, then c */
    NAME(pack)(W_gates, all->W, H, 1, 2 * H, H);
    NAME(pack)(W_c, (const REAL *)all->W + (size_t)2 * H * H, H, 1, H, H);
    if (U) NAME(pack)(U, input->U, I, 1, F, I);
    job.W_gates = W_gates;
    job.W_c = W_c;
    job.to_x = (NAME(sum)){.n_a = F, .n_out = I, .W = U, .activation = IDENTITY};
    job.summed = all->grad_W || input->grad_U || input->grad_c || all->grad_b;
    NAME(clear)(all->grad_W, (size_t)H * F);
    NAME(clear)(input->grad_U, (size_t)I * F);
    NAME(clear)(input->grad_c, F);
    NAME(clear)(all->grad_b, H);
    if (!input->U && input->grad_x)
        advise_huge_pages(input->grad_x, steps->rows * F * sizeof(REAL));
    const int error = split(NAME(gru_rows_back), &job, steps, threads);
    free(arena.memory);
    return error;
}
