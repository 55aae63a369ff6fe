// gru_forward.cu by tiles; `inputs` and `words` have zeros.
#include "gru.cuh"
#include "tile.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void gru_tile_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ h, float* __restrict__ saved, float* inputs,
    unsigned* words, const long long* __restrict__ table, int T, int B, int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* const gate_weights = reinterpret_cast<float*>(shared);
  float* const candidate_weights = gate_weights + 2 * INPUTS * UNITS;
  float* const stages = candidate_weights + INPUTS * UNITS;
  const Member member;

#pragma unroll 1
  for (int i = 0; i < 3; ++i) {
    const auto entry = [&](int unit, int k) { return W[(i * H + unit) * (long long)H + k]; };
    if (i < 2)
      load_weights<2 * UNITS>(gate_weights + i * UNITS, member.rank, entry);
    else
      load_weights<UNITS>(candidate_weights, member.rank, entry);
  }
  float* const states = inputs + member.team * 2LL * INPUTS * ROWS;  // of all units
  float* const resets = states + INPUTS * ROWS;                      // r h of all units
  Progress progress(words, member);
  const float bias = PHI == MODRELU && member.unit < H ? b[member.unit] : 0.0f;

  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const long long row = first + member.row;
    float state[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      state[i] = member.unit < H && row + i < B ? h0[(row + i) * H + member.unit] : 0.0f;
    Progress::post(member, states, state);
    progress.tell(member);

    Steps steps(table, first, T, B, reverse), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    float next[3][4] = {};
    const auto fetch = [&] {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (member.unit < H && row + i < steps_ahead.rows)
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            next[gate][i] = x[((ahead + i) * 3 + gate) * H + member.unit];
      ahead += steps_ahead.advance();
    };
    fetch();
    for (int t = 0; t < steps.T; ++t) {
      float x_c[4], r[4], u[4], c[4], reset[4];
      progress.wait();
      Tile<2> gates;
      gates.clear();
      gates.add(states, gate_weights, stages);
      gates.total(0, member, stages, r);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r[i] = sigmoid(r[i] + next[0][i]);
        reset[i] = r[i] * state[i];
      }
      Progress::post(member, resets, reset);
      progress.tell(member);
      // while it is on its way
      gates.total(1, member, stages, u);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        u[i] = sigmoid(u[i] + next[1][i]);
        x_c[i] = next[2][i];
      }
      if (t < steps.T - 1) fetch();
      __syncthreads();  // all have read the sums
      progress.wait();
      Tile<1> candidate;
      candidate.clear();
      candidate.add(resets, candidate_weights, stages);
      candidate.total(0, member, stages, c);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[i] = activate<PHI>(c[i] + x_c[i], bias);
        if (row + i < steps.rows) state[i] = interpolate(state[i], c[i], u[i]);
      }
      if (t < steps.T - 1) {
        Progress::post(member, states, state);
        progress.tell(member);
      } else {
        __syncthreads();
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (member.unit < H && row + i < steps.rows) {
          h[(at + i) * H + member.unit] = state[i];
          float* const out = saved + (at + i) * 3 * H + member.unit;
          out[0] = r[i];
          out[H] = u[i];
          out[2 * H] = c[i];
        }
      at += steps.advance();
    }
  }
}
