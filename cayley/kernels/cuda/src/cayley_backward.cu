// The gradient 2 (P - P^T) of the free entries of A, with P = X D G^T X, from the gradient G of
// W = (2 X - I) D, X = (I + A)^-1. A cluster computes one of the networks, whose arrays lie one after
// another.
#include "small.cuh"

extern "C" __global__ CLUSTER __launch_bounds__(THREADS, 1) void cayley_backward(
    const float* __restrict__ grad_W, const float* __restrict__ inverse,
    const float* __restrict__ D, float* __restrict__ grad_x, int bandwidth) {
  extern __shared__ float4 shared[];
  float *X = reinterpret_cast<float*>(shared), *G = X + MATRIX;
  const size_t network = blockIdx.x / BLOCKS;
  grad_W += network * N * N;
  inverse += network * N * N;
  D += network * N;
  grad_x += network * entries(bandwidth);
  Whole all;
  put(X, all, [&](int i, int j, float) { return inverse[i * N + j]; });
  put(G, all, [&](int i, int j, float) { return grad_W[i * N + j]; });
  Strip m = product<true>(G, X);
  put(G, m, [&](int i, int, float entry) { return D[i] * entry; });
  m = product(X, G);
  put(G, m, [](int, int, float entry) { return entry; });
  if constexpr (BLOCKS > 1) machine::cluster_barrier();
  // P_ij, of all blocks
  const auto at = [&](int i, int j) {
    if constexpr (BLOCKS == 1) return G[i * PITCH + j];
    return machine::load(machine::address_in(machine::address(G + i * PITCH + j), j / SPAN));
  };
  for (int d = 1 + warp(); d <= bandwidth; d += WARPS) {
    const int first = (d - 1) * N - d * (d - 1) / 2;
    // the columns i + d are the block's
    for (int i = max(first_column() - d, 0) + lane(); i < end_of_columns() - d; i += LANES)
      grad_x[first + i] = 2.0f * (G[i * PITCH + i + d] - at(i + d, i));
  }
  // others may still read
  if constexpr (BLOCKS > 1) machine::cluster_barrier();
}
