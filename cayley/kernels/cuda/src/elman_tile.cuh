// What the two Elman kernels share that multiply tiles. A team computes SETS sets of ROWS rows at
// every step: while the states of one are on their way to the other blocks, it multiplies those of
// another.
#pragma once

#include "tile.cuh"

constexpr int WIDTH = GROUPS * UNITS;  // units of a block

// A set of rows, on its way through the steps. `inputs` and `words` have zeros.
struct RowSet {
  Steps steps;
  long long at;   // the thread's first row of x at this step
  int first;      // the thread's first row of the batch
  float* inputs;  // two buffers: other blocks may still read one while this block fills the other
  Progress progress;

  RowSet() = default;

  __device__ RowSet(float* all, unsigned* words, int set, int teams, const Member& member)
      : inputs(all + (set * teams + member.team) * 2LL * INPUTS * ROWS),
        progress(words + set * teams * BLOCKS, member) {}

  // The rows from this one on. Without any there are no steps.
  __device__ void begin(const long long* table, int row, int T, int B, bool back,
                        const Member& member) {
    first = row + member.row;
    steps.T = 0;
    if (row >= B) return;
    steps = Steps(table, row, T, B, back);
    at = steps.first + first;
  }

  __device__ void advance() { at += steps.advance(); }

  // How many of the thread's four rows this step has, or more.
  __device__ int rows() const { return steps.rows - first; }

  // Where the numbers of the next step go, and where those of this step are.
  __device__ float* next() const { return inputs + progress.number % 2 * INPUTS * ROWS; }
  __device__ const float* last() const { return inputs + (progress.number - 1) % 2 * INPUTS * ROWS; }
};
