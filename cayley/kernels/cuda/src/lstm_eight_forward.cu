// lstm_pair_forward.cu for eight rows of the batch a block, by tensor cores: h and c (T, B, H), h0 and
// c0 (B, H), W (4H, H), b (4H) or null; kept (T, B, 4H) are the gates. x is (T, B, 4H), or with
// INPUTS = 1 the input itself, (T, B), and U x + u is added, with U (4H) and u (4H) or null. Arrays
// have a part for every network, unless their bits in `shared_arrays` are set.
#include "lstm_eight.cuh"

// Two tiles have the gates of eight units: I and F, G and O.
using Recurrent = TensorProduct<WIDTH, 4, SHARED, THREADS, WIDTH / SIXTEEN>;

// Of states, which are smaller than 1, once there is a step.
constexpr float STATE_SCALE = 8192;

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_eight_forward(
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

  const EightLane lane(B);
  const Scale of_W = scale_of(W, 4 * H * H, memory);
  // the rows before the first step, which may have states of any size
  const int begin = EIGHT * blockIdx.x, end = min(begin + EIGHT, B);
  const Scale of_h0 = scale_of(h0 + begin * (long long)H, (end - begin) * H, memory);
  float *before = memory, *after = memory += Recurrent::STATE_FLOATS;
  for (int i = threadIdx.x; i < EIGHT * WIDTH; i += THREADS) {
    const int row = i / WIDTH, unit = i % WIDTH;
    const float state = unit < H ? h0[EightLane::row_at(row, B) * H + unit] : 0.0f;
    Recurrent::set(before, unit, row, of_h0.up * state);
    Recurrent::set(after, unit, row, 0);
  }
  Recurrent recurrent;
  recurrent.load(memory += Recurrent::STATE_FLOATS, [&](int tile, int output, int k) {
    const int gate = tile % 2 * 2 + output / 8;
    const int unit = threadIdx.x / 32 * 16 + tile / 2 * 8 + output % 8;
    return unit < H && k < H ? of_W.up * W[(gate * H + unit) * H + k] : 0.0f;
  });
  float cell[4], bias[2][4] = {}, factor[2][4] = {};
  each_cell([&](int j, int k, int i) {
    cell[i] = lane.used(j) ? c0[lane.at(k) * H + lane.unit(j)] : 0.0f;
  });
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (lane.used(j)) {
        const int gate = i * H + lane.unit(j);
        bias[j][i] = b ? b[gate] : 0.0f;
        if constexpr (INPUTS == 1) {
          factor[j][i] = U[gate];
          bias[j][i] += u ? u[gate] : 0.0f;
        }
      }

  // an input for each of two rows, or for each of four cells those of its gates
  constexpr int EACH = INPUTS == 1 ? 1 : 4 * H;  // numbers of a row of x
  Ahead<INPUTS == 1 ? 1 : 4, INPUTS == 1 ? 2 : 4, DEPTH, THREADS> ahead;
  ahead.init(memory += Recurrent::SHARED_FLOATS);
  int t_ahead = 0;
  const auto fetch = [&] {
    const bool wanted = t_ahead < T;
    if constexpr (INPUTS == 1) {
#pragma unroll
      for (int k = 0; k < 2; ++k) ahead.fetch_if(wanted, 0, k, x + lane.at(k));
    } else {
      each_cell([&](int j, int k, int i) {
#pragma unroll
        for (int gate = 0; gate < 4; ++gate)
          ahead.fetch_if(wanted && lane.used(j), gate, i,
                         x + lane.at(k) * EACH + gate * H + lane.unit(j));
      });
    }
    ahead.end_of_step();
    x += (long long)B * EACH;
    ++t_ahead;
  };
  for (int i = 0; i < DEPTH - 1; ++i) fetch();

  const long long step = (long long)B * H;
  float scale = of_W.down * of_h0.down;
  for (int t = 0; t < T; ++t) {
    __syncthreads();  // all states of the step before are there
    float sums[4][4];
    recurrent.multiply(
        before, sums, [&](int) { return scale; },
        [&] {
          fetch();
          ahead.wait();
        });
    scale = of_W.down * (1 / STATE_SCALE);
    each_cell([&](int j, int k, int i) {
      float a[4];
      const bool writes = lane.writes(j, k);
      const long long row = lane.at(k);
#pragma unroll
      for (int gate = 0; gate < 4; ++gate) {
        const float input = INPUTS == 1 ? fmaf(factor[j][gate], ahead.get(0, k), bias[j][gate])
                                        : ahead.get(INPUTS == 1 ? 0 : gate, i) + bias[j][gate];
        a[gate] = activate_gate(gate, sums[2 * j + gate / 2][gate % 2 * 2 + k] + input);
        machine::store_if(writes, kept + row * 4 * H + gate * H + lane.unit(j), a[gate]);
      }
      cell[i] = fmaf(a[I], a[G], a[F] * cell[i]);
      const float state = a[O] * tanhf(cell[i]);
      Recurrent::set(after, lane.unit(j), lane.row(k), STATE_SCALE * state);
      machine::store_if(writes, h + row * H + lane.unit(j), state);
      machine::store_if(writes, c + row * H + lane.unit(j), cell[i]);
    });
    float* const read = before;
    before = after;
    after = read;
    kept += 4 * step;
    h += step;
    c += step;
  }
}
