// The product of a matrix, kept on chip, with the states of a few batch rows.
#pragma once

#include "machine.cuh"

constexpr int log2(int n) { return n <= 1 ? 0 : 1 + log2(n / 2); }

// A group of SPLITS lanes of a warp computes OUTPUTS outputs of ROWS rows. Lane `split` adds up
// the inputs (chunk * SPLITS + split) * VECTOR + e, and an exchange within the warp leaves every
// sum with one lane. Weights are in registers, those of SHARED of the chunks in shared memory.
// OUTPUTS, SPLITS and ROWS are powers of 2, OUTPUTS at least 4.
//
// The lanes of a group are APART, 1 or 32 / SPLITS. With the latter, neighbours are of different
// groups and read the same states. To read 16 bytes takes half as long if all pairs of neighbours
// read the same ones.
//
// With COMPLEX, two neighbouring inputs, and two neighbouring outputs, are the parts of a complex
// number. The matrix then consists of blocks [[r, -c], [c, r]], and a lane holds r and c once: for
// each of its inputs HELD numbers, r at an even input and c at the odd one after it.
template <int INPUTS, int OUTPUTS, int SPLITS, int VECTOR, int ROWS, int SHARED, int THREADS,
          bool COMPLEX = false, int APART = 1>
struct Product {
  static_assert(!COMPLEX || VECTOR % 2 == 0, "a lane reads both parts of a complex number");
  static constexpr int STEP = SPLITS * VECTOR;
  static constexpr int CHUNKS = (INPUTS + STEP - 1) / STEP;
  static constexpr int WIDTH = CHUNKS * STEP;  // of a row of states, zeros at its end
  static constexpr int KEPT = CHUNKS - SHARED;
  static constexpr int SUMS = ROWS * OUTPUTS;
  static constexpr int VALUES = SUMS > SPLITS ? SUMS / SPLITS : 1;    // that a lane ends with
  static constexpr int REPLICAS = SPLITS > SUMS ? SPLITS / SUMS : 1;  // lanes with equal values
  static constexpr int QUADS = VALUES > 4 ? VALUES / 4 : 1;
  static constexpr int SENDERS = (VALUES > 4 ? 1 : 4 / VALUES) * REPLICAS;  // of equal quads
  static constexpr int HELD = COMPLEX ? OUTPUTS / 2 : OUTPUTS;
  static constexpr int SHARED_FLOATS = SHARED * HELD * VECTOR * THREADS;

  struct alignas(4 * VECTOR) Vector {
    float at[VECTOR];
  };

  float weights[KEPT > 0 ? KEPT : 1][HELD][VECTOR];
  const Vector* rest;
  int split, group, order;

