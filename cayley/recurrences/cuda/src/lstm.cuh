// What the two LSTM kernels share: sums over a block, and the normalisation N of a row by the
// statistics of its last K steps, over the layer. sizes.cuh also defines NORM_X, NORM_H and NORM_C,
// which of the normalisations there are; WINDOWED, whether K > 1; and EPS.
#pragma once

#include "gates.cuh"

enum Role { I, F, G, O };

constexpr int WARPS = THREADS / 32;
constexpr int SPAN = WARPS > 16 ? 32 : WARPS > 8 ? 16 : WARPS > 4 ? 8 : WARPS > 2 ? 4 : WARPS;

// The sums over every WIDTH neighbouring lanes.
template <int WIDTH = 32, int N>
__device__ inline void sum_lanes(float (&values)[N]) {
#pragma unroll
  for (int other = WIDTH / 2; other > 0; other /= 2)
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(~0u, values[i], other);
}

// The sums over all threads, with a barrier on the way.
template <int N>
__device__ inline void sum_threads(float* partials, float (&values)[N]) {
  sum_lanes(values);
  if (threadIdx.x % 32 == 0)
#pragma unroll
    for (int i = 0; i < N; ++i) partials[i * WARPS + threadIdx.x / 32] = values[i];
  __syncthreads();
  const int warp = threadIdx.x % SPAN;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = warp < WARPS ? partials[i * WARPS + warp] : 0.0f;
  sum_lanes<SPAN>(values);
}

// Number and mean of values, and the sum of their squared distances from it.
struct Moments {
  float n, mean, spread;

  // From the sums of w, w (a - shift) and w (a - shift)². A shift to one of the values loses
  // nothing: where it is far from the others, the spread is large as well.
  __device__ static Moments of(float n, float shift, float sum, float squares) {
    const float share = n > 0 ? __fdividef(sum, n) : 0.0f;
    return {n, shift + share, squares - sum * share};
  }

  __device__ Moments with(float mean_1, float spread_1) const {
    const float d = mean_1 - mean, share = __fdividef(d, n + 1);
    return {n + 1, mean + share, spread + spread_1 + d * share * n};
  }
};

// What a normalisation got; null what it did not.
struct Site {
  const float *gamma, *beta, *reference, *past;
};

// Sums over the K - 1 steps before or after a step, made by one warp while the others are busy.
struct Window {
  float* steps;  // (K - 1, 3)
  int length;

  // The entry of step t, t < 0 before the first.
  __device__ float* step(int t) const {
    const int place = t % length;
    return steps + 3 * (place < 0 ? place + length : place);
  }

  __device__ void put(int t, float first, float second, float third) const {
    float* const entry = step(t);
    entry[0] = first;
    entry[1] = second;
    entry[2] = third;
  }

  // Each normalisation has a warp of its own, if there are as many.
  __device__ static bool mine(int site) { return threadIdx.x / 32 == site % WARPS; }

  __device__ static bool writer(int site) { return mine(site) && threadIdx.x % 32 == 0; }
};

// N over FEATURES values, one or none with each thread.
template <int SITE, int FEATURES>
struct Norm {
  Moments *partials, *before;
  Window window;
  float gamma, beta, reference;
  bool counted;
  float m, v, mean, scale;

  // The first lane of a warp is counted, if any is.
  __device__ float* init(float* memory, const Site& site, const float* weights, long long row,
                         int B, int K, int feature, bool here) {
    gamma = feature < FEATURES ? site.gamma[feature] : 0.0f;
    beta = feature < FEATURES ? site.beta[feature] : 0.0f;
    reference = site.reference ? site.reference[row] : 0.0f;
    counted = here;
    partials = reinterpret_cast<Moments*>(memory);
    before = partials + WARPS;
    float n[1] = {here ? 1.0f : 0.0f};
    sum_lanes(n);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32].n = n[0];
    window = {reinterpret_cast<float*>(before + 1), K - 1};
    if constexpr (WINDOWED) {
      for (int k = threadIdx.x; k < K - 1; k += THREADS) {
        float* const entry = window.step(k);
        entry[0] = site.past ? weights[(long long)k * B + row] : 0.0f;
        entry[1] = site.past ? site.past[(long long)k * B + row] : 0.0f;
        entry[2] = site.past ? site.past[(long long)(K - 1 + k) * B + row] : 0.0f;
      }
      __syncthreads();
      sum_before(-1);
    }
    return window.steps + 3 * (K - 1);
  }

  // To be followed by a barrier.
  __device__ void observe(float a) const {
    const float shift = __shfl_sync(~0u, a, 0), d = counted ? a - shift : 0.0f;
    float sums[2] = {d, d * d};
    sum_lanes(sums);
    Moments& own = partials[threadIdx.x / 32];
    if (threadIdx.x % 32 == 0) own = Moments::of(own.n, shift, sums[0], sums[1]);
  }

  // After that barrier: the statistics of step t, and those of its window.
  __device__ void finish(int t) {
    const int warp = threadIdx.x % SPAN;
    const Moments part = warp < WARPS ? partials[warp] : Moments{0, 0, 0};
    const float shift = __shfl_sync(~0u, part.mean, 0), d = part.n > 0 ? part.mean - shift : 0.0f;
    float sums[2] = {part.n * d, part.spread + part.n * d * d};
    sum_lanes<SPAN>(sums);
    const Moments step = Moments::of(FEATURES, shift, sums[0], sums[1]);
    m = mean = step.mean;
    v = step.spread / FEATURES;
    float variance = v;
    if constexpr (WINDOWED) {
      const Moments all = before->with(m, v);
      mean = all.mean;
      variance = __fdividef(all.spread, all.n);
      // in place of a step that is in no window any more
      if (Window::writer(SITE)) window.put(t, 1, m, v);
    }
    scale = rsqrtf(variance + EPS);
  }

  // z of a less the reference.
  __device__ float normal(float a) const { return (a - mean) * scale; }

  __device__ void write(float* statistics, long long t, long long T, long long B,
                        long long row) const {
    const int i = threadIdx.x;
    if (i < 4)
      statistics[(i * T + t) * B + row] = i == 0 ? m : i == 1 ? v : i == 2 ? mean : scale;
  }

  // After a barrier that follows finish(t): the moments of step t and those before it.
  __device__ void sum_before(int t) const {
    if (!Window::mine(SITE)) return;
    const float shift = window.step(t)[1];
    float sums[3] = {};
    for (int k = threadIdx.x % 32; k < window.length; k += 32) {
      const float w = window.steps[3 * k], d = window.steps[3 * k + 1] - shift;
      sums[0] += w;
      sums[1] += w * d;
      sums[2] += w * (window.steps[3 * k + 2] + d * d);
    }
    sum_lanes(sums);
    if (threadIdx.x % 32 == 0) *before = Moments::of(sums[0], shift, sums[1], sums[2]);
  }
};
