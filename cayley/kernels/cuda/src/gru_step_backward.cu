// One step of gru_backward.cu, in two launches: before the product v = W_cᵀ delta_c, and with
// PRODUCT = 1 after it. grad_h0 holds what comes from later steps, then g, and in the end all that
// goes to the step before but [W_r; W_u]ᵀ [delta_r; delta_u], which is added to it afterwards. `v`
// is (B, H), and `partial` is added to at every step.
#include "step.cuh"

#include "gru.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void gru_step_backward(
    const float* __restrict__ grad_h, const float* __restrict__ h, const float* __restrict__ saved,
    const float* __restrict__ h0, const float* __restrict__ v, float* __restrict__ delta,
    float* __restrict__ grad_h0, float* __restrict__ partial, float* __restrict__ factors,
    const long long* __restrict__ table, int T, int B, int reverse, int t) {
  const long long row = row_of_block(), at = start_of(table, t, T, B) + row;
  const int length = steps_of(table, row, T);
  const int earlier = reverse ? t + 1 : t - 1, following = reverse ? t - 1 : t + 1;
  const bool begun = earlier >= 0 && earlier < length;
  const bool last = following < 0 || following >= length;  // no gradient comes from later steps
  const float* const before = begun ? h + (start_of(table, earlier, T, B) + row) * H : h0 + row * H;
  each_unit([&](int, int unit) {
    const float* const gates = saved + at * 3 * H + unit;
    float* const out = delta + at * 3 * H + unit;
    float* const sums = partial + row * 4 * H + unit;
    float& carry = grad_h0[row * H + unit];
    const float state = before[unit], r = gates[0], u = gates[H], c = gates[2 * H];
    const auto add = [&](int i, float value) { sums[i * H] = last ? value : sums[i * H] + value; };
    if constexpr (PRODUCT == 0) {
      const float g = grad_h[at * H + unit] + (last ? 0.0f : carry);
      const float d_c = delta_candidate<PHI>(g, u, c), d_u = delta_update(g, state, u, c);
      carry = g;
      out[H] = d_u;
      out[2 * H] = d_c;
      float* const factor = factors + at * 2 * H + unit;
      factor[0] = state;
      factor[H] = r * state;
      add(1, d_u);
      add(2, d_c);
      add(3, c < 0 ? -d_c : d_c);
    } else {
      const float from_c = v[row * H + unit], d_r = delta_reset(from_c, state, r);
      carry = carried(carry, from_c, r, u);
      out[0] = d_r;
      add(0, d_r);
    }
  });
}
