// What the kernels before and after the recurrence of an LSTM share. N_x and its gradient do not
// wait for the recurrence, so that they take all steps at once: a block a few steps of one row of
// the batch, and a warp one of them at a time. sizes.cuh defines H; THREADS; PACKED, which
// steps.cuh explains; and NORM_X, NORM_H, NORM_C, WINDOWED and EPS as for lstm.cuh.
#pragma once

#include "sizes.cuh"

#include "steps.cuh"
#include "sums.cuh"

constexpr int FEATURES = 4 * H;
constexpr int EACH = (FEATURES + 31) / 32;  // that a lane has of them
constexpr int WARPS = THREADS / 32;

// Calls of(i, feature) for the i-th feature of this lane.
template <class Of>
__device__ inline void each_feature(Of of) {
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const int feature = threadIdx.x % 32 + 32 * i;
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
