// The gradient 2 (P - P^T) of the free entries of A, with P = X D G^T X, from the gradient G of
// W = (2 X - I) D, X = (I + A)^-1. A block computes one of the networks, whose arrays lie one after
// another.
#include "small.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void cayley_backward(
    const float* __restrict__ grad_W, const float* __restrict__ inverse,
    const float* __restrict__ D, float* __restrict__ grad_x, int bandwidth) {
  extern __shared__ float4 shared[];
  float *X = reinterpret_cast<float*>(shared), *G = X + MATRIX;
  const size_t network = blockIdx.x;
  grad_W += network * N * N;
  inverse += network * N * N;
  D += network * N;
  grad_x += network * entries(bandwidth);
  Tile m;
  each(m, [&](int i, int j, float) {
    X[i * PITCH + j] = inverse[i * N + j];
    G[i * PITCH + j] = grad_W[i * N + j];
  });
  __syncthreads();
  m = product<true>(G, X);
  put(G, m, [&](int i, int, float entry) { return D[i] * entry; });
  m = product(X, G);
  put(G, m, [&](int, int, float entry) { return entry; });
  for (int d = 1 + warp(); d <= bandwidth; d += WARPS) {
    const int first = (d - 1) * N - d * (d - 1) / 2;
    for (int i = lane(); i < N - d; i += LANES)
      grad_x[first + i] = 2.0f * (G[i * PITCH + i + d] - G[(i + d) * PITCH + i]);
  }
}
