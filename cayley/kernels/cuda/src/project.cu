// y_k = U x_k + c for all rows k: x (N, INPUTS), U (F, INPUTS), c (F) or null, y (N, F). sizes.cuh
// defines INPUTS, which is small, so that a thread keeps a row of U; THREADS; and ROWS, those of a
// block. Arrays have a part for every network, unless their bits in `shared_arrays` are set.
#include "sizes.cuh"

#include "networks.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void project(
    const float* __restrict__ x, const float* __restrict__ U, const float* __restrict__ c,
    float* __restrict__ y, long long N, int F, int shared_arrays) {
  x = of_network(x, shared_arrays, 0, N * INPUTS);
  U = of_network(U, shared_arrays, 1, (long long)F * INPUTS);
  c = of_network(c, shared_arrays, 2, F);
  y = of_network(y, shared_arrays, 3, N * F);
  const long long first = (long long)blockIdx.x * ROWS, end = min(first + ROWS, N);
  for (int f = threadIdx.x; f < F; f += THREADS) {
    float weights[INPUTS];
#pragma unroll
    for (int i = 0; i < INPUTS; ++i) weights[i] = U[f * INPUTS + i];
    const float bias = c ? c[f] : 0.0f;
#pragma unroll 4
    for (long long k = first; k < end; ++k) {
      float sum = bias;
#pragma unroll
      for (int i = 0; i < INPUTS; ++i) sum = fmaf(weights[i], x[k * INPUTS + i], sum);
      y[k * F + f] = sum;
    }
  }
}
