// What the two Elman kernels share that teams of blocks run.
#pragma once

#include "team.cuh"

#include "places.cuh"

static_assert(!PAIRS || UNITS % 2 == 0, "a complex number is in one block");

// The other part of a complex number; to be called by all lanes.
__device__ inline float partner(float value) { return __shfl_xor_sync(~0u, value, 1); }
