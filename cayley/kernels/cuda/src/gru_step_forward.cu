// One step of gru_forward.cu, in two launches: after the product with [W_r; W_u], and with PRODUCT
// = 1 after that with W_c. A product is where its gates will be: `saved` of step t begins with
// [W_r; W_u] h_{t-1}, and gets W_c (r h_{t-1}) between the launches. `reset`, (B, H), is r h_{t-1}.
#include "step.cuh"

#include "gru.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void gru_step_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ b,
    float* __restrict__ h, float* __restrict__ saved, float* __restrict__ reset,
    const long long* __restrict__ table, int T, int B, int reverse, int t) {
  const long long row = row_of_block(), at = start_of(table, t, T, B) + row;
  const int earlier = reverse ? t + 1 : t - 1;
  const bool begun = earlier >= 0 && earlier < steps_of(table, row, T);
  const float* const before = begun ? h + (start_of(table, earlier, T, B) + row) * H : h0 + row * H;
  each_unit([&](int, int unit) {
    const float* const in = x + at * 3 * H + unit;
    float* const out = saved + at * 3 * H + unit;
    const float state = before[unit];
    if constexpr (PRODUCT == 0) {
      const float r = sigmoid(out[0] + in[0]), u = sigmoid(out[H] + in[H]);
      out[0] = r;
      out[H] = u;
      reset[row * H + unit] = r * state;
    } else {
      const float bias = PHI == MODRELU ? b[unit] : 0.0f;
      const float u = out[H], c = activate<PHI>(out[2 * H] + in[2 * H], bias);
      out[2 * H] = c;
      h[at * H + unit] = interpolate(state, c, u);
    }
  });
}
