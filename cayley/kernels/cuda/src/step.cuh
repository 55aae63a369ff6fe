// What the kernels share that compute what lies between two products of a step, which a library
// computes. A row of the batch has PARTS blocks, one if sums over the row are needed, and a thread
// EACH units. sizes.cuh, which step_kernels.py writes, defines these, H and THREADS; and PACKED,
// which steps.cuh explains.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "steps.cuh"

static_assert(PARTS * EACH * THREADS >= H);

// The row of the batch that a block computes.
__device__ inline long long row_of_block() { return blockIdx.x / PARTS; }

// Calls of(i, unit) for the i-th unit of this thread.
template <class Of>
__device__ inline void each_unit(Of of) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int unit = (blockIdx.x % PARTS * EACH + i) * THREADS + threadIdx.x;
    if (unit < H) of(i, unit);
  }
}
