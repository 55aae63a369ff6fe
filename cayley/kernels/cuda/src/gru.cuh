// A unit of the gated recurrence, and its gradient; see gru_forward.cu and gru_backward.cu.
#pragma once

#include "activations.cuh"

// (1 - u) h + u c, from the nearer end: exactly h for u = 0 and exactly c for u = 1.
__device__ inline float interpolate(float h, float c, float u) {
  const float way = c - h;
  return u < 0.5f ? fmaf(u, way, h) : fmaf(u - 1, way, c);
}

template <Activation PHI>
__device__ inline float delta_candidate(float g, float u, float c) {
  return slope<PHI>(c) * (g * u);
}

__device__ inline float delta_update(float g, float h, float u, float c) {
  return g * (c - h) * (u * (1 - u));
}

__device__ inline float delta_reset(float v, float h, float r) { return v * h * (r * (1 - r)); }

// What goes to the step before, but for the product of the gates.
__device__ inline float carried(float g, float v, float r, float u) {
  return fmaf(g, 1 - u, r * v);
}
