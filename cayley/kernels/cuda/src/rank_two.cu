// G / d + p (f_1 u_1ᵀ + f_2 u_2ᵀ), where p is the sum of the parts that inner.cu leaves, and the answer
// is f_1, f_2, u_1, u_2 and d, one after another. sizes.cuh defines BLOCKS and THREADS.
#include "sizes.cuh"
#include "sums.cuh"

static_assert(BLOCKS <= THREADS);

extern "C" __global__ __launch_bounds__(THREADS) void rank_two(
    const float* __restrict__ G, const float* __restrict__ parts, const float* __restrict__ answer,
    float* __restrict__ result, int s, int pitch) {
  const float p = sum_block<THREADS>(threadIdx.x < BLOCKS ? parts[threadIdx.x] : 0.0f);
  const float d = answer[4 * s], *u = answer + 2 * s;
  for (int i = blockIdx.x; i < s; i += BLOCKS) {
    const float f_1 = p * answer[i], f_2 = p * answer[s + i];
    for (int j = threadIdx.x; j < s; j += THREADS)
      result[(long long)i * s + j] =
          G[(long long)i * pitch + j] / d + fmaf(f_1, u[j], f_2 * u[s + j]);
  }
}
