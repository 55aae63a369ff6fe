// What the two kernels of a recurrence with W = D F(1) ... F(L) share, where each F turns pairs of
// units. A block computes one row of the batch; units.cuh says how. sizes.cuh also defines LAYERS,
// their number L; for each layer OFFSETS and ENDS, from and to which unit it turns, STRIDES, how far
// the two of a pair are apart, a power of two, and FIRSTS, where its angles begin; and MEMORY, the
// bytes of shared memory.
#pragma once

#include "units.cuh"

// h_k becomes (a + i b) (c h_k + s h_p), where p is the partner of k; s is 0 without one.
struct alignas(16) Turn {
  float c, s, a, b;
};

template <int L>
struct Layer {
  static constexpr int INDEX = L, OFFSET = OFFSETS[L], END = ENDS[L], STRIDE = STRIDES[L];
  static constexpr int FIRST = FIRSTS[L];

  __device__ static int partner(int i) {
    return i < OFFSET || i >= END ? i : ((i - OFFSET) ^ STRIDE) + OFFSET;
  }
};

// Calls of(layer) for all layers, from the first to the last.
template <int L = 0, class Of>
__device__ inline void each_layer(Of of) {
  if constexpr (L < LAYERS) {
    of(Layer<L>());
    each_layer<L + 1>(of);
  }
}

// From the last to the first, as they are applied.
template <int L = LAYERS - 1, class Of>
__device__ inline void each_layer_back(Of of) {
  if constexpr (L >= 0) {
    of(Layer<L>());
    each_layer_back<L - 1>(of);
  }
}

// Shared memory: the turns of all layers, and two buffers of what units exchange, used in turns, so
// that a thread can fill the one while others still read the other.
template <class Value>
struct Memory {
  Turn* turns;
  Value* buffers;
  int turn = 0;

  static_assert(sizeof(Turn) * LAYERS * N + 2 * sizeof(Value) * N == MEMORY);

  __device__ explicit Memory(float4* shared) : turns(reinterpret_cast<Turn*>(shared)) {
    buffers = reinterpret_cast<Value*>(turns + LAYERS * N);
  }

  template <class Level>
  __device__ Turn of(Level, int i) const {
    return turns[Level::INDEX * N + i];
  }

  // To every unit the value of its partner.
  template <class Level>
  __device__ void exchange(Level, const Value (&values)[EACH], Value (&others)[EACH]) {
    Value* const buffer = buffers + turn * N;
    each_unit([&](int e, int i) { buffer[i] = values[e]; });
    __syncthreads();
    each_unit([&](int e, int i) { others[e] = buffer[Level::partner(i)]; });
    turn ^= 1;
  }
};

// theta and phi have the angles of all pairs, one layer after another.
__device__ inline void fill(Turn* turns, const float* theta, const float* phi) {
  each_layer([&](auto layer) {
    using Level = decltype(layer);
    Turn* const of_layer = turns + Level::INDEX * N;
#pragma unroll 1
    for (int i = threadIdx.x; i < N; i += THREADS) {
      const int other = Level::partner(i);
      if (other == i) of_layer[i] = {1, 0, 1, 0};
      if (other <= i) continue;
      const int block = (i - Level::OFFSET) / (2 * Level::STRIDE);
      const int pair = Level::FIRST + i - Level::OFFSET - block * Level::STRIDE;
      const Number angle = phase(theta[pair], 1), own = phase(phi[pair], 1);
      of_layer[i] = {angle.re, -angle.im, own.re, own.im};
      of_layer[other] = {angle.re, angle.im, 1, 0};
    }
  });
  __syncthreads();
}

__device__ inline Number turned(Number h, Number other, Turn by) {
  const Number sum = {fmaf(by.c, h.re, by.s * other.re), fmaf(by.c, h.im, by.s * other.im)};
  return Number{by.a, by.b} * sum;
}

__device__ inline Number unphased(Number h, Turn by) { return inner({by.a, by.b}, h); }

__device__ inline Number unturned(Number h, Number other, Turn by) {
  return {fmaf(by.c, h.re, -by.s * other.re), fmaf(by.c, h.im, -by.s * other.im)};
}
