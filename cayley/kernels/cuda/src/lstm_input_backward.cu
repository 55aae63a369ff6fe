// What follows from d, (T, B, 4H), the gradient of the gates' arguments: with N_x that of the
// input, dx, and of its past, and the sums over all steps that are the gradients of parameters.
// `partial` has a row of `width` numbers for each block: those of gamma_c and beta_c, which the
// recurrence has written to the first B rows, then those of gamma_x, beta_x, gamma_h, beta_h,
// b and, as the sum of dx, of a bias of the input. d and dx may be one array where K = 1. With the
// table of a packed sequence all (T, B, ·) are (N, ·), but those of statistics. Arrays have a part
// for every network, unless their bits in `shared_arrays` are set.
#include "inputs.cuh"

enum Place { GAMMA_X, BETA_X, GAMMA_H, BETA_H, BIAS, INPUT };

// What a step gives to all in its window, as lstm.cuh explains: p, q and q mean.
struct Share {
  float p, q, r;
};

extern "C" __global__ __launch_bounds__(THREADS) void lstm_input_backward(
    const float* __restrict__ x, const float* __restrict__ kept,
    const float* __restrict__ external, const float* __restrict__ statistics,
    const float* __restrict__ gamma, const float* __restrict__ references,
    const float* __restrict__ past, const float* __restrict__ weights, const float* d,
    const float* __restrict__ da, float* dx, float* __restrict__ grad_past,
    float* __restrict__ partial, const long long* __restrict__ table, int T, int B, int K,
    int length, int width, int shared_arrays) {
  extern __shared__ float4 shared[];
  const Chunk chunk(blockIdx.x / B, length, table, T, B);
  const long long row = chunk.row, size = (long long)T * B;
  const long long blocks = (T + length - 1) / length * (long long)B;  // of a network

  x = of_network(x, shared_arrays, 0, size * FEATURES);
  kept = of_network(kept, shared_arrays, 1, size * FEATURES);
  external = of_network(external, shared_arrays, 2, 4 * size);
  statistics = of_network(statistics, shared_arrays, 3, 4 * size);
  gamma = of_network(gamma, shared_arrays, 4, FEATURES);
  references = of_network(references, shared_arrays, 5, B);
  past = of_network(past, shared_arrays, 6, 2LL * (K - 1) * B);
  weights = of_network(weights, shared_arrays, 7, (K - 1) * (long long)B);
  d = of_network(d, shared_arrays, 8, size * FEATURES);
  da = of_network(da, shared_arrays, 9, size * FEATURES);
  dx = of_network(dx, shared_arrays, 10, size * FEATURES);
  grad_past = of_network(grad_past, shared_arrays, 11, 2LL * (K - 1) * B);
  partial = of_network(partial, shared_arrays, 12, blocks * width);

  const int place = threadIdx.x / STEP_THREADS, lane = threadIdx.x % 32;
  const float reference = NORM_X && references ? references[row] : 0.0f;
  float gammas[EACH] = {};
  if constexpr (NORM_X) each_feature([&](int i, int feature) { gammas[i] = gamma[feature]; });

  float dy[EACH] = {}, z[EACH] = {}, mean = 0, scale = 1;  // of the step at hand
  const auto read = [&](int t) {
    const long long at = (start_of(table, t, T, B) + row) * FEATURES;
    each_feature([&](int i, int feature) { dy[i] = d[at + feature]; });
    if constexpr (NORM_X) {
      const float* const statistic = statistics + (long long)t * B + row;
      mean = statistic[2 * size];
      scale = statistic[3 * size];
      each_feature([&](int i, int feature) {
        z[i] = (x[at + feature] - reference - mean) * scale;
      });
    }
    return at;
  };
  const auto gradients_of_window = [&](float& dm, float& dv) {
    float S1 = 0, S2 = 0;
    each_feature([&](int i, int) {
      const float G = dy[i] * gammas[i] * scale;
      S1 += G;
      S2 = fmaf(G, z[i], S2);
    });
    dm = -sum_step(S1);
    dv = -0.5f * scale * sum_step(S2);
  };

  // those of the chunk, and the K - 1 after it
  Share* const shares = reinterpret_cast<Share*>(shared);
  if constexpr (NORM_X && WINDOWED) {
    const int end = min(chunk.end + K - 1, chunk.T);
#pragma unroll 1
    for (int t = chunk.begin + place; t < end; t += AT_ONCE) {
      float dm, dv, n = 0;
      read(t);
      gradients_of_window(dm, dv);
      for (int k = t + lane; k < K - 1 && past; k += 32) n += weights[(long long)k * B + row];
      n = min(t + 1, K) + sum_warp(n);
      if (threadIdx.x % STEP_THREADS == 0)
        shares[t - chunk.begin] = {dm / n, dv / n, dv / n * mean};
    }
    __syncthreads();
  }

  float of_gamma_x[EACH] = {}, of_gamma_h[EACH] = {}, of_d[EACH] = {}, of_da[EACH] = {};
  float of_dx[EACH] = {};
#pragma unroll 1
  for (int t = chunk.begin + place; t < chunk.end; t += AT_ONCE) {
    const long long at = read(t);
    each_feature([&](int i, int) { of_d[i] += dy[i]; });
    if constexpr (NORM_H)
      each_feature([&](int i, int feature) {
        of_gamma_h[i] = fmaf(dy[i], kept[at + feature], of_gamma_h[i]);
        of_da[i] += da[at + feature];
      });
    if constexpr (NORM_X) {
      const long long place = (long long)t * B + row;
      float dm, dv, m = mean;
      if constexpr (WINDOWED) {
        float sums[4] = {};
        for (int k = t + lane; k < min(t + K, chunk.T); k += 32) {
          const Share share = shares[k - chunk.begin];
          sums[0] += share.p;
          sums[1] += share.q;
          sums[2] += share.r;
        }
        const float sum = sum_four(sums);
        m = statistics[place];
        dv = __shfl_sync(~0u, sum, 1);
        dm = __shfl_sync(~0u, sum, 0) + 2 * (dv * m - __shfl_sync(~0u, sum, 2));
      } else {
        gradients_of_window(dm, dv);
      }
      if (external) {
        dm += external[place];
        dv += external[size + place];
      }
      const float inverse = 1 / scale;
      dm /= FEATURES;
      dv /= FEATURES;
      each_feature([&](int i, int feature) {
        // what is left after the mean of the step is taken away
        const float left = fmaf(z[i], inverse, mean - m);
        const float pulled = fmaf(dy[i] * gammas[i], scale, fmaf(2 * dv, left, dm));
        of_gamma_x[i] = fmaf(dy[i], z[i], of_gamma_x[i]);
        of_dx[i] += pulled;
        dx[at + feature] = pulled;
      });
    }
  }

  if (NORM_X && WINDOWED && past && chunk.begin == 0)
    // step k of the past is in the windows of steps 0, ..., k
    for (int k = threadIdx.x; k < K - 1; k += THREADS) {
      float P = 0, Q = 0, R = 0;
      for (int t = 0; t < min(k + 1, chunk.T); ++t) {
        P += shares[t].p;
        Q += shares[t].q;
        R += shares[t].r;
      }
      const long long here = (long long)k * B + row;
      grad_past[here] = weights[here] * (P + 2 * (Q * past[here] - R));
      grad_past[here + (K - 1) * (long long)B] = weights[here] * Q;
    }

  partial += blockIdx.x * (long long)width;
  if (NORM_C && chunk.begin > 0)
    for (int i = threadIdx.x; i < 2 * H; i += THREADS) partial[i] = 0;
  partial += 2 * H;
  float* const columns = reinterpret_cast<float*>(shared);  // (AT_ONCE, FEATURES)
  const auto write = [&](const float (&sums)[EACH], auto... places) {
    __syncthreads();
    each_feature([&](int i, int feature) { columns[place * FEATURES + feature] = sums[i]; });
    __syncthreads();
    for (int feature = threadIdx.x; feature < FEATURES; feature += THREADS) {
      float sum = 0;
      for (int i = 0; i < AT_ONCE; ++i) sum += columns[i * FEATURES + feature];
      ((partial[places * FEATURES + feature] = sum), ...);
    }
  };
  if constexpr (NORM_X) write(of_gamma_x, GAMMA_X);
  if constexpr (NORM_X) write(of_dx, INPUT);
  if constexpr (NORM_H) write(of_gamma_h, GAMMA_H);
  if constexpr (NORM_H) write(of_da, BIAS);
  if constexpr (NORM_X && NORM_H) write(of_d, BETA_X, BETA_H);
  if constexpr (!NORM_H) write(of_d, BETA_X, BIAS);
  if constexpr (!NORM_X) write(of_d, BETA_H, INPUT);
}
