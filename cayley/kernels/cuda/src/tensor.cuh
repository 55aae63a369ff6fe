// The product of a matrix, kept on chip, with the states of eight rows of the batch, by tensor cores.
// These add in float32, but multiply halves, numbers of 11 bits. So a number is two of them: the
// nearest half, and 2^11 times the rest; and a product is three products. What is left out, the
// product of two rests, is 2^-24 of it at most. Halves have a small range. Numbers are scaled by a
// power of two, so that the largest is between 2^13 and 2^14: those down to 2^-27 of it have 22 bits.
#pragma once

#include "machine.cuh"

constexpr int EIGHT = 8;
constexpr int SIXTEEN = 16;
constexpr float REST = 2048;  // by which rests are larger

// A power of two and its inverse.
struct Scale {
  float up, down;

  // For numbers of which the largest modulus has these bits.
  __device__ explicit Scale(unsigned largest) {
    // of 2^(13 - exponent), within what has an inverse
    const int bits = min(max(267 - (int)(largest >> 23), 14), 240);
    up = __uint_as_float(bits << 23);
    down = __uint_as_float(254 - bits << 23);
  }
};

__device__ inline unsigned modulus_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The two halves of a number.
struct Halves {
  unsigned short nearest, rest;

  __device__ explicit Halves(float x)
      : nearest(machine::to_half(x)), rest(machine::to_half(REST * (x - machine::of_half(nearest)))) {}
};

// A warp computes TILES times 16 outputs of all rows, from INPUTS inputs, 16 at a time. The weights
// of SHARED of these steps are in shared memory, others in registers. Lane l has those of outputs
// l / 4 and l / 4 + 8 of a tile, and ends with these outputs of the rows 2 (l % 4) and the one after
// it. States may have another scale for every SEGMENT of steps.
template <int INPUTS, int TILES, int SHARED, int THREADS, int SEGMENT>
struct TensorProduct {
  static constexpr int STEPS = INPUTS / SIXTEEN;
  static constexpr int KEPT = STEPS - SHARED;
  static constexpr int SHARED_FLOATS = SHARED * TILES * 8 * THREADS;
  static constexpr int STATE_FLOATS = STEPS * 4 * 32;  // of all rows
  static_assert(INPUTS % SIXTEEN == 0 && STEPS % SEGMENT == 0);

  // Pairs of halves of neighbouring inputs.
  struct alignas(16) Pairs {
    unsigned at[4];
  };

  Pairs weights[KEPT > 0 ? KEPT : 1][TILES][2];  // the nearest ones, and the rests
  const Pairs* others;

  // entry(tile, output, input) gives the matrix, already scaled.
  template <class Entry>
  __device__ void load(float* shared, Entry entry) {
    const int lane = threadIdx.x % 32;
    Pairs* const aside = reinterpret_cast<Pairs*>(shared) + threadIdx.x;
    others = aside;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        Pairs nearest, rests;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int output = lane / 4 + i % 2 * 8, k = step * SIXTEEN + lane % 4 * 2 + i / 2 * 8;
          const Halves first(entry(tile, output, k)), second(entry(tile, output, k + 1));
          nearest.at[i] = first.nearest | (unsigned)second.nearest << 16;
          rests.at[i] = first.rest | (unsigned)second.rest << 16;
        }
        const int before = shared_before(step);
        if (is_shared(step)) {
          aside[((before * TILES + tile) * 2) * THREADS] = nearest;
          aside[((before * TILES + tile) * 2 + 1) * THREADS] = rests;
        } else {
          weights[step - before][tile][0] = nearest;
          weights[step - before][tile][1] = rests;
        }
      }
  }

  // Sets an input of a row, which is already scaled.
  __device__ static void set(float* states, int input, int row, float value) {
    const int k = input % SIXTEEN, lane = of_lane(row * 4 + k % 8 / 2);
    const int place = (input / SIXTEEN * 32 + lane) * 8 + k / 8 * 2 + k % 2;
    unsigned short* const own = reinterpret_cast<unsigned short*>(states) + place;
    const Halves halves(value);
    own[0] = halves.nearest;
    own[4] = halves.rest;
  }

  // sums[tile][2 i + k] is output l / 4 + 8 i of a tile and row 2 (l % 4) + k. scale(segment) is what
  // to multiply the sums of a segment with. meanwhile() is something else to do while the first
  // states are on their way.
  template <class Of, class Meanwhile>
  __device__ void multiply(const float* states, float (&sums)[TILES][4], Of scale,
                           Meanwhile meanwhile) const {
    const Pairs* state = reinterpret_cast<const Pairs*>(states) + of_lane(threadIdx.x % 32);
    const Pairs first = state[0];
    meanwhile();
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
    add<0>(state, first, sums, scale);
  }

 private:
  // The products of a segment, and of all after it. (A loop of many steps is not unrolled.)
  template <int FIRST, class Of>
  __device__ void add(const Pairs* state, Pairs h, float (&sums)[TILES][4], Of scale) const {
    if constexpr (FIRST < STEPS) {
      float products[TILES][4] = {}, with_rests[2][TILES][4] = {};
#pragma unroll
      for (int step = FIRST; step < FIRST + SEGMENT; ++step) {
        const unsigned nearest[2] = {h.at[0], h.at[1]}, rests[2] = {h.at[2], h.at[3]};
        if (step + 1 < STEPS) h = state[(step + 1) * 32];
        const int before = shared_before(step), kept = is_shared(step) ? 0 : step - before;
        Pairs own[TILES][2];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            own[tile][i] = is_shared(step) ? others[((before * TILES + tile) * 2 + i) * THREADS]
                                           : weights[kept][tile][i];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          machine::multiply(own[tile][0].at, nearest, products[tile]);
          machine::multiply(own[tile][1].at, nearest, with_rests[0][tile]);
          machine::multiply(own[tile][0].at, rests, with_rests[TILES == 1][tile]);
        }
      }
      const float factor = scale(FIRST / SEGMENT);
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float rest = with_rests[0][tile][i];
          if (TILES == 1) rest += with_rests[1][tile][i];
          sums[tile][i] = fmaf(factor, fmaf(rest, 1 / REST, products[tile][i]), sums[tile][i]);
        }
      add<FIRST + SEGMENT>(state, h, sums, scale);
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
