// What the two Elman kernels share that teams of blocks run. The places of a team are those of the
// states: there the two parts of a complex number are neighbours, and in one block.
#pragma once

#include "team.cuh"

static_assert(PHI != MODRELU_STACKED || UNITS % 2 == 0);

__device__ inline int unit_at(int place) {
  return PHI == MODRELU_STACKED ? place / 2 + place % 2 * (H / 2) : place;
}

__device__ inline int threshold_at(int place) {
  return PHI == MODRELU_STACKED ? place / 2 : place;
}

// The other part of a complex number; to be called by all lanes.
__device__ inline float partner(float value) { return __shfl_xor_sync(~0u, value, 1); }
