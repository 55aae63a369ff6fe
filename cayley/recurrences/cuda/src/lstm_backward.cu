// The gradient of lstm_forward.cu, last step first; da is that of W h_{t-1} + b. `partial`, of
// shape (B, 22H), has from each row the gradients of gamma_x, beta_x, gamma_h, beta_h, b, gamma_c and
// beta_c. With the table of a packed sequence all (T, B, ·) are (N, ·), but those of statistics.
#include "lstm.cuh"

using Back = Weights<0, 4 * H, 1>;
using Delta = Buffers<Back, 4 * H>;

// Of each normalisation the sums of two values, which every warp adds to.
struct Partials {
  Pair* pairs;  // (3, WARPS)

  __device__ Pair& of(int site, int warp = threadIdx.x / 32) const {
    return pairs[site * WARPS + warp];
  }

  // After a barrier.
  __device__ Pair sum(int site) const {
    return sum_warps([&](int warp) { return of(site, warp); });
  }
};

// With S1 and S2 the sums of G and G z, where G is the gradient of z times the scale, the gradients
// with respect to mean and variance of the window of step t are p = -S1 and q = -scale S2 / 2. Each
// is divided by the number n of steps in the window and given to all of them.
template <int SITE, int FEATURES>
struct NormBack {
  Window window;
  float* after;   // the sums over the K - 1 steps after the one at hand
  float* counts;  // the steps of the past in the windows of the first K - 1 steps
  const float* external;
  float gamma, beta, reference;
  float mean, scale, inverse, share;  // 1/scale, and 1/n
  float p, q;                         // divided by n

