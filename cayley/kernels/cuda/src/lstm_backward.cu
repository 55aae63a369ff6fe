// The gradient of lstm_forward.cu, last step first: d is that of the gates' arguments, da with N_h
// that of W h_{t-1} + b, both (T, B, 4H). `partial` has `width` numbers for each row of the batch,
// first the gradients of gamma_c and beta_c. The input and other parameters are left to
// lstm_input_backward.cu. With the table of a packed sequence all (T, B, ·) are (N, ·), but those
// of statistics. Arrays have a part for every network, unless their bits in `shared_arrays` are
// set; `partial` has that of `parts` rows.
#include "lstm_block.cuh"

using Back = Weights<0, 4 * H, 1>;
using Delta = Buffers<Back, 4 * H>;
using Statistics = Scalars<8>;  // m, mean and scale of N_h and N_c, mean and scale of N_x

// Of each normalisation the sums of two values, which every warp adds to.
struct Partials {
  Pair* pairs;  // (2, WARPS)

  __device__ Pair& of(int site, int warp = threadIdx.x / 32) const {
    return pairs[site * WARPS + warp];
  }

  // After a barrier.
  __device__ Pair sum(int site) const {
    Pair sums = {0, 0};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
      sums.first += of(site, warp).first;
      sums.second += of(site, warp).second;
    }
    return sums;
  }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_backward(
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
    const long long* __restrict__ table, int T, int B, int K, int width, int parts,
    int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const long long row = blockIdx.x, rows = T * (long long)B;

  x = of_network(x, shared_arrays, 0, rows * 4 * H);
  grad_h = of_network(grad_h, shared_arrays, 1, rows * H);
  grad_c = of_network(grad_c, shared_arrays, 2, rows * H);
  external_h = of_network(external_h, shared_arrays, 3, 4 * rows);
  external_c = of_network(external_c, shared_arrays, 4, 4 * rows);
  c = of_network(c, shared_arrays, 5, rows * H);
  kept = of_network(kept, shared_arrays, 6, rows * 4 * H);
  statistics_x = of_network(statistics_x, shared_arrays, 7, 4 * rows);
  statistics_h = of_network(statistics_h, shared_arrays, 8, 4 * rows);
  statistics_c = of_network(statistics_c, shared_arrays, 9, 4 * rows);
  c0 = of_network(c0, shared_arrays, 10, B * H);
  W = of_network(W, shared_arrays, 11, 4 * H * H);
  gamma_x = of_network(gamma_x, shared_arrays, 12, 4 * H);
  beta_x = of_network(beta_x, shared_arrays, 13, 4 * H);
  reference_x = of_network(reference_x, shared_arrays, 14, B);
  gamma_h = of_network(gamma_h, shared_arrays, 15, 4 * H);
  beta_h = of_network(beta_h, shared_arrays, 16, 4 * H);
  reference_h = of_network(reference_h, shared_arrays, 17, B);
  past_h = of_network(past_h, shared_arrays, 18, 2LL * (K - 1) * B);
  gamma_c = of_network(gamma_c, shared_arrays, 19, H);
  beta_c = of_network(beta_c, shared_arrays, 20, H);
  reference_c = of_network(reference_c, shared_arrays, 21, B);
  past_c = of_network(past_c, shared_arrays, 22, 2LL * (K - 1) * B);
  weights = of_network(weights, shared_arrays, 23, (K - 1) * (long long)B);
  d = of_network(d, shared_arrays, 24, rows * 4 * H);
  da = of_network(da, shared_arrays, 25, rows * 4 * H);
  grad_h0 = of_network(grad_h0, shared_arrays, 26, B * H);
  grad_c0 = of_network(grad_c0, shared_arrays, 27, B * H);
  partial = of_network(partial, shared_arrays, 28, parts * (long long)width);
  grad_past_h = of_network(grad_past_h, shared_arrays, 29, 2LL * (K - 1) * B);
  grad_past_c = of_network(grad_past_c, shared_arrays, 30, 2LL * (K - 1) * B);

  Delta delta;
  delta.init(memory, [](int, int) { return 0.0f; });
  // the gates of a unit are neighbours
  Back back;
  back.load(memory += Delta::FLOATS, [&](int output, int k) {
    return output < H && k < 4 * H ? W[(k % 4 * H + k / 4) * H + output] : 0.0f;
  });
  const Lane lane(back);
  const int output = lane.role * GATES * H + lane.unit;  // the first of the lane

  Inputs<2 * GATES + 3> ahead;
  ahead.init(memory += Back::SHARED_FLOATS);
  const int tid = threadIdx.x;
  Steps steps(table, row, T, B, true);
  // of each normalisation three threads read a statistic, of N_x two
  const float* statistic = tid < 3                       ? statistics_h
                           : tid < 6                     ? statistics_c
                           : NORM_X && NORM_H && tid < 8 ? statistics_x
                                                         : nullptr;
  if (statistic) {
    const int which = tid < 6 ? tid % 3 + (tid % 3 > 0) : tid - 4;
    statistic += (which * (long long)T + steps.T - 1) * B + row;
  }
  Statistics statistics(memory += ahead.FLOATS, statistic);
  const Partials partials = {reinterpret_cast<Pair*>(memory += Statistics::FLOATS)};
  memory += 4 * WARPS;
  InputNorm N_x;
  NormBack<0, GATES> N_h;
  NormBack<1, 1> N_c;
  const Site of_x = {gamma_x, beta_x, reference_x}, of_h = {gamma_h, beta_h, reference_h, past_h};
  const Site of_c = {gamma_c, beta_c, reference_c, past_c};
  if constexpr (NORM_X && NORM_H) N_x.load(of_x, row, output, lane.used);
  if constexpr (NORM_H) {
    N_h.load(of_h, row, output, lane.used);
    memory = N_h.init(memory, of_h, weights, external_h, row, steps.T, B, K);
  }
  if constexpr (NORM_C) {
    N_c.load(of_c, row, lane.unit, lane.used);
    N_c.init(memory, of_c, weights, external_c, row, steps.T, B, K);
  }

  Steps steps_ahead = steps;
  long long at = steps.first + row, at_ahead = at;
  int t_ahead = steps.T - 1;
  const auto fetch = [&] {
    const long long step = steps_ahead.advance();
    if (t_ahead >= 0) {
      if (lane.used) {
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          const long long gate = at_ahead * 4 * H + output + i * H;
          ahead.fetch(i, 0, kept + gate);
          if (NORM_H) ahead.fetch(GATES + i, 0, x + gate);
        }
        if (grad_h) ahead.fetch(2 * GATES, 0, grad_h + at_ahead * H + lane.unit);
        if (grad_c) ahead.fetch(2 * GATES + 1, 0, grad_c + at_ahead * H + lane.unit);
        ahead.fetch(2 * GATES + 2, 0,
                    (t_ahead > 0 ? c + (at_ahead + step) * H : c0 + row * H) + lane.unit);
      }
      statistics.fetch(-B);
    }
    at_ahead += step;
    ahead.end_of_step();
    statistics.end_of_step();
    --t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();
  machine::wait_for_copies<0>();
  __syncthreads();

  float cell = lane.used ? c[at * H + lane.unit] : 0.0f, carry = 0;
  float grad_gamma_c = 0, grad_beta_c = 0;
  for (int t = steps.T - 1; t >= -1; --t) {
    float dh[1], from_h = 0, from_c = 0, cell_before = 0, z_h[GATES] = {}, z_c = 0, tanh_c = 0;
    float own[GATES], other[GATES];  // gates of this lane, and of the other one of the unit
    back.multiply(delta.before(0), dh, [&] {
      if (WINDOWED && t < steps.T - 1) {
        if constexpr (NORM_H) N_h.sum_after();
        if constexpr (NORM_C) N_c.sum_after();
      }
      fetch();
      // one step earlier than this thread needs its own: others read the scalars after a barrier
      machine::wait_for_copies<DEPTH - 2>();
      from_h = ahead.get(2 * GATES, 0);
      from_c = ahead.get(2 * GATES + 1, 0);
      cell_before = ahead.get(2 * GATES + 2, 0);
      if constexpr (NORM_H) N_h.read(statistics.get(1), statistics.get(2), t, K);
      if constexpr (NORM_C) N_c.read(statistics.get(4), statistics.get(5), t, K);
#pragma unroll
      for (int i = 0; i < GATES; ++i) {
        own[i] = ahead.get(i, 0);
        if constexpr (NORM_H) {
          float input = ahead.get(GATES + i, 0);
          if constexpr (NORM_X)
            input = N_x.normalize(i, input, statistics.get(6), statistics.get(7));
          z_h[i] = own[i];
          own[i] = activate_gate(i, lane.role, fmaf(N_h.gamma[i], z_h[i], N_h.beta[i]) + input);
        }
        other[i] = __shfl_xor_sync(~0u, own[i], ROLE);
      }
      tanh_c = cell;
      if constexpr (NORM_C) {
        z_c = N_c.normal(cell);
        tanh_c = fmaf(N_c.gamma[0], z_c, N_c.beta[0]);
      }
      tanh_c = tanhf(tanh_c);
    });
    if (t < 0) {
      if (lane.writes) grad_h0[row * H + lane.unit] = dh[0];
      break;
    }
    dh[0] += from_h;
    const bool upper = lane.role;  // with G and O
    float dc = dh[0] * (upper ? own[1] : other[1]) * (1 - tanh_c * tanh_c);
    if constexpr (NORM_C) {
      grad_gamma_c += dc * z_c;
      grad_beta_c += dc;
      dc *= N_c.gamma[0] * N_c.scale;
      const float sum = sum_role(upper ? dc * z_c : dc);
      if (tid % 32 == 0) partials.of(1).first = sum;
      if (tid % 32 == ROLE) partials.of(1).second = sum;
      __syncthreads();
      N_c.finish(partials.sum(1), statistics.get(3), t, T, B, row);
      dc = N_c.pull(dc, z_c);
    }
    dc += from_c + carry;
    carry = dc * (upper ? other[1] : own[1]);
    float d_gates[GATES], d_a[GATES];
    d_gates[0] = other[0] * dc * (upper ? 1 - own[0] * own[0] : own[0] * (1 - own[0]));
    d_gates[1] = (upper ? tanh_c * dh[0] : cell_before * dc) * (own[1] * (1 - own[1]));
#pragma unroll
    for (int i = 0; i < GATES; ++i) d_a[i] = d_gates[i];
    if constexpr (NORM_H) {
      float S1 = 0, S2 = 0;
#pragma unroll
      for (int i = 0; i < GATES; ++i) {
        d_a[i] *= N_h.gamma[i] * N_h.scale;
        S1 += d_a[i];
        S2 = fmaf(d_a[i], z_h[i], S2);
      }
      const float sum = sum_two(S1, S2);
      if (tid % 32 == 0) partials.of(0).first = sum;
      if (tid % 32 == 1) partials.of(0).second = sum;
      __syncthreads();
      N_h.finish(partials.sum(0), statistics.get(0), t, T, B, row);
#pragma unroll
      for (int i = 0; i < GATES; ++i) d_a[i] = N_h.pull(d_a[i], z_h[i]);
    }
#pragma unroll
    for (int i = 0; i < GATES; ++i)
      if (lane.used) {
        const long long gate = at * 4 * H + output + i * H;
        delta.set(0, 4 * lane.unit + lane.role * GATES + i, d_a[i]);
        d[gate] = d_gates[i];
        if (NORM_H) da[gate] = d_a[i];
      }
    at += steps.advance();
    delta.advance();
    statistics.advance();
    cell = cell_before;
  }
  if (lane.writes) grad_c0[row * H + lane.unit] = carry;
  if (NORM_C && lane.writes) {
    partial += row * width + lane.unit;
    partial[0] = grad_gamma_c;
    partial[H] = grad_beta_c;
  }
  if constexpr (WINDOWED) {
    __syncthreads();
    if constexpr (NORM_H) N_h.pull_past(past_h, weights, grad_past_h, row, B, K);
    if constexpr (NORM_C) N_c.pull_past(past_c, weights, grad_past_c, row, B, K);
  }
}
