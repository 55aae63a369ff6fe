// What the kernels of recurrences share that multiply tiles: many rows of the batch with weights
// that stay in shared memory. A team of BLOCKS blocks computes ROWS rows at a time, and each block
// of it GROUPS groups of UNITS units. A product is shared by its warps over the inputs: each adds up
// SLICE of them, for all rows and units of the block; then their sums are added up. sizes.cuh, which
// tiles.py writes, defines these, H, the number of all units, and THREADS; DEPTH and STAGES, of how
// many inputs a stage is, and how many of those a warp has room for; SETS, how many sets of rows a
// team computes in turn at every step, if the kernel has them; and PACKED, which steps.cuh explains.
//
// All blocks of all teams run at the same time. What they tell each other lies in global memory, or
// rather in the cache before it, with the rows of a unit side by side.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "machine.cuh"
#include "steps.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int SLICE = (H + WARPS * DEPTH - 1) / (WARPS * DEPTH) * DEPTH;
constexpr int INPUTS = WARPS * SLICE;  // of a product, zeros at their end
constexpr int STAGE = DEPTH * ROWS;  // floats
static_assert(ROWS == 64 && UNITS == 16, "a lane has 8 rows and 4 units");
static_assert(4 * THREADS == ROWS * UNITS, "a thread has 4 rows of a unit");
static_assert(STAGES * DEPTH == UNITS, "the sums of a warp lie where its stages were");
static_assert(DEPTH % 2 == 0 && SLICE / UNITS + 2 <= 32);

// What a thread of a team is for, between products: four rows of a unit of each group.
struct Member {
  int team, rank;  // of the block: its team, and its number in it
  int lane, unit;  // of the first group: among its units, and among all
  int row;         // the first of four, among those of the team

  __device__ Member()
      : team(blockIdx.x / BLOCKS),
        rank(blockIdx.x % BLOCKS),
        lane(threadIdx.x % UNITS),
        unit(rank * GROUPS * UNITS + lane),
        row(threadIdx.x / UNITS * 4) {}

  // Among all units, that of a group.
  __device__ int unit_of(int group) const { return unit + group * UNITS; }
};

// Where sums of four rows lie, (UNITS, ROWS): neither those who write nor those who read fours meet
// in a bank.
__device__ inline int place_of(int output, int row) {
  return output * ROWS + (row ^ output * 4);
}

__device__ inline float4 four(const float* memory) {
  return *reinterpret_cast<const float4*>(memory);
}

// The weights of a product of all inputs, (INPUTS, UNITS), for the group with this number among those
// of all blocks. entry(unit, input) gives the matrix. With STRIDE > UNITS another product's lie
// between them.
template <int STRIDE, class Entry>
__device__ inline void load_weights(float* weights, int group, Entry entry) {
#pragma unroll 4
  for (int i = threadIdx.x; i < INPUTS * UNITS; i += THREADS) {
    const int unit = group * UNITS + i % UNITS, input = i / UNITS;
    weights[input * STRIDE + i % UNITS] = unit < H && input < H ? entry(unit, input) : 0.0f;
  }
}

// Products of one or two matrices with the same inputs. A lane adds up 8 rows of 8 outputs, so that
// it multiplies 64 times for 16 numbers that it reads: 4 units of each of two matrices; or 8 units
// of one, and then the two halves of a warp take turns with the inputs.
template <int PRODUCTS>
struct Tile {
  static constexpr bool HALVES = PRODUCTS == 1;
  static constexpr int TURNS = HALVES ? 2 : 1;
  static constexpr int APART = HALVES ? UNITS / 2 : UNITS;  // from a lane's first 4 outputs to the others

