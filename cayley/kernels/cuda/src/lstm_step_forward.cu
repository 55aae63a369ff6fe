// One step of lstm_forward.cu: `kept` of step t has W h_{t-1} at first.
#include "lstm_step.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void lstm_step_forward(
    const float* __restrict__ x, const float* __restrict__ c0, const float* __restrict__ b,
    const float* __restrict__ gamma_x, const float* __restrict__ beta_x,
    const float* __restrict__ reference_x, const float* __restrict__ gamma_h,
    const float* __restrict__ beta_h, const float* __restrict__ reference_h,
    const float* __restrict__ past_h, const float* __restrict__ gamma_c,
    const float* __restrict__ beta_c, const float* __restrict__ reference_c,
    const float* __restrict__ past_c, const float* __restrict__ weights,
    const float* __restrict__ statistics_x, float* __restrict__ h, float* __restrict__ c,
    float* __restrict__ kept, float* __restrict__ statistics_h, float* __restrict__ statistics_c,
    const long long* __restrict__ table, int T, int B, int K, int t) {
  const long long row = row_of_block(), at = start_of(table, t, T, B) + row;
  const Site of_x = {gamma_x, beta_x, reference_x}, of_h = {gamma_h, beta_h, reference_h, past_h};
  const Site of_c = {gamma_c, beta_c, reference_c, past_c};
  InputNorm N_x;
  StepNorm<0, GATES> N_h;
  StepNorm<1, 1> N_c;
  if constexpr (NORM_H) N_h.init(of_h, weights, statistics_h, row, t, T, B, K);
  if constexpr (NORM_C) N_c.init(of_c, weights, statistics_c, row, t, T, B, K);
  const float mean = NORM_X ? statistics_x[statistic(2, t, row, T, B)] : 0.0f;
  const float scale = NORM_X ? statistics_x[statistic(3, t, row, T, B)] : 0.0f;

  const float* const cells = t > 0 ? c + (start_of(table, t - 1, T, B) + row) * H : c0 + row * H;
  float gates[EACH][GATES], input[EACH][GATES], cell[EACH], y[EACH][1];
  each_unit([&](int j, int unit) {
    if constexpr (NORM_X) N_x.load(of_x, row, unit, true);
    if constexpr (NORM_H) N_h.load(of_h, row, unit, true);
    cell[j] = cells[unit];
#pragma unroll
    for (int i = 0; i < GATES; ++i) {
      const long long gate = (at * 4 + i) * H + unit;
      const float bias = b ? b[i * H + unit] : 0.0f;
      gates[j][i] = kept[gate] + (NORM_H ? bias - N_h.reference : bias);
      input[j][i] = NORM_X ? N_x.normalize(i, x[gate], mean, scale) : x[gate];
    }
  });
  if constexpr (NORM_H) N_h.observe(gates);
  each_unit([&](int j, int unit) {
    float z[GATES];
    if constexpr (NORM_H) {
      N_h.load(of_h, row, unit, true);
      normalize_gates(N_h, gates[j], z);
    }
#pragma unroll
    for (int i = 0; i < GATES; ++i) {
      gates[j][i] = activate_gate(i, 0, gates[j][i] + input[j][i]);
      kept[(at * 4 + i) * H + unit] = NORM_H ? z[i] : gates[j][i];
    }
    cell[j] = next_cell(gates[j], cell[j]);
    c[at * H + unit] = cell[j];
    if constexpr (NORM_C) N_c.load(of_c, row, unit, true);
    y[j][0] = NORM_C ? cell[j] - N_c.reference : cell[j];
  });
  if constexpr (NORM_C) N_c.observe(y);
  each_unit([&](int j, int unit) {
    if constexpr (NORM_C) {
      N_c.load(of_c, row, unit, true);
      y[j][0] = fmaf(N_c.gamma[0], N_c.normal(y[j][0]), N_c.beta[0]);
    }
    h[at * H + unit] = gates[j][O] * tanhf(y[j][0]);
  });
}
