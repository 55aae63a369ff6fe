// The gradient of lstm_eight_forward.cu, last step first: d, (T, B, 4H), is that of the gates'
// arguments. grad_h and grad_c may be null. `partial` has for each block the sum of d over its rows
// and all steps, and with INPUTS = 1 that of d x, with the input x, (T, B). Arrays have a part for
// every network, unless their bits in `shared_arrays` are set.
#include "lstm_eight.cuh"

// The inputs are those of 16 units, of one warp, gate by gate, and then those of the next. Each warp
// has a scale.
constexpr int WARPS = THREADS / 32;
using Back = TensorProduct<4 * WIDTH, 1, SHARED, THREADS, 4>;

__device__ inline int place_of(int gate, int unit) {
  return unit / SIXTEEN * 4 * SIXTEEN + gate * SIXTEEN + unit % SIXTEEN;
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_eight_backward(
    const float* __restrict__ x, const float* __restrict__ grad_h,
    const float* __restrict__ grad_c, const float* __restrict__ c, const float* __restrict__ kept,
    const float* __restrict__ c0, const float* __restrict__ W, float* __restrict__ d,
    float* __restrict__ grad_h0, float* __restrict__ grad_c0, float* __restrict__ partial, int T,
    int B, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);

  const long long rows = T * (long long)B;
  const int blocks = (B + EIGHT - 1) / EIGHT;
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
  partial = of_network(partial, shared_arrays, 10, (1 + INPUTS) * 4LL * blocks * H);

  const EightLane lane(B);
  const Scale of_W = scale_of(W, 4 * H * H, memory);
  // d of all units, and the scales of all warps
  constexpr int FLOATS = Back::STATE_FLOATS + (WARPS + 3) / 4 * 4;
  float *after = memory, *now = memory += FLOATS;
  for (int i = threadIdx.x; i < 2 * FLOATS; i += THREADS) after[i] = 0;
  Back back;
  back.load(memory += FLOATS, [&](int, int output, int k) {
    const int gate = k / SIXTEEN % 4, from = k / (4 * SIXTEEN) * SIXTEEN + k % SIXTEEN;
    const int unit = threadIdx.x / 32 * 16 + output;
    return unit < H && from < H ? of_W.up * W[(gate * H + from) * H + unit] : 0.0f;
  });

  // the gates, the gradients of h and c, the cell before, and the input
  Ahead<7 + INPUTS, 4, DEPTH, THREADS> ahead;
  ahead.init(memory += Back::SHARED_FLOATS);
  const long long step = (long long)B * H;
  int t_ahead = T - 1;
  long long at_ahead = t_ahead * step;  // of h and c
  const auto fetch = [&] {
    each_cell([&](int j, int k, int i) {
      const bool wanted = t_ahead >= 0 && lane.used(j);
      const long long place = lane.at(k) * H + lane.unit(j), at = at_ahead + place;
      const float* gates = kept + 4 * at_ahead + lane.at(k) * 4 * H + lane.unit(j);
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) ahead.fetch_if(wanted, gate, i, gates + gate * H);
      ahead.fetch_if(wanted && grad_h, 4, i, grad_h + at);
      ahead.fetch_if(wanted && grad_c, 5, i, grad_c + at);
      ahead.fetch_if(wanted, 6, i, t_ahead > 0 ? c + at - step : c0 + place);
      if constexpr (INPUTS == 1)
        ahead.fetch_if(wanted, 7, i, x + (long long)t_ahead * B + lane.at(k));
    });
    ahead.end_of_step();
    --t_ahead;
    at_ahead -= step;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  float cell[4], carry[4] = {}, sums[2][1 + INPUTS][4] = {};
  each_cell([&](int j, int k, int i) {
    cell[i] = lane.used(j) ? c[(T - 1) * step + lane.at(k) * H + lane.unit(j)] : 0.0f;
  });
  d += (T - 1) * 4 * step;
  for (int t = T - 1; t >= -1; --t) {
    __syncthreads();  // d of the step after is there, of all units
    float dh[1][4];
    back.multiply(
        after, dh, [&](int warp) { return after[Back::STATE_FLOATS + warp]; },
        [&] {
          fetch();
          ahead.wait();
        });
    if (t < 0) {
      each_cell([&](int j, int k, int i) {
        if (lane.writes(j, k)) grad_h0[lane.at(k) * H + lane.unit(j)] = dh[0][i];
      });
      break;
    }
    float values[4][4];  // of each cell
    unsigned largest = 0;
    each_cell([&](int j, int k, int i) {
      const float gates[4] = {ahead.get(0, i), ahead.get(1, i), ahead.get(2, i), ahead.get(3, i)};
      const float cell_before = ahead.get(6, i), tanh_c = tanhf(cell[i]);
      const float own = dh[0][i] + ahead.get(4, i);
      const float dc = fmaf(own * gates[O], 1 - tanh_c * tanh_c, ahead.get(5, i) + carry[i]);
      carry[i] = dc * gates[F];
      cell[i] = cell_before;
      values[i][I] = gates[G] * dc * (gates[I] * (1 - gates[I]));
      values[i][F] = cell_before * dc * (gates[F] * (1 - gates[F]));
      values[i][G] = gates[I] * dc * (1 - gates[G] * gates[G]);
      values[i][O] = tanh_c * own * (gates[O] * (1 - gates[O]));
      const bool writes = lane.writes(j, k);
      float* const out = d + lane.at(k) * 4 * H + lane.unit(j);
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) {
        const unsigned bits = modulus_bits(values[i][gate]);
        largest = bits > largest ? bits : largest;
        machine::store_if(writes, out + gate * H, values[i][gate]);
        const float counted = writes ? values[i][gate] : 0.0f;
        sums[j][0][gate] += counted;
        if constexpr (INPUTS == 1)
          sums[j][INPUTS][gate] = fmaf(ahead.get(7, i), counted, sums[j][INPUTS][gate]);
      }
    });
    const Scale of_d(__reduce_max_sync(~0u, largest));
    if (threadIdx.x % 32 == 0)
      now[Back::STATE_FLOATS + threadIdx.x / 32] = of_W.down * of_d.down;
    each_cell([&](int j, int k, int i) {
#pragma unroll
      for (int gate = 0; gate < 4; ++gate)
        Back::set(now, place_of(gate, lane.unit(j)), lane.row(k), of_d.up * values[i][gate]);
    });
    float* const read = after;
    after = now;
    now = read;
    d -= 4 * step;
  }
  each_cell([&](int j, int k, int i) {
    if (lane.writes(j, k)) grad_c0[lane.at(k) * H + lane.unit(j)] = carry[i];
  });
  partial += blockIdx.x * (1 + INPUTS) * 4LL * H;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int k = 0; k <= INPUTS; ++k)
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) {
        float sum = sums[j][k][gate];  // of two rows; four lanes have those of the others
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (threadIdx.x % 4 == 0 && lane.used(j))
          partial[(k * 4 + gate) * H + lane.unit(j)] = sum;
      }
}