  float sums[2][4][8];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i / 32][i / 8 % 4][i % 8] = 0;
  }

  // The lane's first rows and outputs. Bit 0 of its number tells outputs and bit 1 rows, so that
  // pairs of lanes read the same four numbers, and a read takes half the time.
  __device__ static int row() {  // and 32 after it
    const int lane = threadIdx.x % 32;
    return 4 * (HALVES ? lane >> 1 & 7 : lane >> 1 & 1 | lane >> 2 & 6);
  }
  __device__ static int output() {
    const int lane = threadIdx.x % 32;
    return 4 * (HALVES ? lane & 1 : lane & 1 | lane >> 1 & 2);
  }
  __device__ static int half() { return HALVES ? threadIdx.x % 32 / 16 : 0; }

  // Adds up inputs, (INPUTS, ROWS), by weights, (INPUTS, PRODUCTS, UNITS).
  __device__ void add(const float* inputs, const float* weights, float* stages) {
    constexpr int COUNT = SLICE / DEPTH;
    const int warp = threadIdx.x / 32;
    const float* const from = inputs + warp * SLICE * ROWS + threadIdx.x % 32 * 4;
    const float* const weight = weights + (warp * SLICE + half()) * PRODUCTS * UNITS + output();
    float* const own = stages + warp * STAGES * STAGE;
    float* const to = own + threadIdx.x % 32 * 4;
    const auto fetch = [&](int stage) {
      if (stage < COUNT)
#pragma unroll
        for (int i = 0; i < STAGE; i += 128)
          machine::copy_four_ahead(to + stage % STAGES * STAGE + i, from + stage * STAGE + i);
      machine::end_of_copies();  // of none, too, so that their number tells the stage
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) fetch(stage);
#pragma unroll STAGES
    for (int stage = 0; stage < COUNT; ++stage) {
      machine::wait_for_copies<STAGES - 2>();
      __syncwarp();  // all lanes have copied this one, and read the one before it
      fetch(stage + STAGES - 1);
      const float* const state = own + stage % STAGES * STAGE + half() * ROWS + row();
      const float* const here = weight + stage * DEPTH * PRODUCTS * UNITS;
#pragma unroll
      for (int k = 0; k < DEPTH; k += TURNS) {
        const float4 a = four(state + k * ROWS), b = four(state + k * ROWS + 32);
        const float rows[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int group = 0; group < 2; ++group) {
          const float4 w = four(here + k * PRODUCTS * UNITS + group * APART);
          const float units[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int u = 0; u < 4; ++u)
#pragma unroll
            for (int r = 0; r < 8; ++r)
              sums[group][u][r] = fmaf(units[u], rows[r], sums[group][u][r]);
        }
      }
    }
    __syncwarp();
  }

  // The sums of product p over all inputs, of the thread's unit and rows. Those of the warps lie
  // where their stages were: a barrier has to come before the next products or totals.
  __device__ void total(int p, const Member& member, float* stages, float (&values)[4]) const {
    float* const own = stages + threadIdx.x / 32 * STAGES * STAGE;
    const int first = output() + half() * APART;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int u = i / 2, r = i % 2 * 4;
      float s[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) s[k] = HALVES ? joined(u, r + k) : sums[p][u][r + k];
      float* const to = own + place_of(first + u, row() + r * 8);
      *reinterpret_cast<float4*>(to) = {s[0], s[1], s[2], s[3]};
    }
    __syncthreads();
    const float* const from = stages + place_of(member.lane, member.row);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
      const float4 s = four(from + warp * STAGES * STAGE);
      values[0] += s.x;
      values[1] += s.y;
      values[2] += s.z;
      values[3] += s.w;
    }
  }

 private:
  // Over the inputs of both halves of the warp: each half keeps 4 of the outputs.
  __device__ float joined(int u, int r) const {
    const float first = sums[0][u][r], second = sums[1][u][r];
    return (half() ? second : first) + __shfl_xor_sync(~0u, half() ? first : second, 16);
  }
};

// How far the blocks of a team are: each counts in a word of its own, zero at first, what it has
// posted, and waits until others have posted as much.
struct Progress {
  unsigned* words;  // (BLOCKS)
  unsigned number = 0;

  Progress() = default;

  __device__ Progress(unsigned* all, const Member& member) : words(all + member.team * BLOCKS) {}

  // Numbers of the thread's rows, of a unit, go to the other blocks, into (INPUTS, ROWS).
  __device__ static void post(const Member& member, float* inputs, const float (&values)[4],
                              int group = 0) {
    const int unit = member.unit_of(group);
    if (unit < H)
      *reinterpret_cast<float4*>(inputs + unit * ROWS + member.row) = {values[0], values[1],
                                                                       values[2], values[3]};
  }

  // Everything that this block has posted can be read now.
  __device__ void tell(const Member& member) {
    __syncthreads();
    ++number;
    if (threadIdx.x == 0) machine::raise(words + member.rank, number);
  }

  // Until the blocks have posted as often whose units this warp adds up.
  __device__ void wait() const {
    const int first = threadIdx.x / 32 * SLICE, end = min(first + SLICE, H);
    const int block = first / (GROUPS * UNITS) + threadIdx.x % 32;
    if (block * GROUPS * UNITS < end)
      while (machine::raised(words + block) < number) {
      }
    __syncwarp();
  }
};
