// z_t = x_t + W h_{t-1} and h_t = modReLU(z_t; b) for all steps, with x, h and z (T, B, 2N), h0
// (B, 2N), w (3, N), v (2, 2, N), b (N) and permutation (N). The reflection along a v subtracts
// `factors`, (2), times v v*. With the table of a packed sequence (T, B, 2N) is (rows, 2N).
#include "composed.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void composed_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ w,
    const float* __restrict__ v, const float* __restrict__ factors, const float* __restrict__ b,
    const long long* __restrict__ permutation, float* __restrict__ h, float* __restrict__ z,
    const long long* __restrict__ table, int T, int B, int reverse) {
  extern __shared__ float4 shared[];
  const Memory memory(shared);
  init(memory, w, v, b, permutation);
  Unit units[EACH];
  each_unit([&](int e, int i) { units[e] = memory.units[i]; });
  const float factor1 = factors[0], factor2 = factors[1];

  const Row row(table, T, B, reverse);
  each_unit([&](int e, int i) {
    memory.buffer<0>()[place(i)] = units[e].D1 * read_unit(h0 + row.row * 2 * N, i);
  });
#pragma unroll 1
  for (int t = 0; t < row.T; ++t) {
    const long long step = row.at(t);
    Number input[EACH], values[EACH];
    // long before they are needed
    each_unit([&](int e, int i) { input[e] = read_unit(x + step, i); });

    transform<0>(memory.buffers, memory.twiddles);
    Number along = {0, 0};
    each_unit([&](int e, int i) {
      values[e] = memory.buffer<MIDDLE>()[place(i)];
      along = plus_inner(along, units[e].v1, values[e]);
    });
    sum_over_block<0>(memory.partials, along);
    each_unit([&](int e, int) {
      const Unit& unit = units[e];
      const Number kept = reflected(values[e], unit.v1, along, factor1);
      memory.buffer<SECOND>()[place(unit.place)] = exchanged(unit.D2 * kept);
    });

    transform<SECOND>(memory.buffers, memory.twiddles);
    along = {0, 0};
    each_unit([&](int e, int i) {
      values[e] = exchanged(memory.buffer<1>()[place(i)]);
      along = plus_inner(along, units[e].v2, values[e]);
    });
    sum_over_block<0>(memory.partials, along);
    each_unit([&](int e, int i) {
      const Unit& unit = units[e];
      const Number kept = reflected(values[e], unit.v2, along, factor2);
      const Number before = plus_product(input[e], unit.D3, kept);
      const Complex phi(before.re, before.im, unit.b);
      const Number state = {phi.scale * before.re, phi.scale * before.im};
      write_unit(z + step, i, before);
      write_unit(h + step, i, state);
      memory.buffer<0>()[place(i)] = unit.D1 * state;
    });
  }
}
