// What the LSTM kernels share: the gates, and the normalisation N of a row by the statistics of its
// last K steps, over the layer, with its gradient. Those of N_x do not wait for the recurrence:
// lstm_input_forward.cu computes them. What includes this defines ROW_THREADS, the threads that a
// row of the batch has, in whole warps, and GATES, the gates of a unit that a thread has. sizes.cuh
// also defines NORM_X, NORM_H and NORM_C, which of the normalisations there are; WINDOWED, whether
// K > 1; and EPS.
#pragma once

#include "lstm_gates.cuh"
#include "sums.cuh"

// The activation of the i-th gate of a thread: role 0 has the first ones.
__device__ inline float activate_gate(int i, int role, float z) {
  return activate_gate(GATES * role + i, z);
}

struct Pair {
  float first, second;
};

// What a normalisation got; null what it did not.
struct Site {
  const float *gamma, *beta, *reference, *past;
};

// The parameters of VALUES features of a thread, of which the given one is the first, if there is
// one.
template <int VALUES>
struct Parameters {
  float gamma[VALUES], beta[VALUES], reference;

  __device__ void load(const Site& site, long long row, int feature, bool here) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      gamma[i] = here ? site.gamma[feature + i * H] : 0.0f;
      beta[i] = here ? site.beta[feature + i * H] : 0.0f;
    }
    reference = site.reference ? site.reference[row] : 0.0f;
  }
};

// N_x of what the input contributes to the gates of a thread.
struct InputNorm : Parameters<GATES> {

  __device__ float normalize(int i, float x, float mean, float scale) const {
    return fmaf(gamma[i], (x - reference - mean) * scale, beta[i]);
  }
};

// The number of a thread among those of its row.
__device__ inline int row_thread() {
  return ROW_THREADS == THREADS ? threadIdx.x : threadIdx.x % ROW_THREADS;
}

__device__ inline void sync_row() {
  if constexpr (ROW_THREADS == 32)
    __syncwarp();
  else
    __syncthreads();
}

// What a window knows of one of its steps: weight, mean and variance, or in the gradient p, q and
// q times the mean.
struct Entry {
  float first, second, third;
};

// The entries of the K - 1 steps before or after one, which one warp of the row keeps and adds up
// while the others are busy: each normalisation has one of its own, if there are as many.
struct Window {
  float* steps;  // (K - 1, 3)
  int length;
  int place;  // of the next step, whose numbers take that of one that is no longer needed

  __device__ static bool mine(int site) { return row_thread() / 32 == site % (ROW_THREADS / 32); }

  __device__ Entry get(int k) const { return {steps[3 * k], steps[3 * k + 1], steps[3 * k + 2]}; }

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

// The steps before one: their number, mean and spread, n times the variance, and 1/(n + 1).
struct alignas(16) Past {
  float n, mean, spread, share;
};

// N over the gates of all units, VALUES for each thread, or over the cells.
template <int SITE, int VALUES>
struct Norm : Parameters<VALUES> {
  static constexpr int FEATURES = VALUES == 1 ? H : 4 * H;

  Past* before;
  Window window;
  float m, v, mean, scale;
  float* out;

  // Takes up to 4 K floats of memory, and returns what is left.
  __device__ float* init(float* memory, const Site& site, const float* weights, float* statistics,
                         long long row, long long T, int B, int K) {
    out = statistics + row_thread() * T * B + row;
    before = reinterpret_cast<Past*>(memory);
    window = {reinterpret_cast<float*>(before + 1), K - 1, 0};
    if constexpr (WINDOWED) {
#pragma unroll 1
      for (int k = row_thread(); k < K - 1; k += ROW_THREADS) {
        float* const entry = window.steps + 3 * k;
        entry[0] = site.past ? weights[(long long)k * B + row] : 0.0f;
        entry[1] = site.past ? site.past[(long long)k * B + row] : 0.0f;
        entry[2] = site.past ? site.past[(long long)(K - 1 + k) * B + row] : 0.0f;
      }
      sync_row();
      if (Window::mine(SITE)) sum_window(window.get(K - 2).second);
    }
    return window.steps + (3 * (K - 1) + 3) / 4 * 4;
  }

  // From mean and variance of the step: those of its window.
  __device__ void finish(float mean_of_step, float variance_of_step) {
    m = mean = mean_of_step;
    v = variance_of_step;
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
    const int i = row_thread();
    if (i < 4) *out = i == 0 ? m : i == 1 ? v : i == 2 ? mean : scale;
    out += B;
  }

  // After a barrier of the row that follows finish(): the moments of that step and those before it.
  __device__ void sum_before() {
    if (!Window::mine(SITE)) return;
    window.put(1, m, v);
    window.place = window.place == window.length - 1 ? 0 : window.place + 1;
    sum_window(m);
  }

  // The moments of the steps before, of which entry(k) gives the k-th, to be called by one warp.
  template <class Entries>
  __device__ void sum_entries(int length, float shift, Entries entry) const {
    float sums[4] = {};
#pragma unroll 1
    for (int k = threadIdx.x % 32; k < length; k += 32) {
      const Entry step = entry(k);
      const float d = step.second - shift;
      sums[0] += step.first;
      sums[1] += step.first * d;
      sums[2] += step.first * (step.third + d * d);
    }
    const float sum = sum_four(sums);
    const float first = __shfl_sync(~0u, sum, 1), second = __shfl_sync(~0u, sum, 2);
    if (threadIdx.x % 32 == 0) {
      const float offset = sum > 0 ? __fdividef(first, sum) : 0.0f;
      *before = {sum, shift + offset, second - first * offset, __fdividef(1, sum + 1)};
    }
  }

