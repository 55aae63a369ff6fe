// What the two LSTM kernels share whose blocks compute two rows of the batch, without
// normalisations. Most of a step is waiting, which two rows do at the same time, and weights in
// shared memory are read once for both. A lane ends with all of one unit of one row. sizes.cuh also
// defines INPUTS, 1 if the input is a single number, and 0 otherwise; and SEVERAL, which
// networks.cuh explains.
#pragma once

#include "gates.cuh"
#include "lstm_gates.cuh"
#include "networks.cuh"

constexpr int ROWS = 2;
static_assert(!PACKED && (INPUTS == 0 || INPUTS == 1));

// Product number 0 of a step, with EACH outputs for each unit.
template <int INPUTS, int EACH>
using PairWeights =
    Product<INPUTS, EACH * UNITS, LANES, VECTOR[0], ROWS, SHARED[0], THREADS>;

template <class Weights, int INPUTS>
using PairBuffers = States<INPUTS, Weights::WIDTH, ROWS, 1, 1, THREADS>;

// What a thread is for. A row beyond the last is a copy of it.
struct PairLane {
  int own;        // of the rows of the block
  int unit;
  long long row;  // of the batch
  bool used;      // there is such a unit
  bool writes;    // and such a row

  template <class Weights>
  __device__ PairLane(const Weights& weights, int B) {
    constexpr int OUTPUTS = Weights::SUMS / ROWS, EACH = OUTPUTS / UNITS;
    static_assert(Weights::VALUES == EACH && Weights::REPLICAS == 1);
    own = weights.order / OUTPUTS;
    unit = weights.group * UNITS + weights.order % OUTPUTS / EACH;
    const long long wanted = (long long)blockIdx.x * ROWS + own;
    row = min(wanted, (long long)B - 1);
    used = unit < H;
    writes = used && wanted < B;
  }
};
