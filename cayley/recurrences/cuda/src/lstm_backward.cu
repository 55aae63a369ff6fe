// The gradient of lstm_forward.cu, last step first: d is that of the gates' arguments, da with N_h
// that of W h_{t-1} + b, both (T, B, 4H). `partial` has `width` numbers for each row of the batch,
// first the gradients of gamma_c and beta_c. The input and other parameters are left to
// lstm_input_backward.cu. With the table of a packed sequence all (T, B, ·) are (N, ·), but those
// of statistics.
#include "lstm.cuh"

using Back = Weights<0, 4 * H, 1>;
using Delta = Buffers<Back, 4 * H>;
using Statistics = Scalars<8>;  // m, mean and scale of N_h and N_c, mean and scale of N_x

// Of each normalisation the sums of two values, which every warp adds to.
struct Partials {
  Pair* pairs;  // (2, WARPS)

  __device__ Pair& of(int site, int warp = threadIdx.x / 32) const {
    return pairs[site * WARPS + warp];
  }

  // After a barrier.
  __device__ Pair sum(int site) const {
    Pair sums = {0, 0};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
      sums.first += of(site, warp).first;
      sums.second += of(site, warp).second;
    }
    return sums;
  }
};

// With S1 and S2 the sums of G and G z, where G is the gradient of z times the scale, the gradients
// with respect to mean and variance of the window of step t are p = -S1 and q = -scale S2 / 2. Each
// is divided by the number n of steps in the window and given to all of them.
template <int SITE, int VALUES>
struct NormBack {
  static constexpr int FEATURES = VALUES == 1 ? H : 4 * H;

  Window window;
  float* after;   // the sums over the K - 1 steps after the one at hand
  float* counts;  // the steps of the past in the windows of the first K - 1 steps
  const float* external;
  float gamma[VALUES], beta[VALUES], reference;
  float mean, scale, inverse, share;  // 1/scale, and 1/n
  float p, q;                         // divided by n
  float dm, dv, offset;               // what pull() needs: those of the step, and mean - m

