// z_t = x_t + W h_{t-1} and h_t = modReLU(z_t; b) for all steps, with x, h and z (T, B, 2N), h0
// (B, 2N), the angles theta and phases phi of all pairs, omega (N), those of D, and b (N). With the
// table of a packed sequence (T, B, 2N) is (rows, 2N).
#include "rotated.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void rotated_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ theta,
    const float* __restrict__ phi, const float* __restrict__ omega, const float* __restrict__ b,
    float* __restrict__ h, float* __restrict__ z, const long long* __restrict__ table, int T, int B,
    int reverse) {
  extern __shared__ float4 shared[];
  Memory<Number> memory(shared);
  fill(memory.turns, theta, phi);
  const Row row(table, T, B, reverse);
  Number D[EACH], state[EACH];
  float threshold[EACH];
  each_unit([&](int e, int i) {
    D[e] = phase(omega[i], 1);
    threshold[e] = b[i];
    state[e] = read_unit(h0 + row.row * 2 * N, i);
  });
#pragma unroll 1
  for (int t = 0; t < row.T; ++t) {
    const long long step = row.at(t);
    Number input[EACH], others[EACH];
    // long before they are needed
    each_unit([&](int e, int i) { input[e] = read_unit(x + step, i); });
    each_layer_back([&](auto layer) {
      memory.exchange(layer, state, others);
      each_unit([&](int e, int i) { state[e] = turned(state[e], others[e], memory.of(layer, i)); });
    });
    each_unit([&](int e, int i) {
      const Number before = plus_product(input[e], D[e], state[e]);
      state[e] = activated(before, threshold[e]);
      write_unit(z + step, i, before);
      write_unit(h + step, i, state[e]);
    });
  }
}
