// delta_t = φ'(z_t)ᵀ (grad_h_t + Wᵀ delta_{t+1}) for all steps, last step first, then
// grad_h0 = Wᵀ delta_1. `saved` is h, or z for the complex modReLU; partial_b, (B, ·), is the
// gradient of b from each row. With the table of a packed sequence (T, B, H) is (N, H). With
// INPUTS = 1 partial_U, (B, 2, H), has the sums of delta and of delta x, with the input x, (T, B).
// Arrays have a part for every network, unless their bits in `shared_arrays` are set.
#include "elman.cuh"

extern "C" __global__ CLUSTER __launch_bounds__(THREADS, 1) void elman_backward(
    const float* __restrict__ grad_h, const float* __restrict__ saved, const float* __restrict__ W,
    const float* __restrict__ b, const float* __restrict__ x, float* __restrict__ delta,
    float* __restrict__ grad_h0, float* __restrict__ partial_b, float* __restrict__ partial_U,
    const long long* __restrict__ table, int T, int B, int reverse, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);

  const long long rows = T * (long long)B;
  grad_h = of_network(grad_h, shared_arrays, 0, rows * H);
  saved = of_network(saved, shared_arrays, 1, rows * H);
  W = weights_of_network(W, shared_arrays);
  b = of_network(b, shared_arrays, 3, THRESHOLDS);
  x = of_network(x, shared_arrays, 4, rows);
  delta = of_network(delta, shared_arrays, 5, rows * H);
  grad_h0 = of_network(grad_h0, shared_arrays, 6, B * H);
  partial_b = of_network(partial_b, shared_arrays, 7, B * THRESHOLDS);
  partial_U = of_network(partial_U, shared_arrays, 8, 2LL * B * H);

  Memory states;
  states.init(memory, [](int, int) { return 0.0f; });
  if (USED < BLOCKS && block_in_cluster() >= USED) return Memory::stay_out();
  Weights weights;
  weights.load(memory + Memory::FLOATS, [&](int output, int k) {
    const int place = block_in_cluster() * UNITS + output;
    return output < UNITS && place < H && k < H ? weight(W, unit_at(k) * H + unit_at(place)) : 0.0f;
  });
  if constexpr (BLOCKS > 1) weights.stay();
  const Owned owned(weights);
  float bias[VALUES];
#pragma unroll
  for (int i = 0; i < VALUES; ++i)
    bias[i] = PHI == MODRELU_STACKED && owned.computed[i] ? b[owned.column[i]] : 0.0f;

  Steps steps(table, first_row(), T, B, !reverse), steps_ahead = steps;
  T = steps.T;
  delta += steps.first * H;
  Ahead<2 + INPUTS, VALUES, DEPTH, THREADS> ahead;
  ahead.init(memory + Memory::FLOATS + Weights::SHARED_FLOATS);
  const float* grad_ahead = grad_h + steps.first * H;
  const float* saved_ahead = saved + steps.first * H;
  const float* x_ahead = x + steps.first;
  int t_ahead = 0, pass_ahead = 0;
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const bool wanted = t_ahead < T && owned.computed[i];
      const int element = owned.element(steps_ahead.rows, pass_ahead, i);
      ahead.fetch_if(wanted, 0, i, grad_ahead + element);
      ahead.fetch_if(wanted, 1, i, saved_ahead + element);
      if constexpr (INPUTS == 1)
        ahead.fetch_if(wanted, 2, i, x_ahead + owned.input(steps_ahead.rows, 0, i));
    }
    ahead.end_of_step();
    const bool last = pass_ahead == PASSES - 1;
    pass_ahead = last ? 0 : pass_ahead + 1;
    t_ahead += last;
    const long long rows = last ? steps_ahead.advance() : 0;
    grad_ahead += rows * H;
    saved_ahead += rows * H;
    x_ahead += rows;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  // Each thread adds up its own gradients of b, and puts them aside during other passes.
  float* const aside = ahead.first + ahead.FLOATS;
  float grad_b[VALUES] = {}, grad_c[VALUES] = {}, grad_U[VALUES] = {};
