// The gradient of lstm_pair_forward.cu, last step first: d, (T, B, 4H), is that of the gates'
// arguments. grad_h and grad_c may be null. `partial` has for each row of the batch the sum of d over
// all steps, and with INPUTS = 1 that of d x, with the input x, (T, B). Arrays have a part for every
// network, unless their bits in `shared_arrays` are set.
#include "lstm_pair.cuh"

using Back = PairWeights<4 * H, 1>;
using Delta = PairBuffers<Back, 4 * H>;

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_pair_backward(
    const float* __restrict__ x, const float* __restrict__ grad_h,
    const float* __restrict__ grad_c, const float* __restrict__ c, const float* __restrict__ kept,
    const float* __restrict__ c0, const float* __restrict__ W, float* __restrict__ d,
    float* __restrict__ grad_h0, float* __restrict__ grad_c0, float* __restrict__ partial, int T,
    int B, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);

  const long long rows = T * (long long)B;
  x = of_network(x, shared_arrays, 0, rows);
  grad_h = of_network(grad_h, shared_arrays, 1, rows * H);
  grad_c = of_network(grad_c, shared_arrays, 2, rows * H);
  c = of_network(c, shared_arrays, 3, rows * H);
  kept = of_network(kept, shared_arrays, 4, rows * 4 * H);
  c0 = of_network(c0, shared_arrays, 5, B * H);
  W = of_network(W, shared_arrays, 6, 4 * H * H);
  d = of_network(d, shared_arrays, 7, rows * 4 * H);
  grad_h0 = of_network(grad_h0, shared_arrays, 8, B * H);
  grad_c0 = of_network(grad_c0, shared_arrays, 9, B * H);
  partial = of_network(partial, shared_arrays, 10, (1 + INPUTS) * 4LL * B * H);

  Delta delta;
  delta.init(memory, [](int, int) { return 0.0f; });
  // the gates of a unit are neighbours
  Back back;
  back.load(memory += Delta::FLOATS, [&](int output, int k) {
    return output < H && k < 4 * H ? W[(k % 4 * H + k / 4) * H + output] : 0.0f;
  });
  const PairLane lane(back, B);

  // the gates, the gradients of h and c, the cell before, and the input
  Inputs<7 + INPUTS> ahead;
  ahead.init(memory += Back::SHARED_FLOATS);
  const long long place = lane.row * H + lane.unit, step = (long long)B * H;
  long long at_ahead = (T - 1) * step + place;  // of h and c
  const float* kept_ahead = kept + (T - 1) * 4 * step + lane.row * 4 * H + lane.unit;
  int t_ahead = T - 1;
  const auto fetch = [&] {
    const bool wanted = t_ahead >= 0 && lane.used;
#pragma unroll
    for (int i = 0; i < 4; ++i) ahead.fetch_if(wanted, i, 0, kept_ahead + i * H);
    ahead.fetch_if(wanted && grad_h, 4, 0, grad_h + at_ahead);
    ahead.fetch_if(wanted && grad_c, 5, 0, grad_c + at_ahead);
    ahead.fetch_if(wanted, 6, 0, t_ahead > 0 ? c + at_ahead - step : c0 + place);
    if constexpr (INPUTS == 1) ahead.fetch_if(wanted, 7, 0, x + (long long)t_ahead * B + lane.row);
    ahead.end_of_step();
    kept_ahead -= 4 * step;
    at_ahead -= step;
    --t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  float cell = lane.used ? c[(T - 1) * step + place] : 0.0f, carry = 0;
  float sums[1 + INPUTS][4] = {};
  d += (T - 1) * 4 * step + lane.row * 4 * H + lane.unit;
  for (int t = T - 1; t >= -1; --t) {
    float dh[1], gates[4], from_h, from_c, cell_before, tanh_c, input = 0;
    back.multiply(delta.before(0), dh, [&] {
      fetch();
      ahead.wait();
#pragma unroll
      for (int i = 0; i < 4; ++i) gates[i] = ahead.get(i, 0);
      from_h = ahead.get(4, 0);
      from_c = ahead.get(5, 0);
      cell_before = ahead.get(6, 0);
      if constexpr (INPUTS == 1) input = ahead.get(7, 0);
      tanh_c = tanhf(cell);
    });
    if (t < 0) {
      if (lane.writes) grad_h0[place] = dh[0];
      break;
    }
    dh[0] += from_h;
    const float dc = fmaf(dh[0] * gates[O], 1 - tanh_c * tanh_c, from_c + carry);
    carry = dc * gates[F];
    const float values[4] = {gates[G] * dc * (gates[I] * (1 - gates[I])),
                             cell_before * dc * (gates[F] * (1 - gates[F])),
                             gates[I] * dc * (1 - gates[G] * gates[G]),
                             tanh_c * dh[0] * (gates[O] * (1 - gates[O]))};
    if (lane.used) delta.set(0, lane.own * Back::WIDTH + 4 * lane.unit, values);
    delta.advance();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      machine::store_if(lane.writes, d + i * H, values[i]);
      sums[0][i] += values[i];
      if constexpr (INPUTS == 1) sums[INPUTS][i] = fmaf(input, values[i], sums[INPUTS][i]);
    }
    d -= 4 * step;
    cell = cell_before;
  }
  if (!lane.writes) return;
  grad_c0[place] = carry;
#pragma unroll
  for (int k = 0; k <= INPUTS; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      partial[((lane.row * (1 + INPUTS) + k) * 4 + i) * H + lane.unit] = sums[k][i];
}