  // entry(output, input) gives the matrix, zero outside.
  template <class Entry>
  __device__ void load(float* shared, Entry entry) {
    const int first = threadIdx.x / (SPLITS * APART) * APART;  // of the groups among these lanes
    stand(threadIdx.x / APART % SPLITS, first + threadIdx.x % APART);
    rest = reinterpret_cast<const Vector*>(shared) + threadIdx.x;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
      for (int o = 0; o < HELD; ++o)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
          const int imaginary = COMPLEX ? e % 2 : 0, sum = COMPLEX ? 2 * o + imaginary : o;
          const int output = group * OUTPUTS + (sum ^ swapped() % OUTPUTS);
          const float w = entry(output, (chunk * SPLITS + split) * VECTOR + e - imaginary);
          const int before = shared_before(chunk);
          if (is_shared(chunk))
            shared[((before * HELD + vector_of(o, e)) * THREADS + threadIdx.x) * VECTOR +
                   place_of(o, e)] = w;
          else
            weights[chunk - before][o][e] = w;
        }
  }

  // To be called once, if there are registers left: the places of this lane then stay in them, and
  // are not computed again at every step from threadIdx, which takes as long as a dozen products.
  __device__ void stay() { stand(machine::kept(split), machine::kept(group)); }

  // The row and output of the i-th value that this lane ends with, as row * OUTPUTS + output.
  __device__ int owned(int i) const { return i + order; }

  __device__ int replica() const { return REPLICAS == 1 ? 0 : split / (SPLITS / REPLICAS); }

  // meanwhile() is something else to do while the first states are on their way.
  template <class Meanwhile>
  __device__ void multiply(const float* states, float (&values)[VALUES],
                           Meanwhile meanwhile) const {
    float sums[SUMS];
    accumulate(states, sums, meanwhile, [] {});
    finish(sums, values);
  }

  // The first half of that: sums over the inputs of this lane, for finish() to add up. AHEAD states
  // are read before anything else is done. What meanwhile() computes has until after(), which is
  // called when half of the products are done.
  template <int AHEAD = 32, class Meanwhile, class After>
  __device__ void accumulate(const float* states, float (&sums)[SUMS], Meanwhile meanwhile,
                             After after) const {
    constexpr int MOST = AHEAD / (ROWS * VECTOR);
    constexpr int FIRST = MOST < 1 ? 1 : MOST < CHUNKS ? MOST : CHUNKS;
    const Vector* state = reinterpret_cast<const Vector*>(states) + split;
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sums[i] = 0;
    Vector first[FIRST][ROWS];
#pragma unroll
    for (int chunk = 0; chunk < FIRST; ++chunk)
#pragma unroll
      for (int row = 0; row < ROWS; ++row) first[chunk][row] = state[row_at(row) + chunk * SPLITS];
    meanwhile();
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      Vector extra[HELD];
      const int before = shared_before(chunk), kept = is_shared(chunk) ? 0 : chunk - before;
      if (is_shared(chunk))
#pragma unroll
        for (int o = 0; o < HELD; ++o) extra[o] = rest[(before * HELD + o) * THREADS];
      const auto weight = [&](int o, int e) {
        return is_shared(chunk) ? extra[vector_of(o, e)].at[place_of(o, e)] : weights[kept][o][e];
      };
      Vector h[ROWS];
#pragma unroll
      for (int row = 0; row < ROWS; ++row)
        h[row] = chunk < FIRST ? first[chunk < FIRST ? chunk : 0][row]
                               : state[row_at(row) + chunk * SPLITS];
      add(weight, h, sums);
      if (chunk == CHUNKS / 2) after();
    }
    scatter<0, 1>(sums);  // half of them go while others wait for the next states
  }

  // The second half, which uses the sums up.
  __device__ void finish(float (&sums)[SUMS], float (&values)[VALUES]) const {
    scatter<1, log2(SPLITS)>(sums);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) values[i] = sums[i];
    if constexpr (COMPLEX && VALUES == 1) values[0] = order % 2 == 0 ? sums[0] : sums[1];
  }

  // Also partners[i], the other one of the pair of outputs that has values[i].
  __device__ void finish(float (&sums)[SUMS], float (&values)[VALUES],
                         float (&partners)[VALUES]) const {
    finish(sums, values);
    if constexpr (COMPLEX && VALUES == 1) {
      partners[0] = order % 2 == 0 ? sums[1] : sums[0];
    } else {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) partners[i] = partner(values, i);
    }
  }

  // Four neighbouring outputs of one row each, which SENDERS lanes then have.
  __device__ void gather(const float (&values)[VALUES], float (&quads)[QUADS][4]) const {
    if constexpr (VALUES >= 4) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) quads[i / 4][i % 4] = values[i];
    } else {
      // bit 0 of the output is a bit of the lane, bit 1 the one below it
      constexpr int TOP = APART * SUMS / 2, MASK = VALUES == 1 ? TOP + TOP / 2 : TOP / 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int other = (i & 1) * TOP + (i >> 1) * TOP / 2 & MASK;
        quads[0][i] = machine::from_lane<MASK>(values[i % VALUES], other);
      }
    }
  }

  __device__ int first_of_quad(int i) const { return 4 * i + order / 4 * 4; }

  __device__ int sender() const { return order % 4 / VALUES + SENDERS / REPLICAS * replica(); }

  // The value next to the i-th: the other one of a pair of outputs.
  __device__ static float partner(const float (&values)[VALUES], int i) {
    if constexpr (VALUES > 1)
      return values[i ^ 1];
    else
      return __shfl_xor_sync(~0u, values[0], APART * SUMS / 2);
  }

 private:
  // How many of the chunks before one have their weights in shared memory. These are spread over
  // all: to read the weights of one takes longer than to multiply with them, but not than to do so
  // with those of the chunks between.
  __device__ static constexpr int shared_before(int chunk) { return chunk * SHARED / CHUNKS; }

  __device__ static constexpr bool is_shared(int chunk) {
    return shared_before(chunk + 1) > shared_before(chunk);
  }

  // Where a weight is among those in shared memory. There are two banks of registers, the even and
  // the odd ones, and a product that reads two of the same bank takes twice as long. With COMPLEX
  // the weights of two outputs alternate, so that the sums of each can stay in the other bank.
  __device__ static constexpr int flat(int o, int e) {
    return COMPLEX ? o / 2 * 2 * VECTOR + 2 * e + o % 2 : o * VECTOR + e;
  }
  __device__ static constexpr int vector_of(int o, int e) { return flat(o, e) / VECTOR; }
  __device__ static constexpr int place_of(int o, int e) { return flat(o, e) % VECTOR; }

  __device__ void stand(int split, int group) {
    this->split = split;
    this->group = group;
    order = 0;
#pragma unroll
    for (int level = 0; level < log2(SPLITS) && level < log2(SUMS); ++level)
      order += (split >> level & 1) * (SUMS >> (level + 1));
  }

  __device__ int row_at(int row) const { return (row ^ order / OUTPUTS) * (WIDTH / VECTOR); }

  // Adds the products with one vector of each row.
  template <class Weight>
  __device__ static void add(Weight weight, const Vector (&h)[ROWS], float (&sums)[SUMS]) {
    if constexpr (COMPLEX) {
      // All r and then all c, and the other way round with the second part of a state, so that the
      // weight stays where the part or row changes. A product whose weight and state are both new
      // reads three registers, and two of them are of the same bank.
#pragma unroll
      for (int pair = 0; pair < VECTOR; pair += 2)
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
#pragma unroll
          for (int i = 0; i < 2 * OUTPUTS; ++i) {
            const int part = i / OUTPUTS, k = part == 0 ? i : 2 * OUTPUTS - 1 - i;
            const bool crossed = k >= HELD;
            const int o = crossed ? OUTPUTS - 1 - k : k;
            const float w = weight(o, pair + crossed);
            float& sum = sums[row * OUTPUTS + 2 * o + (part ^ crossed)];
            sum = fmaf(crossed && part == 1 ? -w : w, h[row].at[pair + part], sum);
          }
    } else {
#pragma unroll
      for (int row = 0; row < ROWS; ++row)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
#pragma unroll
          for (int o = 0; o < OUTPUTS; ++o)
            sums[row * OUTPUTS + o] = fmaf(weight(o, e), h[row].at[e], sums[row * OUTPUTS + o]);
    }
  }

  // Sum i is at i ^ swapped(). The parts of a complex number stay in their order, since a lane
  // that had them the other way round would need other signs than its neighbours.
  __device__ int swapped() const { return COMPLEX ? order & ~1 : order; }

  // Adds the lanes' sums, from a level up to END. At every level a lane hands the upper half of its
  // sums over. They are in an order of its own, so that these are the ones it does not end with. Of
  // a complex number a lane ends with both parts, at 0 and 1, even if only one is its value: the
  // other is needed too, and would otherwise have to be asked for.
  template <int LEVEL, int END>
  __device__ void scatter(float (&sums)[SUMS]) const {
    if constexpr (LEVEL < END) {
      constexpr int HALF = SUMS >> (LEVEL + 1), OTHER = APART << LEVEL;
      if constexpr (HALF == 0 || (COMPLEX && HALF == 1)) {
#pragma unroll
        for (int i = 0; i < (COMPLEX ? 2 : 1); ++i) sums[i] += __shfl_xor_sync(~0u, sums[i], OTHER);
      } else {
#pragma unroll
        for (int i = 0; i < HALF; ++i) sums[i] += __shfl_xor_sync(~0u, sums[i + HALF], OTHER);
      }
      scatter<LEVEL + 1, END>(sums);
    }
  }
};
