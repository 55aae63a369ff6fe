// lstm_backward.cu by teams of blocks; `words` has zeros.
#include "lstm_team.cuh"

using Back = Weights<0, 4 * UNITS, H>;
static_assert(Back::FLOATS + Back::SUMS + Reduce::FLOATS <= MEMORY);

// The sums of two values over all units of a row.
__device__ inline Pair sum_team(Totals& totals, const Member& member, float first, float second) {
  Pair pairs[Totals::TURNS];
  totals.exchange(member, sum_pair(first, second), pairs, [] {});
  first = second = 0;
#pragma unroll
  for (int turn = 0; turn < Totals::TURNS; ++turn) {
    first += pairs[turn].first;
    second += pairs[turn].second;
  }
  return sum_pair(first, second);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_team_backward(
    const float* __restrict__ x, const float* __restrict__ grad_h, const float* __restrict__ grad_c,
    const float* __restrict__ external_h, const float* __restrict__ external_c,
    const float* __restrict__ c, const float* __restrict__ kept,
    const float* __restrict__ statistics_x, const float* __restrict__ statistics_h,
    const float* __restrict__ statistics_c, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* __restrict__ reference_x,
    const float* __restrict__ gamma_h, const float* __restrict__ beta_h,
    const float* __restrict__ reference_h, const float* __restrict__ past_h,
    const float* __restrict__ gamma_c, const float* __restrict__ beta_c,
    const float* __restrict__ reference_c, const float* __restrict__ past_c,
    const float* __restrict__ weights, float* __restrict__ d, float* __restrict__ da,
    float* __restrict__ grad_h0, float* __restrict__ grad_c0, float* __restrict__ partial,
    float* __restrict__ grad_past_h, float* __restrict__ grad_past_c,
    machine::Word* __restrict__ words, const long long* __restrict__ table, int T, int B, int K,
    int width, int teams) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const Member member;

  Back back;
  back.init(memory, [&](int output, int k) {
    const int unit = member.first + k % UNITS;
    return unit < H ? W[(k / UNITS * H + unit) * H + output] : 0.0f;
  });
  float* const sums = memory += Back::FLOATS;
  float* const parts = memory += Back::SUMS;
  float* const windows = memory + Reduce::FLOATS + member.row * 8 * K;
  Reduce board(words, member.team);
  Totals totals(words + teams * 2LL * Reduce::SIZE, member.team);

  const Site of_x = {gamma_x, beta_x, reference_x}, of_h = {gamma_h, beta_h, reference_h, past_h};
  const Site of_c = {gamma_c, beta_c, reference_c, past_c};
  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const int rows = min(ROWS, B - first);
    const long long row = first + member.row;
    const bool there = member.row < rows, begins = there && member.here;
    const int length = there ? steps_of(table, row, T) : 0;
    __syncthreads();  // windows may still be read of the rows before
    NormBack<0, GATES> N_h;
    NormBack<1, 1> N_c;
    if (NORM_H && there) N_h.init(windows, of_h, weights, external_h, row, length, B, K);
    if (NORM_C && there) N_c.init(windows + 4 * K, of_c, weights, external_c, row, length, B, K);
    sync_row();

    Steps steps(table, first, T, B, true), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    int t_ahead = steps.T - 1;
    // m, mean and scale of N_h and N_c, mean and scale of N_x, each with one lane
    const int lane = member.lane;
    const float* statistic = lane < 3                       ? statistics_h
                             : lane < 6                     ? statistics_c
                             : NORM_X && NORM_H && lane < 8 ? statistics_x
                                                            : nullptr;
    const int which = lane < 6 ? lane % 3 + (lane % 3 > 0) : lane - 4;
    if (statistic) statistic += which * (long long)T * B + row;
    float next[GATES + 3] = {}, next_x[GATES] = {}, next_statistic = 0;
    const auto fetch = [&] {
      const bool counts = there && row < steps_ahead.rows;
      const long long now = ahead;
      ahead += steps_ahead.advance();
      if (counts && member.here) {
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          const long long gate = (now * 4 + i) * H + member.unit;
          next[i] = kept[gate];
          if (NORM_H) next_x[i] = x[gate];
        }
        if (grad_h) next[GATES] = grad_h[now * H + member.unit];
        if (grad_c) next[GATES + 1] = grad_c[now * H + member.unit];
        next[GATES + 2] = (t_ahead > 0 ? c + ahead * H : c0 + row * H)[member.unit];
      }
      if (counts && statistic) next_statistic = statistic[(long long)t_ahead * B];
      --t_ahead;
    };

    float cell_before = 0;
    if (begins) cell_before = c[(start_of(table, length - 1, T, B) + row) * H + member.unit];
    float gates[GATES], z_h[GATES], from_h, from_c, z_c, tanh_c, m_h, m_c;
    // What step t needs that does not wait for the one after it.
    const auto prepare = [&](int t) {
      if (there && row < steps.rows) {
        if (WINDOWED && t < length - 1) {
          if constexpr (NORM_H) N_h.sum_after();
          if constexpr (NORM_C) N_c.sum_after();
          sync_row();
        }
        // parameters are read at every step: registers are for weights
        InputNorm N_x;
        if constexpr (NORM_X && NORM_H) N_x.load(of_x, row, member.unit, member.here);
        if constexpr (NORM_H) N_h.load(of_h, row, member.unit, member.here);
        if constexpr (NORM_C) N_c.load(of_c, row, member.unit, member.here);
        const auto statistic_of = [&](int from) { return __shfl_sync(~0u, next_statistic, from); };
        if constexpr (NORM_H) {
          m_h = statistic_of(0);
          N_h.read(statistic_of(1), statistic_of(2), t, K);
        }
        if constexpr (NORM_C) {
          m_c = statistic_of(3);
          N_c.read(statistic_of(4), statistic_of(5), t, K);
        }
        const float mean = NORM_X && NORM_H ? statistic_of(6) : 0.0f;
        const float scale = NORM_X && NORM_H ? statistic_of(7) : 0.0f;
#pragma unroll
        for (int i = 0; i < GATES; ++i) gates[i] = z_h[i] = next[i];
        if constexpr (NORM_H) gates_again(N_h, N_x, mean, scale, z_h, next_x, gates);
        from_h = next[GATES];
        from_c = next[GATES + 1];
        tanh_c = cell_before;  // of the step after it
        if constexpr (NORM_C) {
          z_c = N_c.normal(cell_before);
          tanh_c = fmaf(N_c.gamma[0], z_c, N_c.beta[0]);
        }
        tanh_c = tanhf(tanh_c);
        cell_before = next[GATES + 2];
      }
      if (t > 0) fetch();
    };
    fetch();
    prepare(steps.T - 1);

    float dh = 0, carry = 0, grad_gamma_c = 0, grad_beta_c = 0;
    for (int t = steps.T - 1; t >= 0; --t) {
      const bool counts = there && row < steps.rows;
      float d_a[GATES] = {};
      if (counts) {
        dh += from_h;
        float dc = dh * gates[O] * (1 - tanh_c * tanh_c);
        if constexpr (NORM_C) {
          grad_gamma_c += dc * z_c;
          grad_beta_c += dc;
          dc *= N_c.gamma[0] * N_c.scale;
          N_c.finish(sum_team(totals, member, dc, dc * z_c), m_c, t, T, B, row);
          dc = N_c.pull(dc, z_c);
        }
        dc += from_c + carry;
        carry = dc * gates[F];
        pull_gates(gates, tanh_c, cell_before, dh, dc, d_a);
#pragma unroll
        for (int i = 0; i < GATES; ++i)
          if (member.here) d[(at * 4 + i) * H + member.unit] = d_a[i];
        if constexpr (NORM_H) {
          float S1 = 0, S2 = 0;
#pragma unroll
          for (int i = 0; i < GATES; ++i) {
            d_a[i] *= N_h.gamma[i] * N_h.scale;
            S1 += d_a[i];
            S2 = fmaf(d_a[i], z_h[i], S2);
          }
          N_h.finish(sum_team(totals, member, S1, S2), m_h, t, T, B, row);
#pragma unroll
          for (int i = 0; i < GATES; ++i) {
            d_a[i] = N_h.pull(d_a[i], z_h[i]);
            if (member.here) da[(at * 4 + i) * H + member.unit] = d_a[i];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < GATES; ++i)
        if (begins) back.set(member.row, i * UNITS + lane, d_a[i]);
      at += steps.advance();
      __syncthreads();
      back.multiply(sums);
      board.post<Back>(member, rows, sums);
      if (t > 0) prepare(t - 1);
      const float sum = board.collect(member, rows, parts);
      if (counts) dh = sum;
    }
    if (begins) {
      grad_h0[row * H + member.unit] = dh;
      grad_c0[row * H + member.unit] = carry;
    }
    if (NORM_C && begins) {
      partial[row * width + member.unit] = grad_gamma_c;
      partial[row * width + H + member.unit] = grad_beta_c;
    }
    if (WINDOWED && there) {
      if constexpr (NORM_H) N_h.sum_after();
      if constexpr (NORM_C) N_c.sum_after();
      sync_row();
      if (member.rank == 0) {
        if constexpr (NORM_H) N_h.pull_past(past_h, weights, grad_past_h, row, B, K);
        if constexpr (NORM_C) N_c.pull_past(past_c, weights, grad_past_c, row, B, K);
      }
    }
  }
}
