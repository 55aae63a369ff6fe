// Sums over the lanes of a warp, and over a block. It is exchanges that take the time.
#pragma once

// The sum over the lanes whose numbers differ in the given bits.
template <int... BITS>
__device__ inline float sum_over(float value) {
  ((value += __shfl_xor_sync(~0u, value, BITS)), ...);
  return value;
}

__device__ inline float sum_warp(float value) { return sum_over<1, 2, 4, 8, 16>(value); }

// The sum over a block of THREADS, to all of them.
template <int THREADS>
__device__ inline float sum_block(float value) {
  __shared__ float partials[THREADS / 32];
  value = sum_warp(value);
  __syncthreads();  // others may still read what the call before has left
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < THREADS / 32; ++warp) value += partials[warp];
  return value;
}

// The sums of two values over a warp: that of the first with even lanes, of the second with odd
// ones, in half as many exchanges as two sums take.
__device__ inline float sum_two(float first, float second) {
  const bool odd = threadIdx.x % 2;
  const float sum = (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
  return sum_over<2, 4, 8, 16>(sum);
}

// The sums of four, each with every fourth lane.
__device__ inline float sum_four(const float (&values)[4]) {
  const bool odd = threadIdx.x % 2, upper = threadIdx.x / 2 % 2;
  const float low = (odd ? values[1] : values[0]) +
                    __shfl_xor_sync(~0u, odd ? values[0] : values[1], 1);
  const float high = (odd ? values[3] : values[2]) +
                     __shfl_xor_sync(~0u, odd ? values[2] : values[3], 1);
  const float sum = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2);
  return sum_over<4, 8, 16>(sum);
}
