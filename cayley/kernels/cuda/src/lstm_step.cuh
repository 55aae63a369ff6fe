// What the two LSTM kernels of a single step share: windows whose steps are in global memory.
#pragma once

#include "step.cuh"

constexpr int ROW_THREADS = THREADS;
constexpr int GATES = 4;  // of a unit of a thread
static_assert(PARTS == 1 || !(NORM_H || NORM_C), "a block has no sums over a row");

#include "lstm_unit.cuh"

// Statistic i of step t of a row: mean, variance, and mean and scale of the window.
__device__ inline long long statistic(int i, long long t, long long row, int T, int B) {
  return ((long long)i * T + t) * B + row;
}

// N of a row, VALUES features for each unit. What the window knows of the steps before is read from
// their statistics, and from the past.
template <int SITE, int VALUES>
struct StepNorm : Norm<SITE, VALUES> {
  using Base = Norm<SITE, VALUES>;

  // A barrier has to follow before the statistics of the step are complete: observe() has one.
  __device__ void init(const Site& site, const float* weights, float* statistics, long long row,
                       int t, int T, int B, int K) {
    __shared__ Past of_window;
    this->before = &of_window;
    this->out = statistics + statistic(row_thread(), t, row, T, B);
    if (!WINDOWED || !Window::mine(SITE)) return;
    const auto entry = [&](int k) -> Entry {
      const int step = t - (K - 1) + k;
      if (step >= 0)
        return {1, statistics[statistic(0, step, row, T, B)],
                statistics[statistic(1, step, row, T, B)]};
      if (!site.past) return {0, 0, 0};
      const long long at = (K - 1 + step) * (long long)B + row;
      return {weights[at], site.past[at], site.past[at + (K - 1) * (long long)B]};
    };
    Base::sum_entries(K - 1, entry(K - 2).second, entry);
  }

  // The statistics of the step and of its window, which are written.
  __device__ void observe(const float (&a)[EACH][VALUES]) {
    constexpr float PART = 1.0f / Base::FEATURES;
    float sum = 0, spread = 0;
    each_unit([&](int j, int) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) sum += a[j][i];
    });
    const float mean = PART * sum_block<THREADS>(sum);
    each_unit([&](int j, int) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) spread = fmaf(a[j][i] - mean, a[j][i] - mean, spread);
    });
    Base::finish(mean, PART * sum_block<THREADS>(spread));
    Base::write(0);
  }
};

// Its gradient: p and q of each step are in `shares`, (2, T, B).
template <int SITE, int VALUES>
struct StepNormBack : StepBack<VALUES> {
  using Base = StepBack<VALUES>;

  const float* statistics;
  float* shares;
  float m;

  // Of a row with so many steps. A barrier has to follow before finish().
  __device__ void init(const Site& site, const float* weights, const float* external,
                       const float* statistics, float* shares, long long row, int length, int t,
                       int T, int B, int K) {
    __shared__ float sums_after[3];
    this->after = sums_after;
    this->external = external;
    this->statistics = statistics;
    this->shares = shares;
    m = statistics[statistic(0, t, row, T, B)];
    float of_past = 0;
    if (WINDOWED && site.past) {
      for (int k = t + threadIdx.x % 32; k < K - 1; k += 32)
        of_past += weights[(long long)k * B + row];
      of_past = sum_warp(of_past);
    }
    const float mean = statistics[statistic(2, t, row, T, B)];
    Base::read(mean, statistics[statistic(3, t, row, T, B)], t, K, of_past);
    if (WINDOWED && Window::mine(SITE))
      Base::sum_entries(min(K - 1, length - 1 - t),
                        [&](int k) { return entry(t + 1 + k, row, T, B); });
  }

  __device__ void finish(float S1, float S2, long long row, int t, int T, int B) {
    const Pair sums = {sum_block<THREADS>(S1), sum_block<THREADS>(S2)};
    Base::finish(sums, m, t, T, B, row);
    if (WINDOWED && threadIdx.x == 0) {
      shares[statistic(0, t, row, T, B)] = this->p;
      shares[statistic(1, t, row, T, B)] = this->q;
    }
  }

  // After a barrier that follows the first step's finish().
  __device__ void pull_past(const float* past, const float* weights, float* grad_past,
                            long long row, int length, int T, int B, int K) const {
    Base::pull_entries(past, weights, grad_past, row, B, K, [&](int t) {
      return t < length ? entry(t, row, T, B) : Entry{0, 0, 0};
    });
  }

 private:
  __device__ Entry entry(int t, long long row, int T, int B) const {
    const float q = shares[statistic(1, t, row, T, B)];
    return {shares[statistic(0, t, row, T, B)], q, q * statistics[statistic(2, t, row, T, B)]};
  }
};
