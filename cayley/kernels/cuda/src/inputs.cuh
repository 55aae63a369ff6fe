// What the kernels before and after the recurrence of an LSTM share. N_x and its gradient do not
// wait for the recurrence, so that they take all steps at once: a block a few steps of one row of
// the batch, and STEP_THREADS one of them at a time, a warp or the whole block. sizes.cuh defines
// that, H and THREADS; PACKED and SEVERAL, which steps.cuh and networks.cuh explain; and NORM_X,
// NORM_H, NORM_C, WINDOWED and EPS as for lstm.cuh.
#pragma once

#include "sizes.cuh"

#include "networks.cuh"
#include "steps.cuh"
#include "sums.cuh"

constexpr int FEATURES = 4 * H;
constexpr int EACH = (FEATURES + STEP_THREADS - 1) / STEP_THREADS;  // that a thread has of them
constexpr int AT_ONCE = THREADS / STEP_THREADS;                     // the steps of a block
static_assert(STEP_THREADS == 32 || STEP_THREADS == THREADS);

__device__ inline float sum_step(float value) {
  if constexpr (STEP_THREADS == 32)
    return sum_warp(value);
  else
    return sum_block<THREADS>(value);
}

// Calls of(i, feature) for the i-th feature of this thread.
template <class Of>
__device__ inline void each_feature(Of of) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int feature = threadIdx.x % STEP_THREADS + STEP_THREADS * i;
    if (feature < FEATURES) of(i, feature);
  }
}

// The steps of a block: number `chunk` of those of `length` steps.
struct Chunk {
  long long row;
  int T;           // the steps of the row
  int begin, end;  // with none if the row has ended before

  __device__ Chunk(int chunk, int length, const long long* table, int T, int B)
      : row(blockIdx.x % B), T(steps_of(table, row, T)), begin(chunk * length) {
    end = min(begin + length, this->T);
  }
};
