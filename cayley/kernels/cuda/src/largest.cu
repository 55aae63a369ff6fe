// The largest modulus of each column of a and then of b, see columns.cuh: as bits, which have the
// order of the numbers, in M + N words that are 0 before. A block has DEPTH rows of a or b. sizes.cuh
// also defines THREADS, DEPTH and SEVERAL, which networks.cuh explains.
#include "sizes.cuh"

#include "columns.cuh"
#include "networks.cuh"
#include "tensor.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void largest(
    const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ first,
    unsigned* __restrict__ bits, int K, int F, int reverse, int shared_arrays) {
  extern __shared__ float4 shared[];
  Four* const found = reinterpret_cast<Four*>(shared);

  a = of_network(a, shared_arrays, 0, (long long)K * M);
  b = of_network(b, shared_arrays, 1, (long long)K * N);
  first = of_network(first, shared_arrays, 2, (long long)F * N);
  bits = of_network(bits, shared_arrays, 3, M + N);

  constexpr int OF_A = (M + SIDE - 1) / SIDE, GROUPS = OF_A + (N + SIDE - 1) / SIDE;
  const int group = blockIdx.x % GROUPS, begin = blockIdx.x / GROUPS * DEPTH;
  const bool is_a = group < OF_A;
  const Columns columns = is_a ? Columns(a, a, M, group * SIDE, K, 0, 0)
                               : Columns(b, first, N, (group - OF_A) * SIDE, K, first ? F : 0, reverse);
  unsigned most[4] = {};
#pragma unroll 4
  for (int k = begin + threadIdx.x / FOURS; k < begin + DEPTH; k += NEXT) {
    const Four four = columns.read(k, K);
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i] = max(most[i], modulus_bits(four.at[i]));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) found[threadIdx.x].at[i] = __uint_as_float(most[i]);
  __syncthreads();
  if (threadIdx.x >= FOURS) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int other = 1; other < NEXT; ++other)
      most[i] = max(most[i], __float_as_uint(found[threadIdx.x + other * FOURS].at[i]));
    if (i < columns.count) atomicMax(bits + (is_a ? 0 : M) + columns.column + i, most[i]);
  }
}