#pragma unroll 1
  for (int i = 0; i < PASSES * VALUES; ++i) aside[i * THREADS] = 0;

  float added[VALUES], save[VALUES], input[VALUES] = {};
  // of the complex modReLU, what does not wait for g
  float beside[VALUES], along[VALUES], across[VALUES];
  Complex phi[VALUES];
  const auto prepare = [&](int pass) {
    fetch();
    ahead.wait();
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const bool beyond = PACKED && owned.beyond(steps.rows, pass, i);
      added[i] = ahead.get(0, i);
      save[i] = beyond ? 0.0f : ahead.get(1, i);
      if constexpr (INPUTS == 1) input[i] = ahead.get(2, i);
    }
    if constexpr (PHI == MODRELU_STACKED)
#pragma unroll
      for (int i = 0; i < VALUES; ++i) {
        const float other = Weights::partner(save, i);
        phi[i] = Complex(save[i], other, bias[i]);
        along[i] = phi[i].inverse * save[i];
        across[i] = phi[i].inverse * other;
        beside[i] = Weights::partner(added, i);
      }
  };
  float g[VALUES], d[VALUES], of_b[VALUES];
  const auto complete = [&](int pass, float (&sums)[Weights::SUMS]) {
    float partners[VALUES];
    if constexpr (PHI == MODRELU_STACKED)
      weights.finish(sums, g, partners);
    else
      weights.finish(sums, g);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const bool beyond = PACKED && owned.beyond(steps.rows, pass, i);
      const float sum = beyond ? 0.0f : g[i] + added[i];
      if constexpr (PHI == MODRELU_STACKED) {
        const float partner = beyond ? 0.0f : partners[i] + beside[i];
        const float radial = along[i] * sum + across[i] * partner;
        d[i] = phi[i].scale * sum + radial * phi[i].curvature * save[i];
        of_b[i] = radial;
      } else {
        d[i] = slope<PHI>(save[i]) * sum;
        of_b[i] = save[i] < 0 ? -d[i] : d[i];
      }
    }
  };
  const auto publish = [&](const Memory& states, int t, int pass) {
    share(states, weights, owned, pass, d);
    const bool over = t == T;
    float* const to = over && !PACKED ? grad_h0 : delta;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      machine::store_if(owned.written(steps.rows, pass, i),
                        to + owned.element(steps.rows, pass, i), over ? g[i] : d[i]);
      // of the rows whose first step was the one before
      if (PACKED && owned.written(steps.before, pass, i) &&
          (over || owned.beyond(steps.rows, pass, i)))
        grad_h0[owned.element(B, pass, i)] = g[i];
      if (PASSES > 1) grad_b[i] = aside[(pass * VALUES + i) * THREADS];
      grad_b[i] += over ? 0.0f : of_b[i];
      if (PASSES > 1) aside[(pass * VALUES + i) * THREADS] = grad_b[i];
      if constexpr (INPUTS == 1) {
        grad_c[i] += over ? 0.0f : d[i];
        grad_U[i] = fmaf(over ? 0.0f : d[i], input[i], grad_U[i]);
      }
    }
    delta += pass == PASSES - 1 ? steps.advance() * H : 0;
  };
  each_pass(T + 1, states, weights, prepare, complete, publish);
  if constexpr (PHI >= MODRELU) {
    constexpr int UNITS_OF_B = PHI == MODRELU ? 1 : 2;  // that share a threshold
    for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
      for (int i = 0; i < VALUES; ++i)
        if (owned.written(B, pass, i) && owned.place[i] % UNITS_OF_B == 0)
          partial_b[(owned.row[i] + pass * ROWS) * (H / UNITS_OF_B) + owned.column[i]] =
              PASSES > 1 ? aside[(pass * VALUES + i) * THREADS] : grad_b[i];
  }
  if constexpr (INPUTS == 1)
#pragma unroll
    for (int i = 0; i < VALUES; ++i)
      if (owned.written(B, 0, i)) {
        float* const sums = partial_U + 2 * owned.row[i] * H + owned.unit[i];
        sums[0] = grad_c[i];
        sums[H] = grad_U[i];
      }
  states.finish();
}
