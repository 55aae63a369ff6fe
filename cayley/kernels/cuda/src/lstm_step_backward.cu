// One step of lstm_backward.cu, before the product that gives grad_h0 what goes to the step before.
// grad_h0 and grad_c0 hold the gradients of h_t and c_t that come from later steps, `partial` is
// added to at every step, and shares_h and shares_c, (2, T, B), keep p and q of StepBack.
#include "lstm_step.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void lstm_step_backward(
    const float* __restrict__ x, const float* __restrict__ grad_h, const float* __restrict__ grad_c,
    const float* __restrict__ external_h, const float* __restrict__ external_c,
    const float* __restrict__ c, const float* __restrict__ kept,
    const float* __restrict__ statistics_x, const float* __restrict__ statistics_h,
    const float* __restrict__ statistics_c, const float* __restrict__ c0,
    const float* __restrict__ gamma_x, const float* __restrict__ beta_x,
    const float* __restrict__ reference_x, const float* __restrict__ gamma_h,
    const float* __restrict__ beta_h, const float* __restrict__ reference_h,
    const float* __restrict__ past_h, const float* __restrict__ gamma_c,
    const float* __restrict__ beta_c, const float* __restrict__ reference_c,
    const float* __restrict__ past_c, const float* __restrict__ weights, float* __restrict__ d,
    float* __restrict__ da, const float* __restrict__ grad_h0, float* __restrict__ grad_c0,
    float* __restrict__ partial, float* __restrict__ grad_past_h, float* __restrict__ grad_past_c,
    float* __restrict__ shares_h, float* __restrict__ shares_c,
    const long long* __restrict__ table, int T, int B, int K, int width, int t) {
  const long long row = row_of_block(), at = start_of(table, t, T, B) + row;
  const int length = steps_of(table, row, T);
  const bool last = t == length - 1;  // no gradient comes from later steps
  const Site of_x = {gamma_x, beta_x, reference_x}, of_h = {gamma_h, beta_h, reference_h, past_h};
  const Site of_c = {gamma_c, beta_c, reference_c, past_c};
  InputNorm N_x;
  StepNormBack<0, GATES> N_h;
  StepNormBack<1, 1> N_c;
  if constexpr (NORM_H)
    N_h.init(of_h, weights, external_h, statistics_h, shares_h, row, length, t, T, B, K);
  if constexpr (NORM_C)
    N_c.init(of_c, weights, external_c, statistics_c, shares_c, row, length, t, T, B, K);
  const bool again = NORM_X && NORM_H;  // gates are computed from x again
  const float mean = again ? statistics_x[statistic(2, t, row, T, B)] : 0.0f;
  const float scale = again ? statistics_x[statistic(3, t, row, T, B)] : 0.0f;

  const float* const cells = t > 0 ? c + (start_of(table, t - 1, T, B) + row) * H : c0 + row * H;
  float gates[EACH][GATES], z_h[EACH][GATES], d_a[EACH][GATES];
  float dh[EACH], dc[EACH], z_c[EACH], tanh_c[EACH], S1 = 0, S2 = 0;
  each_unit([&](int j, int unit) {
    if constexpr (NORM_X && NORM_H) N_x.load(of_x, row, unit, true);
    if constexpr (NORM_H) N_h.load(of_h, row, unit, true);
    if constexpr (NORM_C) N_c.load(of_c, row, unit, true);
    float inputs[GATES];
#pragma unroll
    for (int i = 0; i < GATES; ++i) {
      const long long gate = (at * 4 + i) * H + unit;
      gates[j][i] = z_h[j][i] = kept[gate];
      inputs[i] = NORM_H ? x[gate] : 0.0f;
    }
    if constexpr (NORM_H) gates_again(N_h, N_x, mean, scale, z_h[j], inputs, gates[j]);
    tanh_c[j] = c[at * H + unit];
    if constexpr (NORM_C) {
      z_c[j] = N_c.normal(tanh_c[j]);
      tanh_c[j] = fmaf(N_c.gamma[0], z_c[j], N_c.beta[0]);
    }
    tanh_c[j] = tanhf(tanh_c[j]);
    dh[j] = last ? 0.0f : grad_h0[row * H + unit];
    if (grad_h) dh[j] += grad_h[at * H + unit];
    dc[j] = dh[j] * gates[j][O] * (1 - tanh_c[j] * tanh_c[j]);
    if constexpr (NORM_C) {
      float* const sums = partial + row * width + unit;
      sums[0] = fmaf(dc[j], z_c[j], last ? 0.0f : sums[0]);
      sums[H] = dc[j] + (last ? 0.0f : sums[H]);
      dc[j] *= N_c.gamma[0] * N_c.scale;
      S1 += dc[j];
      S2 = fmaf(dc[j], z_c[j], S2);
    }
  });
  if constexpr (NORM_C) N_c.finish(S1, S2, row, t, T, B);
  S1 = S2 = 0;
  each_unit([&](int j, int unit) {
    if constexpr (NORM_C) dc[j] = N_c.pull(dc[j], z_c[j]);
    float& carry = grad_c0[row * H + unit];
    if (grad_c) dc[j] += grad_c[at * H + unit];
    if (!last) dc[j] += carry;
    carry = dc[j] * gates[j][F];
    pull_gates(gates[j], tanh_c[j], cells[unit], dh[j], dc[j], d_a[j]);
    if constexpr (NORM_H) N_h.load(of_h, row, unit, true);
#pragma unroll
    for (int i = 0; i < GATES; ++i) {
      d[(at * 4 + i) * H + unit] = d_a[j][i];
      if constexpr (NORM_H) {
        d_a[j][i] *= N_h.gamma[i] * N_h.scale;
        S1 += d_a[j][i];
        S2 = fmaf(d_a[j][i], z_h[j][i], S2);
      }
    }
  });
  if constexpr (NORM_H) {
    N_h.finish(S1, S2, row, t, T, B);
    each_unit([&](int j, int unit) {
#pragma unroll
      for (int i = 0; i < GATES; ++i)
        da[(at * 4 + i) * H + unit] = N_h.pull(d_a[j][i], z_h[j][i]);
    });
  }
  if (WINDOWED && t == 0) {
    __syncthreads();
    if constexpr (NORM_H)
      N_h.pull_past(past_h, weights, grad_past_h, row, length, T, B, K);
    if constexpr (NORM_C)
      N_c.pull_past(past_c, weights, grad_past_c, row, length, T, B, K);
  }
}
