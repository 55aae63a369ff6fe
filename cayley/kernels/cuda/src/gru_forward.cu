// r_t, u_t = σ(x_t + [W_r; W_u] h_{t-1}), c_t = φ(x_t + W_c (r_t h_{t-1}); b) and
// h_t = (1 - u_t) h_{t-1} + u_t c_t for all steps: x and saved = [r, u, c] (T, B, 3H), h (T, B, H),
// or (N, ·) with the table of a packed sequence; h0 (B, H), W (3H, H). Arrays have a part for every
// network, unless their bits in `shared_arrays` are set.
#include "gates.cuh"
#include "gru.cuh"
#include "networks.cuh"

using Gates = Weights<0, H, 2>;
using Candidate = Weights<1, H, 1>;
using Before = Buffers<Gates, H>;
using Reset = Buffers<Candidate, H>;

extern "C" __global__ __launch_bounds__(THREADS, 1) void gru_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ h, float* __restrict__ saved,
    const long long* __restrict__ table, int T, int B, int reverse, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const long long row = blockIdx.x;

  const long long rows = T * (long long)B;
  x = of_network(x, shared_arrays, 0, rows * 3 * H);
  h0 = of_network(h0, shared_arrays, 1, (long long)B * H);
  W = of_network(W, shared_arrays, 2, 3 * H * H);
  b = of_network(b, shared_arrays, 3, H);
  h = of_network(h, shared_arrays, 4, rows * H);
  saved = of_network(saved, shared_arrays, 5, rows * 3 * H);

  Before before;
  before.init(memory, [&](int, int k) { return h0[row * H + k]; });
  Reset reset;
  reset.init(memory += Before::FLOATS, [](int, int) { return 0.0f; });
  // the gates of a unit are neighbours
  Gates gates;
  gates.load(memory += Reset::FLOATS, [&](int output, int k) {
    return output < 2 * H && k < H ? W[(output % 2 * H + output / 2) * H + k] : 0.0f;
  });
  Candidate candidate;
  candidate.load(memory += Gates::SHARED_FLOATS, [&](int output, int k) {
    return output < H && k < H ? W[(2 * H + output) * H + k] : 0.0f;
  });
  const Lane lane(candidate);
  const bool updates = lane.role % 2;  // rather than resets: which gate the lane computes
  const float bias = PHI == MODRELU && lane.used ? b[lane.unit] : 0.0f;
  float state = lane.used ? h0[row * H + lane.unit] : 0.0f;

  Steps steps(table, row, T, B, reverse), steps_ahead = steps;
  T = steps.T;
  const long long first = steps.first + row;
  const float* x_ahead = x + first * 3 * H + lane.unit;
  float* const gate_or_c = saved + first * 3 * H + lane.role * H + lane.unit;
  float* out = lane.role < 3 ? gate_or_c : h + first * H + lane.unit;
  const int width = lane.role < 3 ? 3 * H : H;  // of a row of it
  Inputs<2> ahead;
  ahead.init(memory += Candidate::SHARED_FLOATS);
  int t_ahead = 0;
  const auto fetch = [&] {
    if (t_ahead < T && lane.used) {
      ahead.fetch(0, 0, x_ahead + updates * H);
      ahead.fetch(1, 0, x_ahead + 2 * H);
    }
    ahead.end_of_step();
    x_ahead += steps_ahead.advance() * 3 * H;
    ++t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  for (int t = 0; t < T; ++t) {
    float own[1], c[1], x_gate, x_c;
    gates.multiply(before.before(0), own, [&] {
      fetch();
      ahead.wait();
      x_gate = ahead.get(0, 0);
      x_c = ahead.get(1, 0);
    });
    own[0] = sigmoid(own[0] + x_gate);
    const float other = __shfl_xor_sync(~0u, own[0], UNITS);
    const float r = updates ? other : own[0], u = updates ? own[0] : other;
    if (lane.writes) reset.set(0, lane.unit, r * state);
    reset.advance();
    candidate.multiply(reset.before(0), c, [] {});
    c[0] = activate<PHI>(c[0] + x_c, bias);
    state = interpolate(state, c[0], u);
    if (lane.writes) before.set(0, lane.unit, state);
    before.advance();
    if (lane.used) *out = lane.role == 0 ? r : lane.role == 1 ? u : lane.role == 2 ? c[0] : state;
    out += steps.advance() * width;
  }
}
