// What the two LSTM kernels share whose weights are on one multiprocessor: sums over a block, which
// computes a row of the batch. sizes.cuh also defines SEVERAL, which networks.cuh explains.
#pragma once

#include "gates.cuh"
#include "networks.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int ROW_THREADS = THREADS;
constexpr int GATES = 4 / ROLES;  // of a lane: I and F with role 0, G and O with role 1
constexpr int ROLE = LANES / 2;   // the bit of a lane's number that is its role
static_assert(ROLES == 2);

#include "lstm.cuh"

// The sum over the lanes of a warp that have the same role.
__device__ inline float sum_role(float value) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2)
    if (bit != ROLE) value += __shfl_xor_sync(~0u, value, bit);
  return value;
}

// The sums over all warps of what part(warp) gives, to every thread.
template <class Part>
__device__ inline Pair sum_warps(Part part) {
  // of twice as many lanes as needed, one half for each of the two
  constexpr int PLACES = 1 << log2(2 * WARPS - 1);
  static_assert(PLACES <= 16);
  const int place = threadIdx.x % PLACES;
  const bool second = threadIdx.x / PLACES % 2;
  const Pair own = place < WARPS ? part(place) : Pair{0, 0};
  float sum = second ? own.second : own.first;
#pragma unroll
  for (int other = 1; other < PLACES; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
  const float other = __shfl_xor_sync(~0u, sum, PLACES);
  return second ? Pair{other, sum} : Pair{sum, other};
}

// COUNT numbers of each step, which as many threads fetch for all, as Ahead does: to be called
// before its end_of_step(). Others see them after a barrier that follows the wait for the copies.
template <int COUNT>
struct Scalars {
  static constexpr int FLOATS = COUNT * DEPTH;

  float* first;
  const float* next;  // what this thread fetches; null for nothing
  int slot = 0, ready = 0;

  __device__ Scalars(float* memory, const float* next) : first(memory), next(next) {}

  // The number of the step after is so many floats further.
  __device__ void fetch(int step) {
    if (next) {
      machine::copy_ahead(first + slot + threadIdx.x, next);
      next += step;
    }
  }

  __device__ void end_of_step() { slot = after(slot); }

  // Of the step at hand.
  __device__ float get(int i) const { return first[ready + i]; }

  __device__ void advance() { ready = after(ready); }

 private:
  __device__ static int after(int place) { return place == FLOATS - COUNT ? 0 : place + COUNT; }
};

// The sums of w, w (a - shift) and w (a - shift)². A shift to one of the values loses nothing:
// where it is far from the others, their spread is large as well.
struct alignas(16) Sums {
  float n, shift, first, second;
};

// N over the gates of all lanes, VALUES for each, or over the cells, where all lanes of a unit have
// the same value.
template <int SITE, int VALUES>
struct BlockNorm : Norm<SITE, VALUES> {
  using Base = Norm<SITE, VALUES>;
  static constexpr bool REPEATED = VALUES == 1;

  Sums* partials;
  bool counted;

  // The first lane of a warp is counted, if any is.
  template <class... Rest>
  __device__ float* init(float* memory, const Site& site, bool here, Rest... rest) {
    partials = reinterpret_cast<Sums*>(memory);
    counted = here;
    const float n = sum_warp(!here ? 0.0f : REPEATED ? 1.0f / ROLES : VALUES);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32].n = n;
    return Base::init(memory + 4 * WARPS, site, rest...);
  }

  // To be followed by a barrier.
  __device__ void observe(const float (&a)[VALUES]) const {
    const int lane = threadIdx.x % 32;
    const float shift = __shfl_sync(~0u, a[0], 0);
    float first = 0, second = 0;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const float d = counted ? a[i] - shift : 0.0f;
      first += d;
      second = fmaf(d, d, second);
    }
    const float sum = REPEATED ? sum_role(lane & ROLE ? second : first) : sum_two(first, second);
    Sums& own = partials[threadIdx.x / 32];
    if (lane == 0) own.first = sum;
    if (lane == (REPEATED ? ROLE : 1)) own.second = sum;
    if (lane == 3) own.shift = shift;
  }

  // After that barrier: the statistics of the step, and those of its window.
  __device__ void finish() {
    constexpr float PART = 1.0f / Base::FEATURES;
    const float shift = partials[0].shift;
    const Pair sums = sum_warps([&](int warp) {
      const Sums part = partials[warp];
      const float d = part.shift - shift;
      return Pair{fmaf(part.n, d, part.first),
                  fmaf(d, fmaf(part.n, d, 2 * part.first), part.second)};
    });
    Base::finish(fmaf(sums.first, PART, shift),
                 PART * fmaf(-PART * sums.first, sums.first, sums.second));
  }
};
