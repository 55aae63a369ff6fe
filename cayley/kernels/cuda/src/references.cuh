// What the means of a sequence are measured from: numbers near the means of its first step. A block
// of THREADS, which sizes.cuh defines, computes those of one row of the batch.
#pragma once

#include "sums.cuh"

// A number near m with 8 bits, by Veltkamp's splitting, which no fused operation may spoil.
__device__ inline float coarse(float m) {
  const float c = __fmul_rn(m, 65537.0f);
  return __fsub_rn(c, __fsub_rn(c, m));
}

// The number near the mean of n values, of which each thread has added up a part.
__device__ inline float near_mean(float sum, int n) {
  return coarse(sum_block<THREADS>(sum) / n);
}

__device__ inline float reference_of(const float* values, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += THREADS) sum += values[i];
  return near_mean(sum, n);
}

// That of W h + b, with W (rows, H), and b (rows) or null.
__device__ inline float reference_of_product(const float* W, const float* h, const float* b,
                                             int rows, int H) {
  float sum = 0;
  for (int i = threadIdx.x; i < rows * H; i += THREADS) sum = fmaf(W[i], h[i % H], sum);
  if (b)
    for (int i = threadIdx.x; i < rows; i += THREADS) sum += b[i];
  return near_mean(sum, rows);
}

// Those of x_0, (B, 4H), of W h0 + b and of c0, in result (3, B); 0 of what is null. W and b have
// so many rows: all of them, or their mean.
__device__ inline void write_references(const float* x, const float* h0, const float* c0,
                                        const float* W, const float* b, float* result,
                                        long long row, int rows, int H, int B) {
  const float of_x = x ? reference_of(x + row * 4 * H, 4 * H) : 0.0f;
  const float of_h = W ? reference_of_product(W, h0 + row * H, b, rows, H) : 0.0f;
  const float of_c = c0 ? reference_of(c0 + row * H, H) : 0.0f;
  const int i = threadIdx.x;
  if (i < 3) result[i * B + row] = i == 0 ? of_x : i == 1 ? of_h : of_c;
}
