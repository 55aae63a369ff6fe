// What the means of a sequence are measured from, as cayley/norms/windows.py explains. A block of
// THREADS, which sizes.cuh defines, computes those of one row of the batch; PACKED is of steps.cuh.
#pragma once

#include "steps.cuh"
#include "sums.cuh"

// A number near m with 8 bits, by Veltkamp's splitting, which no fused operation may spoil; 0 where
// that is not finite.
__device__ inline float coarse(float m) {
  const float c = __fmul_rn(m, 65537.0f);
  const float found = __fsub_rn(c, __fsub_rn(c, m));
  return fabsf(found) < 3e38f ? found : 0.0f;
}

// The one of least magnitude of a number of each lane.
__device__ inline float least_of_warp(float value) {
  for (int bit = 1; bit < 32; bit *= 2) {
    const float other = __shfl_xor_sync(~0u, value, bit);
    if (fabsf(other) < fabsf(value)) value = other;
  }
  return value;
}

// The one of a number of each thread, to all of them.
__device__ inline float least_of_block(float value) {
  __shared__ float partials[THREADS / 32];
  value = least_of_warp(value);
  __syncthreads();  // others may still read what the call before has left
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
  __syncthreads();
  value = partials[0];
  for (int warp = 1; warp < THREADS / 32; ++warp)
    if (fabsf(partials[warp]) < fabsf(value)) value = partials[warp];
  return value;
}

// Near the value of least magnitude over time that a row of x, (T, B, 4H), has at the first of its
// features. Values that are not finite are passed over.
__device__ inline float reference_of_input(const float* x, const long long* table, long long row,
                                           int T, int H, int B) {
  float least = 3e38f;
  for (int t = threadIdx.x; t < steps_of(table, row, T); t += THREADS) {
    const float value = x[(start_of(table, t, T, B) + row) * 4 * H];
    if (fabsf(value) < fabsf(least)) least = value;
  }
  return coarse(least_of_block(least));
}

// Near the mean of the n numbers of a bias.
__device__ inline float reference_of_bias(const float* b, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += THREADS) sum += b[i];
  return coarse(sum_block<THREADS>(sum) / n);
}

// Those of the input, of the recurrent products and of the cells, in result (3, B); 0 of what is
// null, and of the cells.
__device__ inline void write_references(const float* x, const float* b, const long long* table,
                                        float* result, long long row, int T, int H, int B) {
  const float of_x = x ? reference_of_input(x, table, row, T, H, B) : 0.0f;
  const float of_h = b ? reference_of_bias(b, 4 * H) : 0.0f;
  const int i = threadIdx.x;
  if (i < 3) result[i * B + row] = i == 0 ? of_x : i == 1 ? of_h : 0.0f;
}
