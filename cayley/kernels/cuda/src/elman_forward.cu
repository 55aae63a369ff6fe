// h_t = φ(x_t + W h_{t-1}; b) for all steps: x, h, z (T, B, H), or (N, H) with the table of a
// packed sequence; h0 (B, H), W (H, H). With INPUTS = 1 x is (T, B), and U x + c takes its place,
// with U (H) and c (H) or null. Arrays have a part for every network, unless their bits in
// `shared_arrays` are set.
#include "elman.cuh"

extern "C" __global__ CLUSTER __launch_bounds__(THREADS, 1) void elman_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, const float* __restrict__ U, const float* __restrict__ c,
    float* __restrict__ h, float* __restrict__ z, const long long* __restrict__ table, int T, int B,
    int reverse, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);

  const long long rows = T * (long long)B;
  x = of_network(x, shared_arrays, 0, rows * WIDTH);
  h0 = of_network(h0, shared_arrays, 1, B * H);
  W = weights_of_network(W, shared_arrays);
  b = of_network(b, shared_arrays, 3, THRESHOLDS);
  U = of_network(U, shared_arrays, 4, H);
  c = of_network(c, shared_arrays, 5, H);
  h = of_network(h, shared_arrays, 6, rows * H);
  z = of_network(z, shared_arrays, 7, rows * H);

  Memory states;
  states.init(memory, [&](int row, int k) {
    return h0[min(first_row() + row, B - 1) * H + unit_at(k)];
  });
  if (USED < BLOCKS && block_in_cluster() >= USED) return Memory::stay_out();
  Weights weights;
  weights.load(memory + Memory::FLOATS, [&](int output, int k) {
    const int place = block_in_cluster() * UNITS + output;
    return output < UNITS && place < H && k < H ? weight(W, unit_at(place) * H + unit_at(k)) : 0.0f;
  });
  if constexpr (BLOCKS > 1) weights.stay();
  const Owned owned(weights);
  float bias[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i)
    bias[i] = PHI >= MODRELU && owned.computed[i] ? b[owned.column[i]] : 0.0f;

  float factor[VALUES] = {}, offset[VALUES] = {};
  if constexpr (INPUTS == 1)
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      factor[i] = owned.computed[i] ? U[owned.unit[i]] : 0.0f;
      offset[i] = c && owned.computed[i] ? c[owned.unit[i]] : 0.0f;
    }

  Steps steps(table, first_row(), T, B, reverse), steps_ahead = steps;
  T = steps.T;
  h += steps.first * H;
  z += steps.first * H;
  Ahead<1, VALUES, DEPTH, THREADS> ahead;
  ahead.init(memory + Memory::FLOATS + Weights::SHARED_FLOATS);
  const float* x_ahead = x + steps.first * WIDTH;
  int t_ahead = 0, pass_ahead = 0;
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
      ahead.fetch_if(t_ahead < T && owned.computed[i], 0, i,
                     x_ahead + owned.input(steps_ahead.rows, pass_ahead, i));
    ahead.end_of_step();
    const bool last = pass_ahead == PASSES - 1;
    pass_ahead = last ? 0 : pass_ahead + 1;
    t_ahead += last;
    x_ahead += last ? steps_ahead.advance() * WIDTH : 0;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  float added[VALUES], beside[VALUES];
  const auto prepare = [&](int) {
    fetch();
    ahead.wait();
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      added[i] = ahead.get(0, i);
      if constexpr (INPUTS == 1) added[i] = fmaf(factor[i], added[i], offset[i]);
    }
    if constexpr (PHI == MODRELU_STACKED)
#pragma unroll
      for (int i = 0; i < VALUES; ++i) beside[i] = Weights::partner(added, i);
  };
  float values[VALUES], state[VALUES];
  const auto complete = [&](int pass, float (&sums)[Weights::SUMS]) {
    if constexpr (PHI == MODRELU_STACKED) {
      float partners[VALUES];
      weights.finish(sums, values, partners);
#pragma unroll
      for (int i = 0; i < VALUES; ++i) {
        values[i] += added[i];
        state[i] = values[i] * Complex(values[i], partners[i] + beside[i], bias[i]).scale;
      }
    } else {
      weights.finish(sums, values);
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
  };
  const auto publish = [&](const Memory& states, int, int pass) {
    share(states, weights, owned, pass, state);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const bool written = owned.written(steps.rows, pass, i);
      const int element = owned.element(steps.rows, pass, i);
      machine::store_if(written, h + element, state[i]);
      if constexpr (PHI == MODRELU_STACKED) machine::store_if(written, z + element, values[i]);
    }
    const long long step = pass == PASSES - 1 ? steps.advance() * H : 0;
    h += step;
    z += step;
  };
  each_pass(T, states, weights, prepare, complete, publish);
  states.finish();
}
