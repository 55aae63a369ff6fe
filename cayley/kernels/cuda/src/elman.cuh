// What the two Elman kernels share. sizes.cuh, which elman.py writes, defines H, the number of
// units; PHI, the activation; BLOCKS and CLUSTER; PACKED, which steps.cuh explains; OUTPUTS, SPLITS,
// VECTOR, ROWS, PASSES, SHARED, DEPTH, THREADS and COMPLEX, which product.cuh and states.cuh do;
// INPUTS, 1 if the kernels read the input, a single number, and 0 if what it contributes; and
// SEVERAL, which networks.cuh explains.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "networks.cuh"
#include "places.cuh"
#include "product.cuh"
#include "states.cuh"
#include "steps.cuh"

// the units that a block computes
constexpr int UNITS = (H + BLOCKS * OUTPUTS - 1) / (BLOCKS * OUTPUTS) * OUTPUTS;

// Whether every lane has outputs, so that none has to ask.
constexpr bool FULL = BLOCKS * UNITS == H && THREADS / SPLITS * OUTPUTS == UNITS;

using Weights =
    Product<H, OUTPUTS, SPLITS, VECTOR, ROWS, SHARED, THREADS, COMPLEX, 32 / SPLITS>;
// Blocks that have units: the last ones may have none.
constexpr int USED = (H + UNITS - 1) / UNITS;
using Memory = States<H, Weights::WIDTH, ROWS, PASSES, BLOCKS, THREADS, USED>;
constexpr int VALUES = Weights::VALUES;

static_assert(INPUTS == 0 || (INPUTS == 1 && PASSES == 1 && !PACKED));
constexpr int WIDTH = INPUTS == 1 ? 1 : H;  // of a row of x
constexpr int THRESHOLDS = PHI == MODRELU_STACKED ? H / 2 : H;

__device__ inline int block_in_cluster() {
  if constexpr (BLOCKS > 1) return machine::rank_in_cluster();
  return 0;
}

// Whether the address of the weights is computed first. A thread of a cluster reads many of them at
// once: for each the compiler would add up index and offset in registers of their own, and spill.
constexpr bool ADDRESSED = SEVERAL && BLOCKS > 1;

__device__ inline const float* weights_of_network(const float* W, int shared) {
  W = of_network(W, shared, 2, H * H);
  return ADDRESSED ? machine::kept(W) : W;
}

__device__ inline float weight(const float* W, int index) {
  if constexpr (ADDRESSED) return __ldg(W + index);
  return W[index];
}

__device__ inline int first_row() { return blockIdx.x / BLOCKS * (ROWS * PASSES); }

// The values that a thread computes at every step.
struct Owned {
  int row[VALUES];     // of the batch, in the first pass
  int place[VALUES];   // among the states of a row
  int unit[VALUES];    // of x and h
  int column[VALUES];  // among the thresholds
  bool computed[VALUES];
  bool first;  // of the lanes that compute the same values

  __device__ explicit Owned(const Weights& weights) {
    first = weights.replica() == 0;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const int sum = weights.owned(i), output = weights.group * OUTPUTS + sum % OUTPUTS;
      row[i] = first_row() + sum / OUTPUTS;
      place[i] = block_in_cluster() * UNITS + output;
      unit[i] = unit_at(place[i]);
      column[i] = threshold_at(place[i]);
      computed[i] = FULL || (output < UNITS && place[i] < H);
    }
  }

  // In a step of x or h, which has so many rows. Rows beyond the last are copies of it.
  __device__ int element(int rows, int pass, int i) const {
    return min(row[i] + pass * ROWS, rows - 1) * H + unit[i];
  }

  // The same in a step of x.
  __device__ int input(int rows, int pass, int i) const {
    return INPUTS == 1 ? min(row[i], rows - 1) : element(rows, pass, i);
  }

  __device__ bool beyond(int rows, int pass, int i) const { return row[i] + pass * ROWS >= rows; }

  __device__ bool written(int rows, int pass, int i) const {
    return computed[i] && first && !beyond(rows, pass, i);
  }
};

// Makes new states of this thread known to all threads that read them.
__device__ inline void share(const Memory& states, const Weights& weights, const Owned& owned,
                             int pass, const float (&values)[VALUES]) {
  if constexpr (BLOCKS == 1) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
      if (owned.computed[i] && owned.first)
        states.set(pass, weights.owned(i) / OUTPUTS * Weights::WIDTH + owned.place[i], values[i]);
  } else {
    float quads[Weights::QUADS][4];
    weights.gather(values, quads);
#pragma unroll
    for (int i = 0; i < Weights::QUADS; ++i) {
      const int sum = weights.first_of_quad(i);
      const int output = weights.group * OUTPUTS + sum % OUTPUTS;
      const int place = block_in_cluster() * UNITS + output;
      if (FULL || (output < UNITS && place < H))
        states.send<Weights::SENDERS>(pass, sum / OUTPUTS * Weights::WIDTH + place, quads[i],
                                      weights.sender());
    }
  }
}

// Whether a pass is completed amid the products of the next one, which do not wait for it. There
// have to be registers for the sums of both; real weights leave none, as there are twice as many.
constexpr bool DEFERRED = COMPLEX && PASSES > 1 && Weights::SUMS <= 16;

// The states that such a pass reads before its products, of which there is less to wait for.
constexpr int AHEAD = 16;

// Two such passes are written one after the other. Addresses and conditions are then constants, and
// there is one instruction in thirty less. More passes would be too much code.
constexpr int WRITTEN = DEFERRED && PASSES == 2 ? 2 : 1;

// For every pass of every step, in this order: prepare(pass) gets what it needs beside its sums,
// complete(pass, sums) makes new states of both, and publish(states, t, pass) shares them. There
// should be no branches in them, across which the compiler mixes nothing.
template <class Prepare, class Complete, class Publish>
__device__ inline void each_pass(int steps, Memory& states, const Weights& weights,
                                 Prepare prepare, Complete complete, Publish publish) {
  float sums[Weights::SUMS];
  if constexpr (DEFERRED)
    weights.accumulate<AHEAD>(states.before(0), sums, [&] { states.seen(0); }, [] {});
#pragma unroll 1
  for (int t = 0; t < steps; ++t) {
#pragma unroll WRITTEN
    for (int pass = 0; pass < PASSES; ++pass) {
      if constexpr (DEFERRED) {
        // Of the last step, too: what is then computed is not used, but its states do come.
        const Memory behind = states;
        const bool last = pass == PASSES - 1;
        const int next_pass = last ? 0 : pass + 1;
        if (last) states.advance();
        float next[Weights::SUMS];
        weights.accumulate<AHEAD>(
            states.before(next_pass), next,
            [&] {
              states.seen(next_pass);
              prepare(pass);
              complete(pass, sums);
            },
            [&] { publish(behind, t, pass); });
#pragma unroll
        for (int i = 0; i < Weights::SUMS; ++i) sums[i] = next[i];
      } else {
        const auto meanwhile = [&] {
          states.seen(pass);
          prepare(pass);
        };
        weights.accumulate(states.before(pass), sums, meanwhile, [] {});
        complete(pass, sums);
        publish(states, t, pass);
      }
    }
    if constexpr (!DEFERRED) states.advance();
  }
}
