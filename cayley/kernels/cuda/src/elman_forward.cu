// h_t = φ(x_t + W h_{t-1}; b) for all steps: x, h, z (T, B, H), or (N, H) with the table of a
// packed sequence; h0 (B, H), W (H, H).
#include "elman.cuh"

extern "C" __global__ CLUSTER __launch_bounds__(THREADS, 1) void elman_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ h, float* __restrict__ z,
    const long long* __restrict__ table, int T, int B, int reverse) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);

  Memory states;
  states.init(memory, [&](int row, int k) {
    return h0[min(first_row() + row, B - 1) * H + unit_at(k)];
  });
  Weights weights;
  weights.load(memory + Memory::FLOATS, [&](int output, int k) {
    const int place = block_in_cluster() * UNITS + output;
    return output < UNITS && place < H && k < H ? W[unit_at(place) * H + unit_at(k)] : 0.0f;
  });
  if constexpr (BLOCKS > 1) weights.stay();
  const Owned owned(weights);
  float bias[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i)
    bias[i] = PHI >= MODRELU && owned.computed[i] ? b[owned.column[i]] : 0.0f;

  Steps steps(table, first_row(), T, B, reverse), steps_ahead = steps;
  T = steps.T;
  h += steps.first * H;
  z += steps.first * H;
  Ahead<1, VALUES, DEPTH, THREADS> ahead;
  ahead.init(memory + Memory::FLOATS + Weights::SHARED_FLOATS);
  const float* x_ahead = x + steps.first * H;
  int t_ahead = 0, pass_ahead = 0;
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
      if (t_ahead < T && owned.computed[i])
        ahead.fetch(0, i, x_ahead + owned.element(steps_ahead.rows, pass_ahead, i));
    ahead.end_of_step();
    if (++pass_ahead == PASSES) {
      pass_ahead = 0;
      ++t_ahead;
      x_ahead += steps_ahead.advance() * H;
    }
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  for (int t = 0; t < T; ++t) {
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass) {
      float values[VALUES], added[VALUES], state[VALUES];
      const auto meanwhile = [&] {
        states.seen(t, pass);
        fetch();
        ahead.wait();
#pragma unroll
        for (int i = 0; i < VALUES; ++i) added[i] = ahead.get(0, i);
      };
      if constexpr (PHI == MODRELU_STACKED) {
        float partners[VALUES], beside[VALUES];
        weights.multiply(states.before(t, pass), values, partners, [&] {
          meanwhile();
#pragma unroll
          for (int i = 0; i < VALUES; ++i) beside[i] = Weights::partner(added, i);
        });
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
          values[i] += added[i];
          state[i] = values[i] * Complex(values[i], partners[i] + beside[i], bias[i]).scale;
        }
      } else {
        weights.multiply(states.before(t, pass), values, meanwhile);
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
          values[i] += added[i];
          state[i] = activate<PHI>(values[i], bias[i]);
        }
      }
      if constexpr (PACKED)
#pragma unroll
        for (int i = 0; i < VALUES; ++i)
          // a sequence that has not begun yet: backwards, the shorter ones begin later
          if (owned.computed[i] && owned.beyond(steps.rows, pass, i))
            state[i] = h0[owned.element(B, pass, i)];
      if (t < T - 1) share(states, weights, owned, pass, state);
#pragma unroll
      for (int i = 0; i < VALUES; ++i)
        if (owned.written(steps.rows, pass, i)) {
          const int element = owned.element(steps.rows, pass, i);
          h[element] = state[i];
          if constexpr (PHI == MODRELU_STACKED) z[element] = values[i];
        }
    }
    const long long step = steps.advance() * H;
    h += step;
    z += step;
    states.advance();
  }
  states.finish();
}
