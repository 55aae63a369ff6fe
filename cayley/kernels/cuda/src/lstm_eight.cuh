// What the two LSTM kernels share whose blocks compute eight rows of the batch by tensor cores,
// without normalisations. A warp has 16 units, and a lane two of them in two rows, with all gates.
// sizes.cuh defines H, the number of units; THREADS, DEPTH and INPUTS, 1 if the input is a single
// number, and 0 otherwise; SHARED, which tensor.cuh explains; and SEVERAL, which networks.cuh does.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "lstm_gates.cuh"
#include "networks.cuh"
#include "states.cuh"
#include "tensor.cuh"

// Units of all warps. Those that there are not have weights, states and gradients of 0.
constexpr int WIDTH = THREADS / 2;
static_assert(INPUTS == 0 || INPUTS == 1);

// What a thread is for: the units unit(0) and unit(1) in the rows row(0) and row(1) of the block. A
// row beyond the last of the batch is a copy of it.
struct EightLane {
  int first_unit, first_row, B;

  __device__ explicit EightLane(int B)
      : first_unit(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        first_row(threadIdx.x % 4 * 2),
        B(B) {}

  __device__ int unit(int j) const { return first_unit + EIGHT * j; }
  __device__ bool used(int j) const { return unit(j) < H; }
  __device__ int row(int k) const { return first_row + k; }

  // Of the batch.
  __device__ static long long row_at(int row, int B) {
    return min((int)blockIdx.x * EIGHT + row, B - 1);
  }
  __device__ long long at(int k) const { return row_at(row(k), B); }
  __device__ bool writes(int j, int k) const {
    return used(j) && (int)blockIdx.x * EIGHT + row(k) < B;
  }
};

// Calls of(j, k, 2 j + k) for the two units and two rows of a lane.
template <class Of>
__device__ inline void each_cell(Of of) {
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int k = 0; k < 2; ++k) of(j, k, 2 * j + k);
}

// The scale of numbers that the threads of a block have the moduli of, whose bits are given, to all of
// them. `memory` has a number for each warp.
__device__ inline Scale scale_of_block(unsigned own, float* memory) {
  unsigned* const parts = reinterpret_cast<unsigned*>(memory);
  const unsigned largest = __reduce_max_sync(~0u, own);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = largest;
  __syncthreads();
  unsigned found = 0;
  for (int warp = 0; warp < THREADS / 32; ++warp) found = parts[warp] > found ? parts[warp] : found;
  __syncthreads();
  return Scale(found);
}

// That of a matrix of so many numbers.
__device__ inline Scale scale_of(const float* array, int count, float* memory) {
  unsigned own = 0;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const unsigned bits = modulus_bits(array[i]);
    own = bits > own ? bits : own;
  }
  return scale_of_block(own, memory);
}
