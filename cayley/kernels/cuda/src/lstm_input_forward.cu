// The statistics of N_x, (4, T, B): mean and variance of each step of x, (T, B, 4H), less the
// reference, and mean and 1/sqrt(variance + eps) of its last K steps. If `derived`, (3, B), is not
// null, the first B blocks write there what references.cuh derives, of N_h if b is not null, and
// the reference is that of x. With the table of a packed sequence x is (N, 4H). Arrays have a part
// for every network, unless their bits in `shared_arrays` are set.
#include "inputs.cuh"
#include "references.cuh"

struct Step {
  float weight, mean, variance;
};

extern "C" __global__ __launch_bounds__(THREADS) void lstm_input_forward(
    const float* __restrict__ x, const float* __restrict__ b, const float* __restrict__ references,
    const float* __restrict__ past, const float* __restrict__ weights,
    float* __restrict__ derived, float* __restrict__ statistics,
    const long long* __restrict__ table, int T, int B, int K, int length, int shared_arrays) {
  extern __shared__ float4 shared[];

  const long long rows = T * (long long)B;
  x = of_network(x, shared_arrays, 0, rows * FEATURES);
  b = of_network(b, shared_arrays, 1, FEATURES);
  references = of_network(references, shared_arrays, 2, B);
  past = of_network(past, shared_arrays, 3, 2LL * (K - 1) * B);
  weights = of_network(weights, shared_arrays, 4, (K - 1) * (long long)B);
  derived = of_network(derived, shared_arrays, 5, 3 * B);
  statistics = of_network(statistics, shared_arrays, 6, 4 * rows);

  const int number = blockIdx.x / B - (derived ? 1 : 0);
  if (number < 0) {
    write_references(NORM_X ? x : nullptr, b, table, derived, blockIdx.x, T, H, B);
    return;
  }
  const Chunk chunk(number, length, table, T, B);
  const long long row = chunk.row;
  const float reference = derived      ? reference_of_input(x, table, row, T, H, B)
                          : references ? references[row]
                                       : 0.0f;

  // those of the chunk, and the K - 1 before it
  Step* const steps = reinterpret_cast<Step*>(shared);
  const int first = chunk.begin - (K - 1);
  const bool writes = threadIdx.x % STEP_THREADS == 0;
#pragma unroll 1
  for (int t = first + (int)threadIdx.x / STEP_THREADS; t < chunk.end; t += AT_ONCE) {
    if (t < 0) {
      const long long at = (K - 1 + t) * (long long)B + row;
      if (writes && past)
        steps[t - first] = {weights[at], past[at], past[at + (K - 1) * (long long)B]};
      else if (writes)
        steps[t - first] = {0, 0, 0};
      continue;
    }
    const float* const here = x + (start_of(table, t, T, B) + row) * FEATURES;
    float values[EACH], sum = 0, spread = 0;
    each_feature([&](int i, int feature) { values[i] = here[feature]; });
    each_feature([&](int i, int) { sum += values[i] -= reference; });
    const float mean = sum_step(sum) / FEATURES;
    each_feature([&](int i, int) { spread = fmaf(values[i] - mean, values[i] - mean, spread); });
    spread = sum_step(spread);
    if (writes) steps[t - first] = {1, mean, spread / FEATURES};
  }
  __syncthreads();
  for (int t = chunk.begin + (int)threadIdx.x; t < chunk.end; t += THREADS) {
    const Step& own = steps[t - first];
    // less the mean of the step: where it is far from the others, their spread is large as well
    float n = 0, sum = 0, spread = 0;
    for (int k = 0; k < K; ++k) {
      const Step step = steps[t - first - k];
      const float d = step.mean - own.mean;
      n += step.weight;
      sum += step.weight * d;
      spread += step.weight * (step.variance + d * d);
    }
    const float offset = sum / n;
    float* const out = statistics + (long long)t * B + row;
    const long long size = (long long)T * B;
    out[0] = own.mean;
    out[size] = own.variance;
    out[2 * size] = own.mean + offset;
    out[3 * size] = rsqrtf((spread - sum * offset) / n + EPS);
  }
}
