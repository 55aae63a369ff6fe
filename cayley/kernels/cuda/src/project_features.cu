// As project.cu, with y (F, N): the rows of a feature lie side by side. A thread has a row of x.
#include "sizes.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void project_features(
    const float* __restrict__ x, const float* __restrict__ U, const float* __restrict__ c,
    float* __restrict__ y, long long N, int F) {
  const long long k = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (k >= N) return;
  float inputs[INPUTS];
#pragma unroll
  for (int i = 0; i < INPUTS; ++i) inputs[i] = x[k * INPUTS + i];
#pragma unroll 4
  for (int f = 0; f < F; ++f) {
    float sum = c ? c[f] : 0.0f;
#pragma unroll
    for (int i = 0; i < INPUTS; ++i) sum = fmaf(U[f * INPUTS + i], inputs[i], sum);
    y[f * N + k] = sum;
  }
}
