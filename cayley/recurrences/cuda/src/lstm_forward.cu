// [i; f; g; o] = N_x(x_t) + N_h(W h_{t-1} + b), c_t = σ(f) c_{t-1} + σ(i) tanh(g) and
// h_t = σ(o) tanh(N_c(c_t)) for all steps: x (T, B, 4H), h and c (T, B, H), h0 and c0 (B, H),
// W (4H, H), b (4H) or null. kept (T, B, 4H) are the gates, or z of N_h where there is one; the
// statistics, (4, T, B), are mean and variance of each step, and mean and 1/sqrt(variance + eps) of
// its window. With the table of a packed sequence all (T, B, ·) are (N, ·).
#include "lstm.cuh"

using Recurrent = Weights<0, H, 4>;
using Before = Buffers<Recurrent, H>;

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ b, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* __restrict__ reference_x,
    const float* __restrict__ past_x, const float* __restrict__ gamma_h,
    const float* __restrict__ beta_h, const float* __restrict__ reference_h,
    const float* __restrict__ past_h, const float* __restrict__ gamma_c,
    const float* __restrict__ beta_c, const float* __restrict__ reference_c,
    const float* __restrict__ past_c, const float* __restrict__ weights, float* __restrict__ h,
    float* __restrict__ c, float* __restrict__ kept, float* __restrict__ statistics_x,
    float* __restrict__ statistics_h, float* __restrict__ statistics_c,
    const long long* __restrict__ table, int T, int B, int K) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const long long row = blockIdx.x;

  Before before;
  before.init(memory, [&](int, int k) { return h0[row * H + k]; });
  // the gates of a unit are neighbours
  Recurrent recurrent;
  recurrent.load(memory += Before::FLOATS, [&](int output, int k) {
    return output < 4 * H && k < H ? W[(output % 4 * H + output / 4) * H + k] : 0.0f;
  });
  const Lane lane(recurrent);
  const int output = lane.used ? lane.role * H + lane.unit : 4 * H;
  float cell = lane.used ? c0[row * H + lane.unit] : 0.0f;
  float bias = b && lane.used ? b[output] : 0.0f;

  const float* x_ahead = x + row * 4 * H + output;
  Inputs<1> ahead;
  ahead.init(memory += Recurrent::SHARED_FLOATS);
  memory += ahead.FLOATS;
  Norm<0, 4 * H, false> N_x;
  Norm<1, 4 * H, false> N_h;
  Norm<2, H, true> N_c;
  if constexpr (NORM_X)
    memory = N_x.init(memory, {gamma_x, beta_x, reference_x, past_x}, weights, statistics_x, row, T,
                      B, K, output, lane.used);
  if constexpr (NORM_H) {
    memory = N_h.init(memory, {gamma_h, beta_h, reference_h, past_h}, weights, statistics_h, row, T,
                      B, K, output, lane.used);
    bias -= N_h.reference;
  }
  if constexpr (NORM_C)
    N_c.init(memory, {gamma_c, beta_c, reference_c, past_c}, weights, statistics_c, row, T, B, K,
             lane.unit, lane.used);

  Steps steps(table, row, T, B, false), steps_ahead = steps;
  int t_ahead = 0;
  const auto fetch = [&] {
    if (t_ahead < steps.T && lane.used) ahead.fetch(0, 0, x_ahead);
    ahead.end_of_step();
    x_ahead += steps_ahead.advance() * 4 * H;
    ++t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  kept += row * 4 * H + output;
  float* out = (lane.role == 0 ? h : c) + row * H + lane.unit;
  for (int t = 0; t < steps.T; ++t) {
    float a[1], input;
    recurrent.multiply(before.before(t, 0), a, [&] {
      if (WINDOWED && t > 0) {
        if constexpr (NORM_X) N_x.sum_before();
        if constexpr (NORM_H) N_h.sum_before();
        if constexpr (NORM_C) N_c.sum_before();
      }
      fetch();
      ahead.wait();
      input = ahead.get(0, 0);
      if constexpr (NORM_X) N_x.observe(input -= N_x.reference);
    });
    a[0] += bias;
    if constexpr (NORM_H) N_h.observe(a[0]);
    if constexpr (NORM_X || NORM_H) __syncthreads();
    if constexpr (NORM_X) {
      N_x.finish();
      N_x.write(B);
      input = fmaf(N_x.gamma, N_x.normal(input), N_x.beta);
    }
    float z;
    if constexpr (NORM_H) {
      N_h.finish();
      N_h.write(B);
      z = N_h.normal(a[0]);
      a[0] = fmaf(N_h.gamma, z, N_h.beta);
    }
    a[0] += input;
    a[0] = lane.role == G ? tanhf(a[0]) : sigmoid(a[0]);
    if (lane.used) *kept = NORM_H ? z : a[0];
    const long long step = steps.advance() * H;
    kept += 4 * step;

    float gates[Recurrent::QUADS][4];
    recurrent.gather(a, gates);
    cell = fmaf(gates[0][I], gates[0][G], gates[0][F] * cell);
    float y = cell;
    if constexpr (NORM_C) {
      y -= N_c.reference;
      N_c.observe(y);
      __syncthreads();
      N_c.finish();
      N_c.write(B);
      y = fmaf(N_c.gamma, N_c.normal(y), N_c.beta);
    }
    const float state = gates[0][O] * tanhf(y);
    if (lane.writes) before.set(0, lane.unit, state);
    before.advance();
    if (lane.used && lane.role < 2) *out = lane.role == 0 ? state : cell;
    out += step;
  }
}