  __device__ float* init(float* memory, const Site& site, const float* weights,
                         const float* external, long long row, int T, int B, int K, int feature,
                         bool here) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      gamma[i] = here ? site.gamma[feature + i * H] : 0.0f;
      beta[i] = here ? site.beta[feature + i * H] : 0.0f;
    }
    reference = site.reference ? site.reference[row] : 0.0f;
    this->external = external;
    after = memory;
    counts = after + 3;
    window = {counts + K - 1, K - 1, 0};
    if constexpr (WINDOWED) {
      window.place = (T - 1) % (K - 1);
#pragma unroll 1
      for (int k = threadIdx.x; k < K - 1; k += THREADS) {
        counts[k] = 0;
#pragma unroll 1
        for (int j = k; j < K - 1 && site.past; ++j) counts[k] += weights[(long long)j * B + row];
        for (int i = 0; i < 3; ++i) window.steps[3 * k + i] = 0;
      }
      if (threadIdx.x < 3) after[threadIdx.x] = 0;
    }
    return window.steps + 3 * (K - 1);
  }

  __device__ void read(const Statistics& scalars, int t, int K) {
    mean = scalars.get(3 * SITE + 1);
    scale = scalars.get(3 * SITE + 2);
    inverse = __fdividef(1, scale);
    if constexpr (WINDOWED)
      share = __fdividef(1, min(t + 1, K) + (t >= 0 && t < K - 1 ? counts[t] : 0.0f));
  }

  __device__ float normal(float a) const { return (a - reference - mean) * scale; }

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

  // After a barrier that follows finish(), before read(): the sums over its step and later ones.
  __device__ void sum_after() {
    if (!Window::mine(SITE)) return;
    window.put(p, q, q * mean);
    window.place = window.place == 0 ? window.length - 1 : window.place - 1;
    float sums[4] = {};
#pragma unroll 1
    for (int k = threadIdx.x % 32; k < window.length; k += 32)
#pragma unroll
      for (int i = 0; i < 3; ++i) sums[i] += window.steps[3 * k + i];
    const float sum = sum_four(sums);
    if (threadIdx.x % 32 < 3) after[threadIdx.x % 32] = sum;
  }

  // After the first step: step k of the past is in the windows of steps 0, ..., k.
  __device__ void pull_past(const float* past, const float* weights, float* grad_past,
                            long long row, int B, int K) const {
    if (!past) return;
    for (int k = threadIdx.x; k < K - 1; k += THREADS) {
      float P = 0, Q = 0, R = 0;
      for (int t = 0; t <= k; ++t) {
        P += window.steps[3 * t];
        Q += window.steps[3 * t + 1];
        R += window.steps[3 * t + 2];
      }
      const long long at = (long long)k * B + row;
      grad_past[at] = weights[at] * (P + 2 * (Q * past[at] - R));
      grad_past[at + (K - 1) * (long long)B] = weights[at] * Q;
    }
  }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_backward(
    const float* __restrict__ x, const float* __restrict__ grad_h, const float* __restrict__ grad_c,
    const float* __restrict__ external_h, const float* __restrict__ external_c,
    const float* __restrict__ c, const float* __restrict__ kept,
    const float* __restrict__ statistics_x, const float* __restrict__ statistics_h,
    const float* __restrict__ statistics_c, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* __restrict__ reference_x,
    const float* __restrict__ gamma_h, const float* __restrict__ beta_h,
    const float* __restrict__ reference_h, const float* __restrict__ past_h,
    const float* __restrict__ gamma_c, const float* __restrict__ beta_c,
    const float* __restrict__ reference_c, const float* __restrict__ past_c,
    const float* __restrict__ weights, float* __restrict__ d, float* __restrict__ da,
    float* __restrict__ grad_h0, float* __restrict__ grad_c0, float* __restrict__ partial,
    float* __restrict__ grad_past_h, float* __restrict__ grad_past_c,
    const long long* __restrict__ table, int T, int B, int K, int width) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const long long row = blockIdx.x;

  Delta delta;
  delta.init(memory, [](int, int) { return 0.0f; });
  // the gates of a unit are neighbours
  Back back;
  back.load(memory += Delta::FLOATS, [&](int output, int k) {
    return output < H && k < 4 * H ? W[(k % 4 * H + k / 4) * H + output] : 0.0f;
  });
  const Lane lane(back);
  const int output = lane.role * GATES * H + lane.unit;  // the first of the lane

  Inputs<2 * GATES + 3> ahead;
  ahead.init(memory += Back::SHARED_FLOATS);
  const int tid = threadIdx.x;
  Steps steps(table, row, T, B, true);
  // of each normalisation three threads read a statistic, of N_x two
  const float* statistic = tid < 3                       ? statistics_h
                           : tid < 6                     ? statistics_c
                           : NORM_X && NORM_H && tid < 8 ? statistics_x
                                                         : nullptr;
  if (statistic) {
    const int which = tid < 6 ? tid % 3 + (tid % 3 > 0) : tid - 4;
    statistic += (which * (long long)T + steps.T - 1) * B + row;
  }
  Statistics statistics(memory += ahead.FLOATS, statistic);
  const Partials partials = {reinterpret_cast<Pair*>(memory += Statistics::FLOATS)};
  memory += 4 * WARPS;
  InputNorm N_x;
  NormBack<0, GATES> N_h;
  NormBack<1, 1> N_c;
  if constexpr (NORM_X && NORM_H)
    N_x.init({gamma_x, beta_x, reference_x}, row, output, lane.used);
  if constexpr (NORM_H)
    memory = N_h.init(memory, {gamma_h, beta_h, reference_h, past_h}, weights, external_h, row,
                      steps.T, B, K, output, lane.used);
  if constexpr (NORM_C)
    N_c.init(memory, {gamma_c, beta_c, reference_c, past_c}, weights, external_c, row, steps.T, B,
             K, lane.unit, lane.used);

  Steps steps_ahead = steps;
  long long at = steps.first + row, at_ahead = at;
  int t_ahead = steps.T - 1;
  const auto fetch = [&] {
    const long long step = steps_ahead.advance();
    if (t_ahead >= 0) {
      if (lane.used) {
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          const long long gate = at_ahead * 4 * H + output + i * H;
          ahead.fetch(i, 0, kept + gate);
          if (NORM_H) ahead.fetch(GATES + i, 0, x + gate);
        }
        if (grad_h) ahead.fetch(2 * GATES, 0, grad_h + at_ahead * H + lane.unit);
        if (grad_c) ahead.fetch(2 * GATES + 1, 0, grad_c + at_ahead * H + lane.unit);
        ahead.fetch(2 * GATES + 2, 0,
                    (t_ahead > 0 ? c + (at_ahead + step) * H : c0 + row * H) + lane.unit);
      }
      statistics.fetch(-B);
    }
    at_ahead += step;
    ahead.end_of_step();
    statistics.end_of_step();
    --t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();
  machine::wait_for_copies<0>();
  __syncthreads();

  float cell = lane.used ? c[at * H + lane.unit] : 0.0f, carry = 0;
  float grad_gamma_c = 0, grad_beta_c = 0;
  for (int t = steps.T - 1; t >= -1; --t) {
    float dh[1], from_h = 0, from_c = 0, cell_before = 0, z_h[GATES] = {}, z_c = 0, tanh_c = 0;
    float own[GATES], other[GATES];  // gates of this lane, and of the other one of the unit
    back.multiply(delta.before(0, 0), dh, [&] {
      if (WINDOWED && t < steps.T - 1) {
        if constexpr (NORM_H) N_h.sum_after();
        if constexpr (NORM_C) N_c.sum_after();
      }
      fetch();
      // one step earlier than this thread needs its own: others read the scalars after a barrier
      machine::wait_for_copies<DEPTH - 2>();
      from_h = ahead.get(2 * GATES, 0);
      from_c = ahead.get(2 * GATES + 1, 0);
      cell_before = ahead.get(2 * GATES + 2, 0);
      if constexpr (NORM_H) N_h.read(statistics, t, K);
      if constexpr (NORM_C) N_c.read(statistics, t, K);
#pragma unroll
      for (int i = 0; i < GATES; ++i) {
        own[i] = ahead.get(i, 0);
        if constexpr (NORM_H) {
          float input = ahead.get(GATES + i, 0);
          if constexpr (NORM_X)
            input = N_x.normalize(i, input, statistics.get(6), statistics.get(7));
          z_h[i] = own[i];
          own[i] = activate_gate(i, lane.role, fmaf(N_h.gamma[i], z_h[i], N_h.beta[i]) + input);
        }
        other[i] = __shfl_xor_sync(~0u, own[i], ROLE);
      }
      tanh_c = cell;
      if constexpr (NORM_C) {
        z_c = N_c.normal(cell);
        tanh_c = fmaf(N_c.gamma[0], z_c, N_c.beta[0]);
      }
      tanh_c = tanhf(tanh_c);
    });
    if (t < 0) {
      if (lane.writes) grad_h0[row * H + lane.unit] = dh[0];
      break;
    }
    dh[0] += from_h;
    const bool upper = lane.role;  // with G and O
    float dc = dh[0] * (upper ? own[1] : other[1]) * (1 - tanh_c * tanh_c);
    if constexpr (NORM_C) {
      grad_gamma_c += dc * z_c;
      grad_beta_c += dc;
      dc *= N_c.gamma[0] * N_c.scale;
      const float sum = sum_role(upper ? dc * z_c : dc);
      if (tid % 32 == 0) partials.of(1).first = sum;
      if (tid % 32 == ROLE) partials.of(1).second = sum;
      __syncthreads();
      N_c.finish(partials.sum(1), statistics.get(3), t, T, B, row);
      dc = N_c.pull(dc, z_c);
    }
    dc += from_c + carry;
    carry = dc * (upper ? other[1] : own[1]);
    float d_gates[GATES], d_a[GATES];
    d_gates[0] = other[0] * dc * (upper ? 1 - own[0] * own[0] : own[0] * (1 - own[0]));
    d_gates[1] = (upper ? tanh_c * dh[0] : cell_before * dc) * (own[1] * (1 - own[1]));
#pragma unroll
    for (int i = 0; i < GATES; ++i) d_a[i] = d_gates[i];
    if constexpr (NORM_H) {
      float S1 = 0, S2 = 0;
#pragma unroll
      for (int i = 0; i < GATES; ++i) {
        d_a[i] *= N_h.gamma[i] * N_h.scale;
        S1 += d_a[i];
        S2 = fmaf(d_a[i], z_h[i], S2);
      }
      const float sum = sum_two(S1, S2);
      if (tid % 32 == 0) partials.of(0).first = sum;
      if (tid % 32 == 1) partials.of(0).second = sum;
      __syncthreads();
      N_h.finish(partials.sum(0), statistics.get(0), t, T, B, row);
#pragma unroll
      for (int i = 0; i < GATES; ++i) d_a[i] = N_h.pull(d_a[i], z_h[i]);
    }
#pragma unroll
    for (int i = 0; i < GATES; ++i)
      if (lane.used) {
        const long long gate = at * 4 * H + output + i * H;
        delta.set(0, 4 * lane.unit + lane.role * GATES + i, d_a[i]);
        d[gate] = d_gates[i];
        if (NORM_H) da[gate] = d_a[i];
      }
    at += steps.advance();
    delta.advance();
    statistics.advance();
    cell = cell_before;
  }
  if (lane.writes) grad_c0[row * H + lane.unit] = carry;
  if (NORM_C && lane.writes) {
    partial += row * width + lane.unit;
    partial[0] = grad_gamma_c;
    partial[H] = grad_beta_c;
  }
  if constexpr (WINDOWED) {
    __syncthreads();
    if constexpr (NORM_H) N_h.pull_past(past_h, weights, grad_past_h, row, B, K);
    if constexpr (NORM_C) N_c.pull_past(past_c, weights, grad_past_c, row, B, K);
  }
}
