// What the kernels of gated recurrences share. A block computes one row of the batch. ROLES lanes
// belong to a unit: each of them knows the whole state of the unit, and reads, computes or writes a
// part of what a step needs. sizes.cuh, which gates.py writes, defines H, the number of units;
// ROLES; UNITS, those that a group of ROLES UNITS lanes computes; DEPTH and THREADS; PACKED, which
// steps.cuh explains; SEVERAL, which networks.cuh does; and VECTOR and SHARED, which product.cuh
// does, of each product.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "product.cuh"
#include "states.cuh"
#include "steps.cuh"

constexpr int LANES = ROLES * UNITS;

// Product number INDEX of a step, with OUTPUTS outputs for each unit.
template <int INDEX, int INPUTS, int OUTPUTS>
using Weights = Product<INPUTS, OUTPUTS * UNITS, LANES, VECTOR[INDEX], 1, SHARED[INDEX], THREADS>;

template <class Weights, int INPUTS>
using Buffers = States<INPUTS, Weights::WIDTH, 1, 1, 1, THREADS>;

template <int STREAMS>
using Inputs = Ahead<STREAMS, 1, DEPTH, THREADS>;

// What a thread is for, with weights of one output for each unit, or of some for each role.
struct Lane {
  int unit, role;
  bool used;    // there is such a unit
  bool writes;  // one lane of each

  template <class Weights>
  __device__ explicit Lane(const Weights& weights) {
    constexpr int EACH = Weights::SUMS / UNITS;
    unit = weights.group * UNITS + weights.order / EACH;
    role = EACH == 1 ? weights.split / UNITS : weights.order % EACH / Weights::VALUES;
    used = unit < H;
    writes = used && role == 0;
  }
};
