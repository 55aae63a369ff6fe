// The gradient of gru_forward.cu, last step first. With g that of h_t, later steps included:
// delta_c = φ'(c)ᵀ u g, delta_u = u (1 - u) (c - h) g, v = W_cᵀ delta_c,
// delta_r = r (1 - r) h v, and (1 - u) g + r v + [W_r; W_u]ᵀ [delta_r; delta_u] goes to the step
// before, with h its state. delta is (T, B, 3H) and factors = [h, r h], the states that W was
// multiplied with, (T, B, 2H), or (N, ·) with the table of a packed sequence. `partial`, of shape
// (B, 4H), has from each row the sums of delta over all steps, and the gradient of b. Arrays have a
// part for every network, unless their bits in `shared_arrays` are set.
#include "gates.cuh"
#include "gru.cuh"
#include "networks.cuh"

using CandidateBack = Weights<0, H, 1>;
using GatesBack = Weights<1, 2 * H, 1>;
using DeltaC = Buffers<CandidateBack, H>;
using DeltaGates = Buffers<GatesBack, 2 * H>;

extern "C" __global__ __launch_bounds__(THREADS, 1) void gru_backward(
    const float* __restrict__ grad_h, const float* __restrict__ h, const float* __restrict__ saved,
    const float* __restrict__ h0, const float* __restrict__ W, float* __restrict__ delta,
    float* __restrict__ grad_h0, float* __restrict__ partial, float* __restrict__ factors,
    const long long* __restrict__ table, int T, int B, int reverse, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const long long row = blockIdx.x;

  const long long rows = T * (long long)B;
  grad_h = of_network(grad_h, shared_arrays, 0, rows * H);
  h = of_network(h, shared_arrays, 1, rows * H);
  saved = of_network(saved, shared_arrays, 2, rows * 3 * H);
  W = of_network(W, shared_arrays, 4, 3 * H * H);
  delta = of_network(delta, shared_arrays, 5, rows * 3 * H);
  factors = of_network(factors, shared_arrays, 8, rows * 2 * H);

  DeltaC delta_c;
  delta_c.init(memory, [](int, int) { return 0.0f; });
  DeltaGates delta_gates;
  delta_gates.init(memory += DeltaC::FLOATS, [](int, int) { return 0.0f; });
  CandidateBack candidate;
  candidate.load(memory += DeltaGates::FLOATS, [&](int output, int k) {
    return output < H && k < H ? W[(2 * H + k) * H + output] : 0.0f;
  });
  GatesBack gates;
  gates.load(memory += CandidateBack::SHARED_FLOATS, [&](int output, int k) {
    return output < H && k < 2 * H ? W[k * H + output] : 0.0f;
  });
  const Lane lane(candidate);

  Steps steps(table, row, T, B, !reverse), steps_ahead = steps;
  T = steps.T;
  const long long first = steps.first + row, at = first * H + lane.unit;
  const float *grad_ahead = grad_h + at, *h_ahead = h + at;
  const float* saved_ahead = saved + first * 3 * H + lane.unit;
  float* const gate_or_c = delta + first * 3 * H + lane.role * H + lane.unit;
  float* out = lane.role < 3 ? gate_or_c : factors + first * 2 * H + H + lane.unit;
  const int width = lane.role < 3 ? 3 * H : 2 * H;  // of a row of it
  Inputs<5> ahead;
  ahead.init(memory += GatesBack::SHARED_FLOATS);
  int t_ahead = 0;
  const auto fetch = [&] {
    // a pointer of its own would take registers that weights need
    const float* const before = of_network(h0, shared_arrays, 3, (long long)B * H);
    const long long step = steps_ahead.advance();
    h_ahead += step * H;  // the state before that step
    if (t_ahead < T && lane.used) {
      ahead.fetch(0, 0, grad_ahead);
      ahead.fetch(1, 0, t_ahead < T - 1 ? h_ahead : before + row * H + lane.unit);
#pragma unroll
      for (int i = 0; i < 3; ++i) ahead.fetch(2 + i, 0, saved_ahead + i * H);
    }
    ahead.end_of_step();
    grad_ahead += step * H;
    saved_ahead += step * 3 * H;
    ++t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  float carry = 0, total = 0;
  __syncthreads();  // the buffers are zero everywhere
  for (int t = 0; t < T; ++t) {
    fetch();
    ahead.wait();
    const float g = carry + ahead.get(0, 0), state = ahead.get(1, 0);
    const float r = ahead.get(2, 0), u = ahead.get(3, 0), c = ahead.get(4, 0);
    const float d_c = delta_candidate<PHI>(g, u, c), d_u = delta_update(g, state, u, c);
    if (lane.writes) delta_c.set(0, lane.unit, d_c);
    if (lane.writes) delta_gates.set(0, H + lane.unit, d_u);
    delta_c.advance();
    float v[1], sum[1];
    candidate.multiply(delta_c.before(0), v, [] {});
    const float d_r = delta_reset(v[0], state, r);
    if (lane.writes) delta_gates.set(0, lane.unit, d_r);
    delta_gates.advance();
    gates.multiply(delta_gates.before(0), sum, [&] {
      const float d = lane.role == 0 ? d_r : lane.role == 1 ? d_u : d_c;
      if (lane.used) *out = lane.role < 3 ? d : r * state;
      if (lane.used && lane.role == 3) out[-H] = state;
      out += steps.advance() * width;
      total += lane.role == 3 && c < 0 ? -d : d;
    });
    carry = carried(g, v[0], r, u) + sum[0];
  }
  grad_h0 = of_network(grad_h0, shared_arrays, 6, (long long)B * H);
  partial = of_network(partial, shared_arrays, 7, 4LL * B * H);
  if (lane.writes) grad_h0[row * H + lane.unit] = carry;
  if (lane.used) partial[row * 4 * H + lane.role * H + lane.unit] = total;
}