 private:
  __device__ void sum_window(float shift) const {
    sum_entries(window.length, shift, [&](int k) { return window.get(k); });
  }
};

// With S1 and S2 the sums of G and G z, where G is the gradient of z times the scale, the gradients
// with respect to mean and variance of the window of step t are p = -S1 and q = -scale S2 / 2. Each
// is divided by the number n of steps in the window and given to all of them. This is what one step
// needs; NormBack also keeps the window.
template <int VALUES>
struct StepBack : Parameters<VALUES> {
  static constexpr int FEATURES = VALUES == 1 ? H : 4 * H;

  float* after;  // the sums over the K - 1 steps after the one at hand
  const float* external;
  float mean, scale, inverse, share;  // 1/scale, and 1/n
  float p, q;                         // divided by n
  float dm, dv, offset;               // what pull() needs: those of the step, and mean - m

  // Those of the window of step t, of which so many steps are of the past.
  __device__ void read(float of_mean, float of_scale, int t, int K, float of_past) {
    mean = of_mean;
    scale = of_scale;
    inverse = __fdividef(1, scale);
    if constexpr (WINDOWED) share = __fdividef(1, min(t + 1, K) + of_past);
  }

  __device__ float normal(float a) const { return (a - this->reference - mean) * scale; }

  // From the sums S1 and S2, and m of the step.
  __device__ void finish(const Pair& sums, float m, long long t, long long T, long long B,
                         long long row) {
    dm = -sums.first;
    dv = -0.5f * scale * sums.second;
    if constexpr (WINDOWED) {
      p = dm * share;
      q = dv * share;
      dv = after[1] + q;
      dm = after[0] + p + 2 * (dv * m - (after[2] + q * mean));
    }
    if (external) {
      dm += external[t * B + row];
      dv += external[(T + t) * B + row];
    }
    constexpr float PART = 1.0f / FEATURES;
    dm *= PART;
    dv *= 2 * PART;
    offset = mean - m;
  }

  // The gradient of the value whose z is given, from G.
  __device__ float pull(float G, float z) const {
    // z / scale + mean - m is what is left after the mean of the step is taken away
    return G + fmaf(dv, fmaf(z, inverse, offset), dm);
  }

  // The sums over the steps after, of which entry(k) gives the k-th, to be called by one warp.
  template <class Entries>
  __device__ void sum_entries(int length, Entries entry) const {
    float sums[4] = {};
#pragma unroll 1
    for (int k = threadIdx.x % 32; k < length; k += 32) {
      const Entry step = entry(k);
      sums[0] += step.first;
      sums[1] += step.second;
      sums[2] += step.third;
    }
    const float sum = sum_four(sums);
    if (threadIdx.x % 32 < 3) after[threadIdx.x % 32] = sum;
  }

  // After the first step: step k of the past is in the windows of steps 0, ..., k, whose entries
  // entry(t) gives.
  template <class Entries>
  __device__ void pull_entries(const float* past, const float* weights, float* grad_past,
                               long long row, int B, int K, Entries entry) const {
    if (!past) return;
    for (int k = row_thread(); k < K - 1; k += ROW_THREADS) {
      float P = 0, Q = 0, R = 0;
      for (int t = 0; t <= k; ++t) {
        const Entry step = entry(t);
        P += step.first;
        Q += step.second;
        R += step.third;
      }
      const long long at = (long long)k * B + row;
      grad_past[at] = weights[at] * (P + 2 * (Q * past[at] - R));
      grad_past[at + (K - 1) * (long long)B] = weights[at] * Q;
    }
  }
};

template <int SITE, int VALUES>
struct NormBack : StepBack<VALUES> {
  using Base = StepBack<VALUES>;

  Window window;
  float* counts;  // the steps of the past in the windows of the first K - 1 steps

  __device__ float* init(float* memory, const Site& site, const float* weights,
                         const float* external, long long row, int T, int B, int K) {
    this->external = external;
    this->after = memory;
    counts = memory + 3;
    window = {counts + K - 1, K - 1, 0};
    if constexpr (WINDOWED) {
      window.place = (T - 1) % (K - 1);
#pragma unroll 1
      for (int k = row_thread(); k < K - 1; k += ROW_THREADS) {
        counts[k] = 0;
#pragma unroll 1
        for (int j = k; j < K - 1 && site.past; ++j) counts[k] += weights[(long long)j * B + row];
        for (int i = 0; i < 3; ++i) window.steps[3 * k + i] = 0;
      }
      if (row_thread() < 3) this->after[row_thread()] = 0;
    }
    return window.steps + 3 * (K - 1);
  }

  __device__ void read(float of_mean, float of_scale, int t, int K) {
    const bool first = WINDOWED && t >= 0 && t < K - 1;
    Base::read(of_mean, of_scale, t, K, first ? counts[t] : 0.0f);
  }

  // After a barrier of the row that follows finish(), before read(): the sums over its step and
  // later ones.
  __device__ void sum_after() {
    if (!Window::mine(SITE)) return;
    window.put(this->p, this->q, this->q * this->mean);
    window.place = window.place == 0 ? window.length - 1 : window.place - 1;
    Base::sum_entries(window.length, [&](int k) { return window.get(k); });
  }

  __device__ void pull_past(const float* past, const float* weights, float* grad_past,
                            long long row, int B, int K) const {
    const auto entry = [&](int t) { return window.get(t); };
    Base::pull_entries(past, weights, grad_past, row, B, K, entry);
  }
};
