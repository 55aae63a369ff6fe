// What the LSTM kernels share whose threads have all four gates of a unit.
#pragma once

#include "lstm.cuh"

static_assert(GATES == 4);

// From W h + b less the reference of N_h, with its statistics: z, and what the gates get of it.
template <class Recurrent>
__device__ inline void normalize_gates(const Recurrent& N_h, float (&a)[GATES], float (&z)[GATES]) {
#pragma unroll
  for (int i = 0; i < GATES; ++i) {
    z[i] = N_h.normal(a[i]);
    a[i] = fmaf(N_h.gamma[i], z[i], N_h.beta[i]);
  }
}

// The cell after a step.
__device__ inline float next_cell(const float (&gates)[GATES], float cell) {
  return fmaf(gates[I], gates[G], gates[F] * cell);
}

// The gates again, from z of N_h and from what the input contributes.
template <class Recurrent>
__device__ inline void gates_again(const Recurrent& N_h, const InputNorm& N_x, float mean,
                                   float scale, const float (&z)[GATES],
                                   const float (&x)[GATES], float (&gates)[GATES]) {
#pragma unroll
  for (int i = 0; i < GATES; ++i) {
    const float input = NORM_X ? N_x.normalize(i, x[i], mean, scale) : x[i];
    gates[i] = activate_gate(i, 0, fmaf(N_h.gamma[i], z[i], N_h.beta[i]) + input);
  }
}

// The gradients of the gates' arguments, from those of h and of the cell.
__device__ inline void pull_gates(const float (&gates)[GATES], float tanh_c, float cell_before,
                                  float dh, float dc, float (&d)[GATES]) {
  d[I] = gates[G] * dc * (gates[I] * (1 - gates[I]));
  d[F] = cell_before * dc * (gates[F] * (1 - gates[F]));
  d[G] = gates[I] * dc * (1 - gates[G] * gates[G]);
  d[O] = tanh_c * dh * (gates[O] * (1 - gates[O]));
}
