// ⟨G, W⟩ in BLOCKS parts, one a block: G (s, s) with rows that are a pitch apart, W (s, s). sizes.cuh
// defines BLOCKS and THREADS.
#include "sizes.cuh"
#include "sums.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void inner(
    const float* __restrict__ G, const float* __restrict__ W, float* __restrict__ parts, int s,
    int pitch) {
  float sum = 0;
  for (int i = blockIdx.x; i < s; i += BLOCKS)
    for (int j = threadIdx.x; j < s; j += THREADS)
      sum = fmaf(G[(long long)i * pitch + j], W[(long long)i * s + j], sum);
  sum = sum_block<THREADS>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
