// lstm_forward.cu by teams of blocks; `words` has zeros.
#include "lstm_team.cuh"

using Recurrent = Weights<0, H, 4 * UNITS>;
static_assert(Recurrent::FLOATS + Recurrent::SUMS <= MEMORY);

// N of the values of all units, VALUES for each. Every block comes to the same statistics, and the
// first one writes them.
template <int SITE, int VALUES>
struct TeamNorm : Norm<SITE, VALUES> {
  using Base = Norm<SITE, VALUES>;

  // The values that a block has.
  __device__ static float count(int block) {
    return block < BLOCKS ? VALUES * min(UNITS, H - block * UNITS) : 0;
  }

  // Those of step t, to be called by all lanes of the row.
  __device__ void observe(Totals& totals, const Member& member, const float (&a)[VALUES], int t,
                          int B) {
    // as in lstm_block.cuh, by a shift to one of the values, then to the mean of one of the blocks
    float shift = __shfl_sync(~0u, a[0], 0), first = 0, second = 0;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const float d = member.here ? a[i] - shift : 0.0f;
      first += d;
      second = fmaf(d, d, second);
    }
    const Pair own = sum_pair(first, second);
    const float offset = __fdividef(own.first, count(member.rank));
    Pair pairs[Totals::TURNS];
    totals.exchange(member, {shift + offset, own.second - own.first * offset}, pairs, [&] {
      if (WINDOWED && t > 0) Base::sum_before();
    });
    shift = __shfl_sync(~0u, pairs[0].first, 0);
    first = second = 0;
#pragma unroll
    for (int turn = 0; turn < Totals::TURNS; ++turn) {
      const float n = count(Totals::block(turn)), d = pairs[turn].first - shift;
      first = fmaf(n, d, first);
      second += fmaf(n * d, d, pairs[turn].second);
    }
    constexpr float PART = 1.0f / Base::FEATURES;
    const Pair all = sum_pair(first, second);
    sync_row();  // what the window sums up is there
    Base::finish(fmaf(all.first, PART, shift),
                 PART * fmaf(-PART * all.first, all.first, all.second));
    if (member.rank == 0) Base::write(B);
  }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_team_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ b, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* __restrict__ reference_x,
    const float* __restrict__ gamma_h, const float* __restrict__ beta_h,
    const float* __restrict__ reference_h, const float* __restrict__ past_h,
    const float* __restrict__ gamma_c, const float* __restrict__ beta_c,
    const float* __restrict__ reference_c, const float* __restrict__ past_c,
    const float* __restrict__ weights, const float* __restrict__ statistics_x,
    float* __restrict__ h, float* __restrict__ c, float* __restrict__ kept,
    float* __restrict__ statistics_h, float* __restrict__ statistics_c,
    machine::Word* __restrict__ words, const long long* __restrict__ table, int T, int B, int K,
    int teams) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const Member member;

  Recurrent recurrent;
  recurrent.init(memory, [&](int output, int k) {
    const int unit = member.first + output % UNITS;
    return unit < H ? W[(output / UNITS * H + unit) * H + k] : 0.0f;
  });
  float* const sums = memory + Recurrent::FLOATS;
  float* const windows = sums + Recurrent::SUMS + member.row * 8 * K;
  Gather board(words, member.team);
  Totals totals(words + teams * 2LL * Gather::SIZE, member.team);

  const Site of_x = {gamma_x, beta_x, reference_x}, of_h = {gamma_h, beta_h, reference_h, past_h};
  const Site of_c = {gamma_c, beta_c, reference_c, past_c};
  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const int rows = min(ROWS, B - first);
    const long long row = first + member.row;
    const bool there = member.row < rows;
    __syncthreads();  // the inputs are zero, or of the rows before
    for (int i = threadIdx.x; i < rows * H; i += THREADS)
      recurrent.set(i / H, i % H, h0[first * (long long)H + i]);
    float cell = there && member.here ? c0[row * H + member.unit] : 0.0f, state = 0;
    TeamNorm<0, GATES> N_h;
    TeamNorm<1, 1> N_c;
    if (NORM_H && there) N_h.init(windows, of_h, weights, statistics_h, row, T, B, K);
    if (NORM_C && there) N_c.init(windows + 4 * K, of_c, weights, statistics_c, row, T, B, K);

    Steps steps(table, first, T, B, false), steps_ahead = steps;
    long long at = row, ahead = row;
    // mean and scale of N_x are with the first two lanes
    const float* statistic = statistics_x + (2 + member.lane) * (long long)T * B + row;
    float next[GATES] = {}, next_statistic = 0;
    const auto fetch = [&] {
      const bool counts = there && row < steps_ahead.rows;
#pragma unroll
      for (int i = 0; i < GATES; ++i)
        if (counts && member.here) next[i] = x[(ahead * 4 + i) * H + member.unit];
      if (NORM_X && counts && member.lane < 2) next_statistic = *statistic;
      statistic += B;
      ahead += steps_ahead.advance();
    };
    fetch();
    __syncthreads();
    for (int t = 0; t < steps.T; ++t) {
      recurrent.multiply(sums);
      const bool counts = there && row < steps.rows;
      if (counts) {
        // parameters are read at every step: registers are for weights
        InputNorm N_x;
        if constexpr (NORM_X) N_x.load(of_x, row, member.unit, member.here);
        if constexpr (NORM_H) N_h.load(of_h, row, member.unit, member.here);
        if constexpr (NORM_C) N_c.load(of_c, row, member.unit, member.here);
        const float mean = NORM_X ? __shfl_sync(~0u, next_statistic, 0) : 0.0f;
        const float scale = NORM_X ? __shfl_sync(~0u, next_statistic, 1) : 0.0f;
        float a[GATES], z[GATES], input[GATES];
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          const float bias = b && member.here ? b[i * H + member.unit] : 0.0f;
          a[i] = NORM_H ? bias - N_h.reference : bias;
          if (member.here) a[i] += recurrent.output(sums, member.row, i * UNITS + member.lane);
          input[i] = NORM_X ? N_x.normalize(i, next[i], mean, scale) : next[i];
        }
        if constexpr (NORM_H) {
          N_h.observe(totals, member, a, t, B);
          normalize_gates(N_h, a, z);
        }
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          a[i] = activate_gate(i, 0, a[i] + input[i]);
          if (member.here) kept[(at * 4 + i) * H + member.unit] = NORM_H ? z[i] : a[i];
        }
        cell = next_cell(a, cell);
        float y[1] = {cell};
        if constexpr (NORM_C) {
          y[0] -= N_c.reference;
          N_c.observe(totals, member, y, t, B);
          y[0] = fmaf(N_c.gamma[0], N_c.normal(y[0]), N_c.beta[0]);
        }
        state = a[O] * tanhf(y[0]);
      }
      const bool more = t < steps.T - 1;
      if (more) board.post(member, rows, state);
      if (counts && member.here) {
        h[at * H + member.unit] = state;
        c[at * H + member.unit] = cell;
      }
      at += steps.advance();
      if (more) {
        fetch();
        board.collect(rows, recurrent);
      }
    }
  }
}
