// X = (I + A)^-1, W = (2 X - I) D, both (N, N), and a copy of D, (N), from the free entries x of A.
// A cluster computes one of the networks, whose arrays lie one after another. A block reads in
// `inverse` and W what the other blocks have written, so these two are not __restrict__.
#include "small.cuh"

extern "C" __global__ CLUSTER __launch_bounds__(THREADS, 1) void cayley_forward(
    const float* __restrict__ x, const float* __restrict__ D, float* inverse, float* W,
    float* __restrict__ signs, int bandwidth) {
  extern __shared__ float4 shared[];
  float *X = reinterpret_cast<float*>(shared), *M = X + MATRIX;
  const size_t network = blockIdx.x / BLOCKS;
  x += network * entries(bandwidth);
  D += network * N;
  inverse += network * N * N;
  W += network * N * N;
  signs += network * N;
  put_skew(M, 1.0f, bandwidth, [&](int k) { return x[k]; });
  invert(X, M);
  conclude(X, M, M + MATRIX, D, inverse, W, signs);
}
