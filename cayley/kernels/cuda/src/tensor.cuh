// The product of a matrix, kept on chip, with the states of eight rows of the batch, by tensor cores.
// These add in float32, but read the first 11 bits of a number. So a number is the sum of two: a
// weight its first 11 bits and the rest; a state, which is split once for all, the nearest number of
// 11 bits and the rest, which may be negative. A product is three products. The one that is left
// out, of two rests, is 2^-21 of it at most, and as often positive as negative; of the rest of a
// weight, the last two of 13 bits are left out.
#pragma once

#include "machine.cuh"

constexpr int EIGHT = 8;

// A warp computes TILES times 16 outputs of all rows, from INPUTS inputs, eight at a time. The
// weights of SHARED of these steps are in shared memory, others in registers. Lane l has those of
// outputs l / 4 and l / 4 + 8 of a tile, and ends with these outputs of the rows 2 (l % 4) and the
// one after it. Sums that wait for each other take long: CHAINS of them are added at the end.
template <int INPUTS, int TILES, int SHARED, int THREADS, int CHAINS>
struct TensorProduct {
  static constexpr int STEPS = (INPUTS + EIGHT - 1) / EIGHT;
  static constexpr int KEPT = STEPS - SHARED;
  static constexpr int SHARED_FLOATS = SHARED * TILES * 4 * THREADS;
  static constexpr int STATE_FLOATS = STEPS * 4 * 32;  // of all rows, each of two numbers

  float weights[KEPT > 0 ? KEPT : 1][TILES][4];
  const float4* rest;

  // entry(tile, output, input) gives the matrix, zero outside.
  template <class Entry>
  __device__ void load(float* shared, Entry entry) {
    const int lane = threadIdx.x % 32;
    rest = reinterpret_cast<const float4*>(shared) + threadIdx.x;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float w = entry(tile, lane / 4 + i % 2 * 8, step * EIGHT + lane % 4 + i / 2 * 4);
          const int before = shared_before(step);
          if (is_shared(step))
            shared[((before * TILES + tile) * THREADS + threadIdx.x) * 4 + i] = w;
          else
            weights[step - before][tile][i] = w;
        }
  }

  // Sets an input of a row.
  __device__ static void set(float* states, int input, int row, float value) {
    const int place = of_lane(row * 4 + input % 4) * 4 + input % EIGHT / 4;
    float* const own = states + input / EIGHT * 128 + place;
    own[0] = machine::nearest_bits(value);
    own[2] = value - own[0];
  }

  // sums[tile][2 i + k] is output l / 4 + 8 i of a tile and row 2 (l % 4) + k. meanwhile() is
  // something else to do while the first states are on their way.
  template <class Meanwhile>
  __device__ void multiply(const float* states, float (&sums)[TILES][4],
                           Meanwhile meanwhile) const {
    const float4* state = reinterpret_cast<const float4*>(states) + of_lane(threadIdx.x % 32);
    const float4 first = state[0];
    meanwhile();
    float chains[CHAINS][TILES][4] = {};
    add<0>(state, first, chains);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[tile][i] = chains[0][tile][i];
#pragma unroll
        for (int chain = 1; chain < CHAINS; ++chain) sums[tile][i] += chains[chain][tile][i];
      }
  }

 private:
  // The products with eight inputs, and with all after them. (A loop of many steps is not unrolled.)
  template <int STEP>
  __device__ void add(const float4* state, float4 h, float (&chains)[CHAINS][TILES][4]) const {
    if constexpr (STEP < STEPS) {
      const float4 next = state[STEP + 1 < STEPS ? (STEP + 1) * 32 : 0];
      const float nearest[2] = {h.x, h.y}, rests[2] = {h.z, h.w};
      constexpr int BEFORE = shared_before(STEP);
      float high[TILES][4], low[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        float own[4];
        if constexpr (is_shared(STEP)) {
          const float4 w = rest[(BEFORE * TILES + tile) * THREADS];
          own[0] = w.x, own[1] = w.y, own[2] = w.z, own[3] = w.w;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) own[i] = weights[STEP - BEFORE][tile][i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          high[tile][i] = machine::first_bits(own[i]);
          low[tile][i] = own[i] - high[tile][i];
        }
      }
      const auto multiply = [&](const float (&factors)[TILES][4], const float (&own)[2], int which) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
          machine::multiply(factors[tile], own, chains[(3 * STEP + which) % CHAINS][tile]);
      };
      multiply(low, nearest, 0);
      multiply(high, rests, 1);
      multiply(high, nearest, 2);
      add<STEP + 1>(state, next, chains);
    }
  }

  // How many of the steps before one have their weights in shared memory, spread over all.
  __device__ static constexpr int shared_before(int step) { return step * SHARED / STEPS; }

  __device__ static constexpr bool is_shared(int step) {
    return shared_before(step + 1) > shared_before(step);
  }

  // The place of what a lane reads. Lanes that write states at the same time have every other row,
  // and would otherwise find half of the banks of shared memory.
  __device__ static int of_lane(int lane) { return lane ^ lane / 8 % 2 * 4; }
};
