// lstm_forward.cu for two rows of the batch a block, without normalisations: h and c (T, B, H), h0
// and c0 (B, H), W (4H, H), b (4H) or null; kept (T, B, 4H) are the gates. x is (T, B, 4H), or with
// INPUTS = 1 the input itself, (T, B), and U x + u is added, with U (4H) and u (4H) or null. Arrays
// have a part for every network, unless their bits in `shared_arrays` are set.
#include "lstm_pair.cuh"

using Recurrent = PairWeights<H, 4>;
using Before = PairBuffers<Recurrent, H>;

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_pair_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ b, const float* __restrict__ U,
    const float* __restrict__ u, float* __restrict__ h, float* __restrict__ c,
    float* __restrict__ kept, int T, int B, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);

  const long long rows = T * (long long)B;
  x = of_network(x, shared_arrays, 0, INPUTS == 1 ? rows : rows * 4 * H);
  h0 = of_network(h0, shared_arrays, 1, B * H);
  c0 = of_network(c0, shared_arrays, 2, B * H);
  W = of_network(W, shared_arrays, 3, 4 * H * H);
  b = of_network(b, shared_arrays, 4, 4 * H);
  U = of_network(U, shared_arrays, 5, 4 * H);
  u = of_network(u, shared_arrays, 6, 4 * H);
  h = of_network(h, shared_arrays, 7, rows * H);
  c = of_network(c, shared_arrays, 8, rows * H);
  kept = of_network(kept, shared_arrays, 9, rows * 4 * H);

  Before before;
  before.init(memory, [&](int row, int k) {
    return h0[min((long long)blockIdx.x * ROWS + row, (long long)B - 1) * H + k];
  });
  // the gates of a unit are neighbours
  Recurrent recurrent;
  recurrent.load(memory += Before::FLOATS, [&](int output, int k) {
    return output < 4 * H && k < H ? W[(output % 4 * H + output / 4) * H + k] : 0.0f;
  });
  const PairLane lane(recurrent, B);
  float cell = lane.used ? c0[lane.row * H + lane.unit] : 0.0f, bias[4], factor[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int gate = i * H + lane.unit;
    bias[i] = b && lane.used ? b[gate] : 0.0f;
    if constexpr (INPUTS == 1)
      if (lane.used) {
        factor[i] = U[gate];
        bias[i] += u ? u[gate] : 0.0f;
      }
  }

  constexpr int READ = INPUTS == 1 ? 1 : 4;  // numbers of a lane
  const float* x_ahead = x + (INPUTS == 1 ? lane.row : lane.row * 4 * H + lane.unit);
  Inputs<READ> ahead;
  ahead.init(memory += Recurrent::SHARED_FLOATS);
  const long long step = (long long)B * H;
  int t_ahead = 0;
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < READ; ++i)
      ahead.fetch_if(t_ahead < T && lane.used, i, 0, x_ahead + i * H);
    ahead.end_of_step();
    x_ahead += INPUTS == 1 ? B : 4 * step;
    ++t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  const long long first = lane.row * H + lane.unit;
  h += first;
  c += first;
  kept += lane.row * 4 * H + lane.unit;
  for (int t = 0; t < T; ++t) {
    float a[4], input[4];
    recurrent.multiply(before.before(0), a, [&] {
      fetch();
      ahead.wait();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        input[i] = INPUTS == 1 ? fmaf(factor[i], ahead.get(0, 0), bias[i])
                               : ahead.get(i % READ, 0) + bias[i];
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i] = activate_gate(i, a[i] + input[i]);
      machine::store_if(lane.writes, kept + i * H, a[i]);
    }
    cell = fmaf(a[I], a[G], a[F] * cell);
    const float state = a[O] * tanhf(cell);
    if (lane.used) before.set(0, lane.own * Recurrent::WIDTH + lane.unit, state);
    before.advance();
    machine::store_if(lane.writes, h, state);
    machine::store_if(lane.writes, c, cell);
    kept += 4 * step;
    h += step;
    c += step;
  }
}
