// [i; f; g; o] = N_x(x_t) + N_h(W h_{t-1} + b), c_t = σ(f) c_{t-1} + σ(i) tanh(g) and
// h_t = σ(o) tanh(N_c(c_t)) for all steps: x (T, B, 4H), h and c (T, B, H), h0 and c0 (B, H),
// W (4H, H), b (4H) or null. kept (T, B, 4H) are the gates, or z of N_h where there is one; the
// statistics, (4, T, B), are mean and variance of each step, and mean and 1/sqrt(variance + eps) of
// its window; those of N_x have been computed before. With the table of a packed sequence all
// (T, B, ·) are (N, ·). Arrays have a part for every network, unless their bits in `shared_arrays`
// are set.
#include "lstm_block.cuh"

using Recurrent = Weights<0, H, 4>;
using Before = Buffers<Recurrent, H>;

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_forward(
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
    const long long* __restrict__ table, int T, int B, int K, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const long long row = blockIdx.x, rows = T * (long long)B;

  x = of_network(x, shared_arrays, 0, rows * 4 * H);
  h0 = of_network(h0, shared_arrays, 1, B * H);
  c0 = of_network(c0, shared_arrays, 2, B * H);
  W = of_network(W, shared_arrays, 3, 4 * H * H);
  b = of_network(b, shared_arrays, 4, 4 * H);
  gamma_x = of_network(gamma_x, shared_arrays, 5, 4 * H);
  beta_x = of_network(beta_x, shared_arrays, 6, 4 * H);
  reference_x = of_network(reference_x, shared_arrays, 7, B);
  gamma_h = of_network(gamma_h, shared_arrays, 8, 4 * H);
  beta_h = of_network(beta_h, shared_arrays, 9, 4 * H);
  reference_h = of_network(reference_h, shared_arrays, 10, B);
  past_h = of_network(past_h, shared_arrays, 11, 2LL * (K - 1) * B);
  gamma_c = of_network(gamma_c, shared_arrays, 12, H);
  beta_c = of_network(beta_c, shared_arrays, 13, H);
  reference_c = of_network(reference_c, shared_arrays, 14, B);
  past_c = of_network(past_c, shared_arrays, 15, 2LL * (K - 1) * B);
  weights = of_network(weights, shared_arrays, 16, (K - 1) * (long long)B);
  statistics_x = of_network(statistics_x, shared_arrays, 17, 4 * rows);
  h = of_network(h, shared_arrays, 18, rows * H);
  c = of_network(c, shared_arrays, 19, rows * H);
  kept = of_network(kept, shared_arrays, 20, rows * 4 * H);
  statistics_h = of_network(statistics_h, shared_arrays, 21, 4 * rows);
  statistics_c = of_network(statistics_c, shared_arrays, 22, 4 * rows);

  Before before;
  before.init(memory, [&](int, int k) { return h0[row * H + k]; });
  // the gates of a unit are neighbours
  Recurrent recurrent;
  recurrent.load(memory += Before::FLOATS, [&](int output, int k) {
    return output < 4 * H && k < H ? W[(output % 4 * H + output / 4) * H + k] : 0.0f;
  });
  const Lane lane(recurrent);
  const int output = lane.role * GATES * H + lane.unit;  // the first of the lane
  float cell = lane.used ? c0[row * H + lane.unit] : 0.0f, bias[GATES];
#pragma unroll
  for (int i = 0; i < GATES; ++i) bias[i] = b && lane.used ? b[output + i * H] : 0.0f;

  const float* x_ahead = x + row * 4 * H + output;
  Inputs<GATES> ahead;
  ahead.init(memory += Recurrent::SHARED_FLOATS);
  // mean and scale of N_x
  const int tid = threadIdx.x;
  Scalars<2> scalars(memory += ahead.FLOATS, NORM_X && tid < 2
                                                 ? statistics_x + (2 + tid) * (long long)T * B + row
                                                 : nullptr);
  memory += scalars.FLOATS;
  InputNorm N_x;
  BlockNorm<0, GATES> N_h;
  BlockNorm<1, 1> N_c;
  const Site of_x = {gamma_x, beta_x, reference_x}, of_h = {gamma_h, beta_h, reference_h, past_h};
  const Site of_c = {gamma_c, beta_c, reference_c, past_c};
  if constexpr (NORM_X) N_x.load(of_x, row, output, lane.used);
  if constexpr (NORM_H) {
    N_h.load(of_h, row, output, lane.used);
    memory = N_h.init(memory, of_h, lane.used, weights, statistics_h, row, T, B, K);
#pragma unroll
    for (int i = 0; i < GATES; ++i) bias[i] -= N_h.reference;
  }
  if constexpr (NORM_C) {
    N_c.load(of_c, row, lane.unit, lane.used);
    N_c.init(memory, of_c, lane.used, weights, statistics_c, row, T, B, K);
  }

  Steps steps(table, row, T, B, false), steps_ahead = steps;
  int t_ahead = 0;
  const auto fetch = [&] {
    if (t_ahead < steps.T) {
#pragma unroll
      for (int i = 0; i < GATES; ++i)
        if (lane.used) ahead.fetch(i, 0, x_ahead + i * H);
      scalars.fetch(B);
    }
    ahead.end_of_step();
    scalars.end_of_step();
    x_ahead += steps_ahead.advance() * 4 * H;
    ++t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();
  machine::wait_for_copies<DEPTH - 2>();

  kept += row * 4 * H + output;
  float* out = (lane.role == 0 ? h : c) + row * H + lane.unit;
  for (int t = 0; t < steps.T; ++t) {
    float a[GATES], input[GATES], z[GATES];
    recurrent.multiply(before.before(0), a, [&] {
      if (WINDOWED && t > 0) {
        if constexpr (NORM_H) N_h.sum_before();
        if constexpr (NORM_C) N_c.sum_before();
      }
      fetch();
      // one step earlier than this thread needs its own: others read the scalars after a barrier
      machine::wait_for_copies<DEPTH - 2>();
#pragma unroll
      for (int i = 0; i < GATES; ++i) {
        input[i] = ahead.get(i, 0);
        if constexpr (NORM_X)
          input[i] = N_x.normalize(i, input[i], scalars.get(0), scalars.get(1));
      }
      scalars.advance();
    });
#pragma unroll
    for (int i = 0; i < GATES; ++i) a[i] += bias[i];
    if constexpr (NORM_H) {
      N_h.observe(a);
      __syncthreads();
      N_h.finish();
      N_h.write(B);
#pragma unroll
      for (int i = 0; i < GATES; ++i) {
        z[i] = N_h.normal(a[i]);
        a[i] = fmaf(N_h.gamma[i], z[i], N_h.beta[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < GATES; ++i) {
      a[i] = activate_gate(i, lane.role, a[i] + input[i]);
      if (lane.used) kept[i * H] = NORM_H ? z[i] : a[i];
    }
    const long long step = steps.advance() * H;
    kept += 4 * step;

    float gates[Recurrent::QUADS][4];
    recurrent.gather(a, gates);
    cell = fmaf(gates[0][I], gates[0][G], gates[0][F] * cell);
    float y[1] = {cell};
    if constexpr (NORM_C) {
      y[0] -= N_c.reference;
      N_c.observe(y);
      __syncthreads();
      N_c.finish();
      N_c.write(B);
      y[0] = fmaf(N_c.gamma[0], N_c.normal(y[0]), N_c.beta[0]);
    }
    const float state = gates[0][O] * tanhf(y[0]);
    if (lane.writes) before.set(0, lane.unit, state);
    before.advance();
    if (lane.used) *out = lane.role == 0 ? state : cell;
    out += step;
  }
}
