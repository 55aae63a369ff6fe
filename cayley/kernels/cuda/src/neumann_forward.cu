// The inverse X of I + A that follows A, brought to the free entries x as neumann.py says: left
// alone, moved by a Neumann series, or computed anew, whichever its residual asks for. A copy of
// it, (N, N), and if there is a D, W = (2 X - I) D, (N, N), and a copy of D, (N). Without refreshes
// the state is not written. The tolerance is a finite number.
#include "small.cuh"

static_assert(BLOCKS == 1, "every product needs all columns of the one before");

extern "C" __global__ __launch_bounds__(THREADS, 1) void neumann_forward(
    const float* __restrict__ x, const float* __restrict__ D, float* inverse, float* point,
    float* residual, long long* updates, long long* refreshes, float* __restrict__ copy,
    float* __restrict__ W, float* __restrict__ signs, int order, int refresh_every,
    double tolerance) {
  extern __shared__ float4 shared[];
  float *X = reinterpret_cast<float*>(shared), *M = X + MATRIX, *sums = M + MATRIX;
  constexpr int ENTRIES = N * (N - 1) / 2;
  bool differs = false;
  for (int k = threadIdx.x; k < ENTRIES; k += THREADS) differs = differs || point[k] != x[k];
  const bool sound = *residual <= tolerance, moved = __syncthreads_or(differs);
  const long long update = *updates + 1;
  Strip m;
  if (sound) put(X, m, [&](int i, int j, float) { return inverse[i * N + j]; });
  if (moved || !sound) {
    bool exact = !sound || (refresh_every > 0 && update % refresh_every == 0);
    float error;
    while (true) {
      if (exact) {
        put_skew(M, 1.0f, N - 1, [&](int k) { return x[k]; });
        invert(X, M);
      } else {
        put_skew(M, 0.0f, N - 1, [&](int k) { return point[k] - x[k]; });
        m = product(X, M);
        put(M, m, [&](int, int, float entry) { return entry; });
        for (int power = 0; power < order; ++power) {
          m = product(M, X);
          put(X, m, [&](int i, int j, float entry) { return inverse[i * N + j] + entry; });
        }
      }
      put_skew(M, 1.0f, N - 1, [&](int k) { return x[k]; });
      error = residual_of(X, M, sums);
      if (exact || error <= tolerance) break;
      exact = true;
    }
    if (refreshes) {
      each(m, [&](int i, int j, float) { inverse[i * N + j] = X[i * PITCH + j]; });
      for (int k = threadIdx.x; k < ENTRIES; k += THREADS) point[k] = x[k];
      if (threadIdx.x == 0) {
        *residual = error;
        *updates = update;
        *refreshes += exact;
      }
    }
  }
  conclude(X, M, sums, D, copy, W, signs);
}