  __device__ float* init(float* memory, const Site& site, const float* weights,
                         const float* external, long long row, int T, int B, int K,
                         int feature) {
    gamma = feature < FEATURES ? site.gamma[feature] : 0.0f;
    beta = feature < FEATURES ? site.beta[feature] : 0.0f;
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

  __device__ void read(const float* scalars, int t, int K) {
    mean = scalars[3 * SITE + 1];
    scale = scalars[3 * SITE + 2];
    inverse = __fdividef(1, scale);
    if constexpr (WINDOWED)
      share = __fdividef(1, min(t + 1, K) + (t >= 0 && t < K - 1 ? counts[t] : 0.0f));
  }

  __device__ float normal(float a) const { return (a - reference - mean) * scale; }

  // The gradient of the value whose z is given, from G of this thread and the sums over all.
  __device__ float pull(float G, float z, float S1, float S2, float m, long long t, long long T,
                        long long B, long long row) {
    float dm = -S1, dv = -0.5f * scale * S2;
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
    // z / scale + mean - m is what is left after the mean of the step is taken away
    constexpr float PART = 1.0f / FEATURES;
    dv *= 2 * PART;
    return G + fmaf(dv, fmaf(z, inverse, mean - m), dm * PART);
  }

  // After a barrier that follows pull(), before read(): the sums over its step and those after it.
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
    const float* __restrict__ external_x, const float* __restrict__ external_h,
    const float* __restrict__ external_c, const float* __restrict__ c,
    const float* __restrict__ kept, const float* __restrict__ statistics_x,
    const float* __restrict__ statistics_h, const float* __restrict__ statistics_c,
    const float* __restrict__ c0, const float* __restrict__ W, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* __restrict__ reference_x,
    const float* __restrict__ past_x, const float* __restrict__ gamma_h,
    const float* __restrict__ beta_h, const float* __restrict__ reference_h,
    const float* __restrict__ past_h, const float* __restrict__ gamma_c,
    const float* __restrict__ beta_c, const float* __restrict__ reference_c,
    const float* __restrict__ past_c, const float* __restrict__ weights, float* __restrict__ dx,
    float* __restrict__ da, float* __restrict__ grad_h0, float* __restrict__ grad_c0,
    float* __restrict__ partial, float* __restrict__ grad_past_x, float* __restrict__ grad_past_h,
    float* __restrict__ grad_past_c, const long long* __restrict__ table, int T, int B, int K) {
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
  const int output = lane.used ? lane.role * H + lane.unit : 4 * H;

  Inputs<5> ahead;
  ahead.init(memory += Back::SHARED_FLOATS);
  float* const scalars = memory + ahead.FLOATS;
  const Partials partials = {reinterpret_cast<Pair*>(scalars + 9 * DEPTH)};
  memory = scalars + 9 * DEPTH + 6 * WARPS;
  Steps steps(table, row, T, B, true);
  NormBack<0, 4 * H> N_x;
  NormBack<1, 4 * H> N_h;
  NormBack<2, H> N_c;
  if constexpr (NORM_X)
    memory = N_x.init(memory, {gamma_x, beta_x, reference_x, past_x}, weights, external_x, row,
                      steps.T, B, K, output);
  if constexpr (NORM_H)
    memory = N_h.init(memory, {gamma_h, beta_h, reference_h, past_h}, weights, external_h, row,
                      steps.T, B, K, output);
  if constexpr (NORM_C)
    N_c.init(memory, {gamma_c, beta_c, reference_c, past_c}, weights, external_c, row,
             steps.T, B, K, lane.unit);

  const int tid = threadIdx.x;
  // nine threads read the statistics of a step: m, mean and scale of each normalisation
  const float* statistics = tid < 3 ? statistics_x : tid < 6 ? statistics_h : statistics_c;
  if (tid >= 9) statistics = nullptr;
  if (statistics)
    statistics += ((tid % 3 == 0 ? 0 : tid % 3 + 1) * (long long)T + steps.T - 1) * B + row;
  Steps steps_ahead = steps;
  long long at = steps.first + row, at_ahead = at;
  int t_ahead = steps.T - 1, slot = 0;
  const auto fetch = [&] {
    const long long step = steps_ahead.advance();
    if (t_ahead >= 0) {
      if (lane.used) {
        ahead.fetch(0, 0, kept + at_ahead * 4 * H + output);
        if (NORM_X || NORM_H) ahead.fetch(1, 0, x + at_ahead * 4 * H + output);
        if (grad_h) ahead.fetch(2, 0, grad_h + at_ahead * H + lane.unit);
        if (grad_c) ahead.fetch(3, 0, grad_c + at_ahead * H + lane.unit);
        ahead.fetch(4, 0, (t_ahead > 0 ? c + (at_ahead + step) * H : c0 + row * H) + lane.unit);
      }
      if (statistics) machine::copy_ahead(scalars + 9 * slot + tid, statistics);
      statistics -= statistics ? B : 0;
    }
    at_ahead += step;
    ahead.end_of_step();
    slot = slot == DEPTH - 1 ? 0 : slot + 1;
    --t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();
  machine::wait_for_copies<0>();
  __syncthreads();

  float cell = lane.used ? c[at * H + lane.unit] : 0.0f, carry = 0;
  float grad_gamma_x = 0, grad_gamma_h = 0, grad_beta = 0, grad_b = 0;
  float grad_gamma_c = 0, grad_beta_c = 0;
  int ready = 0;  // where the scalars of the step are
  for (int t = steps.T - 1; t >= -1; --t) {
    float dh[1], from_h = 0, from_c = 0, cell_before = 0, own = 0, z_x = 0, z_h = 0, z_c = 0;
    float gates[4], tanh_c = 0;
    const float* const statistic = scalars + 9 * ready;
    back.multiply(delta.before(0, 0), dh, [&] {
      if (WINDOWED && t < steps.T - 1) {
        if constexpr (NORM_X) N_x.sum_after();
        if constexpr (NORM_H) N_h.sum_after();
        if constexpr (NORM_C) N_c.sum_after();
      }
      fetch();
      // one step earlier than this thread needs its own: others read the scalars after a barrier
      machine::wait_for_copies<DEPTH - 2>();
      own = ahead.get(0, 0);
      from_h = ahead.get(2, 0);
      from_c = ahead.get(3, 0);
      cell_before = ahead.get(4, 0);
      if constexpr (NORM_X) N_x.read(statistic, t, K);
      if constexpr (NORM_H) N_h.read(statistic, t, K);
      if constexpr (NORM_C) N_c.read(statistic, t, K);
      if constexpr (NORM_X) z_x = N_x.normal(ahead.get(1, 0));
      if constexpr (NORM_H) {
        z_h = own;
        own = fmaf(N_h.gamma, z_h, N_h.beta);
        own += NORM_X ? fmaf(N_x.gamma, z_x, N_x.beta) : ahead.get(1, 0);
        own = lane.role == G ? tanhf(own) : sigmoid(own);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        gates[i] = __shfl_sync(~0u, own, (tid & ~(3 * UNITS)) + i * UNITS);
      tanh_c = cell;
      if constexpr (NORM_C) {
        z_c = N_c.normal(cell);
        tanh_c = fmaf(N_c.gamma, z_c, N_c.beta);
      }
      tanh_c = tanhf(tanh_c);
    });
    if (t < 0) {
      if (lane.writes) grad_h0[row * H + lane.unit] = dh[0];
      break;
    }
    dh[0] += from_h;
    float dc = dh[0] * gates[O] * (1 - tanh_c * tanh_c);
    if constexpr (NORM_C) {
      grad_gamma_c += dc * z_c;
      grad_beta_c += dc;
      dc *= N_c.gamma * N_c.scale;
      // bits 0, 1 and 4 of a lane say which unit it belongs to, and its other lanes know the same
      static_assert(UNITS == 4);
      const float sum = sum_over<1, 2, 16>(!lane.used ? 0.0f : tid & 4 ? dc * z_c : dc);
      if (tid % 32 == 0) partials.of(2).first = sum;
      if (tid % 32 == 4) partials.of(2).second = sum;
      __syncthreads();
      const Pair sums = partials.sum(2);
      dc = N_c.pull(dc, z_c, sums.first, sums.second, statistic[6], t, T, B, row);
    }
    dc += from_c + carry;
    carry = dc * gates[F];
    const float slope = lane.role == G ? 1 - own * own : own * (1 - own);
    const float factor = lane.role == I   ? gates[G] * dc
                         : lane.role == F ? cell_before * dc
                         : lane.role == G ? gates[I] * dc
                                          : tanh_c * dh[0];
    const float d = lane.used ? slope * factor : 0.0f;
    float d_a = d, d_x = d;
    if constexpr (NORM_X || NORM_H) {
      if constexpr (NORM_X) d_x *= N_x.gamma * N_x.scale;
      if constexpr (NORM_H) d_a *= N_h.gamma * N_h.scale;
      const float sum = sum_four({d_x, d_x * z_x, d_a, d_a * z_h});
      if (tid % 32 < 4) {
        Pair& pair = partials.of(tid / 2 % 2);
        (tid % 2 ? pair.second : pair.first) = sum;
      }
      __syncthreads();
      if constexpr (NORM_X) {
        const Pair sums = partials.sum(0);
        d_x = N_x.pull(d_x, z_x, sums.first, sums.second, statistic[0], t, T, B, row);
      }
      if constexpr (NORM_H) {
        const Pair sums = partials.sum(1);
        d_a = N_h.pull(d_a, z_h, sums.first, sums.second, statistic[3], t, T, B, row);
      }
    }
    if (lane.used) {
      delta.set(0, 4 * lane.unit + lane.role, d_a);
      dx[at * 4 * H + output] = d_x;
      if (NORM_X || NORM_H) da[at * 4 * H + output] = d_a;
    }
    at += steps.advance();
    delta.advance();
    grad_gamma_x += d * z_x;
    grad_gamma_h += d * z_h;
    grad_beta += d;
    grad_b += d_a;
    cell = cell_before;
    ready = ready == DEPTH - 1 ? 0 : ready + 1;
  }
  if (lane.writes) grad_c0[row * H + lane.unit] = carry;
  if (lane.used) {
    partial += row * 22 * H;
    partial[output] = grad_gamma_x;
    partial[4 * H + output] = grad_beta;
    partial[8 * H + output] = grad_gamma_h;
    partial[12 * H + output] = grad_beta;
    partial[16 * H + output] = grad_b;
    if (lane.writes) partial[20 * H + lane.unit] = grad_gamma_c;
    if (lane.writes) partial[21 * H + lane.unit] = grad_beta_c;
  }
  if constexpr (WINDOWED) {
    __syncthreads();
    if constexpr (NORM_X) N_x.pull_past(past_x, weights, grad_past_x, row, B, K);
    if constexpr (NORM_H) N_h.pull_past(past_h, weights, grad_past_h, row, B, K);
    if constexpr (NORM_C) N_c.pull_past(past_c, weights, grad_past_c, row, B, K);
  }
}
