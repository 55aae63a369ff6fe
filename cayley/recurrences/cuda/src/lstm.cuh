// What the two LSTM kernels share: sums over a block, and the normalisation N of a row by the
// statistics of its last K steps, over the layer. sizes.cuh also defines NORM_X, NORM_H and NORM_C,
// which of the normalisations there are; WINDOWED, whether K > 1; and EPS.
#pragma once

#include "gates.cuh"

enum Role { I, F, G, O };

constexpr int WARPS = THREADS / 32;

// The sum over the lanes whose numbers differ in the given bits.
template <int... BITS>
__device__ inline float sum_over(float value) {
  ((value += __shfl_xor_sync(~0u, value, BITS)), ...);
  return value;
}

// The sums of two values over a warp: that of the first with even lanes, of the second with odd
// ones. It is exchanges that take the time, and this takes half as many as two sums.
__device__ inline float sum_two(float first, float second) {
  const bool odd = threadIdx.x % 2;
  const float sum = (odd ? second : first) + __shfl_xor_sync(~0u, odd ? first : second, 1);
  return sum_over<2, 4, 8, 16>(sum);
}

// The sums of four, each with every fourth lane.
__device__ inline float sum_four(const float (&values)[4]) {
  const bool odd = threadIdx.x % 2, upper = threadIdx.x / 2 % 2;
  const float low = (odd ? values[1] : values[0]) +
                    __shfl_xor_sync(~0u, odd ? values[0] : values[1], 1);
  const float high = (odd ? values[3] : values[2]) +
                     __shfl_xor_sync(~0u, odd ? values[2] : values[3], 1);
  const float sum = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, 2);
  return sum_over<4, 8, 16>(sum);
}

struct Pair {
  float first, second;
};

// The sums over all warps of what part(warp) gives, to every thread.
template <class Part>
__device__ inline Pair sum_warps(Part part) {
  const int lane = threadIdx.x % 32;
  if constexpr (WARPS > 16) {
    const Pair own = lane < WARPS ? part(lane) : Pair{0, 0};
    return {sum_over<1, 2, 4, 8, 16>(own.first), sum_over<1, 2, 4, 8, 16>(own.second)};
  } else {
    // one half of the lanes for each of the two
    const bool half = lane / 16;
    const Pair own = lane % 16 < WARPS ? part(lane % 16) : Pair{0, 0};
    const float sum = sum_over<1, 2, 4, 8>(half ? own.second : own.first);
    const float other = __shfl_xor_sync(~0u, sum, 16);
    return half ? Pair{other, sum} : Pair{sum, other};
  }
}

// What a normalisation got; null what it did not.
struct Site {
  const float *gamma, *beta, *reference, *past;
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

// The sums of w, w (a - shift) and w (a - shift)². A shift to one of the values loses nothing: where
// it is far from the others, their spread is large as well.
struct alignas(16) Sums {
  float n, shift, first, second;
};

// The steps before one: their number, mean and spread, n times the variance, and 1/(n + 1).
struct alignas(16) Past {
  float n, mean, spread, share;
};

// N over FEATURES values, one or none with each thread; if they are REPEATED, all four lanes of a unit
// have the same.
template <int SITE, int FEATURES, bool REPEATED>
struct Norm {
  Sums* partials;
  Past* before;
  Window window;
  float gamma, beta, reference;
  bool counted;
  float m, v, mean, scale;
  float* out;

  // The first lane of a warp is counted, if any is.
  __device__ float* init(float* memory, const Site& site, const float* weights, float* statistics,
                         long long row, long long T, int B, int K, int feature, bool here) {
    out = statistics + threadIdx.x * T * B + row;
    gamma = feature < FEATURES ? site.gamma[feature] : 0.0f;
    beta = feature < FEATURES ? site.beta[feature] : 0.0f;
    reference = site.reference ? site.reference[row] : 0.0f;
    counted = here;
    partials = reinterpret_cast<Sums*>(memory);
    before = reinterpret_cast<Past*>(partials + WARPS);
    const float n = sum_over<1, 2, 4, 8, 16>(here ? 1.0f : 0.0f);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32].n = REPEATED ? n / 4 : n;
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
  __device__ void observe(float a) const {
    const int lane = threadIdx.x % 32;
    const float shift = __shfl_sync(~0u, a, 0), d = counted ? a - shift : 0.0f;
    Sums& own = partials[threadIdx.x / 32];
    float sum;
    if constexpr (REPEATED) {
      // bit 0 of a lane and bits 3 and 4 say which unit it belongs to
      static_assert(!REPEATED || UNITS == 2);
      sum = sum_over<1, 8, 16>(lane & 2 ? d * d : d);
    } else {
      sum = sum_two(d, d * d);
    }
    if (lane == 0) own.first = sum;
    if (lane == (REPEATED ? 2 : 1)) own.second = sum;
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
