// What the two LSTM kernels share: sums over a block, and the normalisation N of a row by the
// statistics of its last K steps, over the layer. Those of N_x do not wait for the recurrence:
// lstm_input_forward.cu computes them. sizes.cuh also defines NORM_X, NORM_H and NORM_C, which of
// the normalisations there are; WINDOWED, whether K > 1; and EPS.
#pragma once

#include "gates.cuh"
#include "sums.cuh"

enum Gate { I, F, G, O };

constexpr int WARPS = THREADS / 32;
constexpr int GATES = 4 / ROLES;  // of a lane: I and F with role 0, G and O with role 1
constexpr int ROLE = LANES / 2;   // the bit of a lane's number that is its role
static_assert(ROLES == 2);

// The activation of the i-th gate of a lane.
__device__ inline float activate_gate(int i, int role, float z) {
  return GATES * role + i == G ? tanhf(z) : sigmoid(z);
}

// The sum over the lanes of a warp that have the same role.
__device__ inline float sum_role(float value) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2)
    if (bit != ROLE) value += __shfl_xor_sync(~0u, value, bit);
  return value;
}

struct Pair {
  float first, second;
};

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

// What a normalisation got; null what it did not.
struct Site {
  const float *gamma, *beta, *reference, *past;
};

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

// N_x of what the input contributes to the gates of a lane, of which the given one is the first.
struct InputNorm {
  float gamma[GATES] = {}, beta[GATES] = {}, reference;

  __device__ void init(const Site& site, long long row, int output, bool used) {
#pragma unroll
    for (int i = 0; i < GATES && used; ++i) {
      gamma[i] = site.gamma[output + i * H];
      beta[i] = site.beta[output + i * H];
    }
    reference = site.reference ? site.reference[row] : 0.0f;
  }

  __device__ float normalize(int i, float x, float mean, float scale) const {
    return fmaf(gamma[i], (x - reference - mean) * scale, beta[i]);
  }
};

// Three numbers of each of the K - 1 steps before or after one, which one warp keeps and adds up
// while the others are busy: each normalisation has a warp of its own, if there are as many.
struct Window {
  float* steps;  // (K - 1, 3)
  int length;
  int place;  // of the next step, whose numbers take that of one that is no longer needed

  __device__ static bool mine(int site) { return threadIdx.x / 32 == site % WARPS; }

  __device__ void put(float first, float second, float third) {
    if (threadIdx.x % 32 == 0) {
      float* const entry = steps + 3 * place;
      entry[0] = first;
      entry[1] = second;
      entry[2] = third;
    }
    __syncwarp();
  }
};

// The sums of w, w (a - shift) and w (a - shift)². A shift to one of the values loses nothing:
// where it is far from the others, their spread is large as well.
struct alignas(16) Sums {
  float n, shift, first, second;
};

// The steps before one: their number, mean and spread, n times the variance, and 1/(n + 1).
struct alignas(16) Past {
  float n, mean, spread, share;
};

// N over the gates of all lanes, VALUES for each, or over the cells, where all lanes of a unit have
// the same value. `feature` is the first of the lane, if there is one.
template <int SITE, int VALUES>
struct Norm {
  static constexpr bool REPEATED = VALUES == 1;
  static constexpr int FEATURES = REPEATED ? H : 4 * H;

  Sums* partials;
  Past* before;
  Window window;
  float gamma[VALUES], beta[VALUES], reference;
  bool counted;
  float m, v, mean, scale;
  float* out;

  // The first lane of a warp is counted, if any is.
  __device__ float* init(float* memory, const Site& site, const float* weights, float* statistics,
                         long long row, long long T, int B, int K, int feature, bool here) {
    out = statistics + threadIdx.x * T * B + row;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      gamma[i] = here ? site.gamma[feature + i * H] : 0.0f;
      beta[i] = here ? site.beta[feature + i * H] : 0.0f;
    }
    reference = site.reference ? site.reference[row] : 0.0f;
    counted = here;
    partials = reinterpret_cast<Sums*>(memory);
    before = reinterpret_cast<Past*>(partials + WARPS);
    const float n = sum_warp(!here ? 0.0f : REPEATED ? 1.0f / ROLES : VALUES);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32].n = n;
    window = {reinterpret_cast<float*>(before + 1), K - 1, 0};
    if constexpr (WINDOWED) {
#pragma unroll 1
      for (int k = threadIdx.x; k < K - 1; k += THREADS) {
        float* const entry = window.steps + 3 * k;
        entry[0] = site.past ? weights[(long long)k * B + row] : 0.0f;
        entry[1] = site.past ? site.past[(long long)k * B + row] : 0.0f;
        entry[2] = site.past ? site.past[(long long)(K - 1 + k) * B + row] : 0.0f;
      }
      __syncthreads();
      if (Window::mine(SITE)) sum_window(window.steps[3 * (K - 2) + 1]);
    }
    return window.steps + (3 * (K - 1) + 3) / 4 * 4;
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
    constexpr float PART = 1.0f / FEATURES;
    const float shift = partials[0].shift;
    const Pair sums = sum_warps([&](int warp) {
      const Sums part = partials[warp];
      const float d = part.shift - shift;
      return Pair{fmaf(part.n, d, part.first),
                  fmaf(d, fmaf(part.n, d, 2 * part.first), part.second)};
    });
    m = mean = fmaf(sums.first, PART, shift);
    v = PART * fmaf(-PART * sums.first, sums.first, sums.second);
    float variance = v;
    if constexpr (WINDOWED) {
      const Past all = *before;
      const float d = m - all.mean;
      mean = fmaf(d, all.share, all.mean);
      variance = all.share * (all.spread + v + d * d * all.share * all.n);
    }
    scale = rsqrtf(variance + EPS);
  }

  // z of a less the reference.
  __device__ float normal(float a) const { return (a - mean) * scale; }

  // Step after step; four threads write.
  __device__ void write(int B) {
    const int i = threadIdx.x;
    if (i < 4) *out = i == 0 ? m : i == 1 ? v : i == 2 ? mean : scale;
    out += B;
  }

  // After a barrier that follows finish(): the moments of that step and those before it.
  __device__ void sum_before() {
    if (!Window::mine(SITE)) return;
    window.put(1, m, v);
    window.place = window.place == window.length - 1 ? 0 : window.place + 1;
    sum_window(m);
  }

 private:
  __device__ void sum_window(float shift) const {
    float sums[4] = {};
#pragma unroll 1
    for (int k = threadIdx.x % 32; k < window.length; k += 32) {
      const float w = window.steps[3 * k], d = window.steps[3 * k + 1] - shift;
      sums[0] += w;
      sums[1] += w * d;
      sums[2] += w * (window.steps[3 * k + 2] + d * d);
    }
    const float sum = sum_four(sums);
    const float first = __shfl_sync(~0u, sum, 1), second = __shfl_sync(~0u, sum, 2);
    if (threadIdx.x % 32 == 0) {
      const float offset = sum > 0 ? __fdividef(first, sum) : 0.0f;
      *before = {sum, shift + offset, second - first * offset, __fdividef(1, sum + 1)};
    }
  }
};
