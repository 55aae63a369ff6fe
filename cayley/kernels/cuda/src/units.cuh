// Complex units of which a block computes one row of the batch, and a thread the same units at every
// step. sizes.cuh defines N, their number, THREADS, those of the block, and PACKED, which steps.cuh
// explains. Rows of x, h and z have the real parts of all units, then the imaginary parts.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "numbers.cuh"
#include "steps.cuh"

constexpr int EACH = (N + THREADS - 1) / THREADS;  // units of a thread

// Calls of(e, i) for the e-th unit of this thread, which is unit i.
template <class Of>
__device__ inline void each_unit(Of of) {
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int i = threadIdx.x + e * THREADS;
    if ((e + 1) * THREADS <= N || i < N) of(e, i);
  }
}

__device__ inline Number read_unit(const float* row, int i) { return {row[i], row[N + i]}; }

__device__ inline void write_unit(float* row, int i, Number value) {
  row[i] = value.re;
  row[N + i] = value.im;
}

__device__ inline Number phase(float angle, double scale) {
  constexpr double PI = 3.14159265358979323846;
  double sin, cos;
  sincospi(angle / PI, &sin, &cos);
  return {(float)(scale * cos), (float)(scale * sin)};
}

// sum + Im(g conj(a)), where the latter is the gradient of an angle that turns a, from that of a
__device__ inline float plus_turn(float sum, Number g, Number a) {
  return fmaf(g.im, a.re, fmaf(-g.re, a.im, sum));
}

__device__ inline Number activated(Number z, float b) {
  const float scale = Complex(z.re, z.im, b).scale;
  return {scale * z.re, scale * z.im};
}

// The steps of this block's row, numbered as the recurrence goes through them.
struct Row {
  long long row;
  int T;
  const long long* table;
  int all, B;  // the steps of all rows, and their number
  bool reverse;

  __device__ Row(const long long* table, int T, int B, int reverse)
      : row(blockIdx.x), T(steps_of(table, row, T)), table(table), all(T), B(B),
        reverse(reverse) {}

  // Where a step's numbers begin in x, h or z.
  __device__ long long at(int step) const {
    return (start_of(table, reverse ? T - 1 - step : step, all, B) + row) * 2 * N;
  }
};
