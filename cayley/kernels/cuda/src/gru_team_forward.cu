// gru_forward.cu by teams of blocks; `words` has zeros.
#include "gru.cuh"
#include "team.cuh"

using Gates = Weights<0, H, 2 * UNITS>;
using Candidate = Weights<1, H, UNITS>;
static_assert(Gates::FLOATS + Candidate::FLOATS + Gates::SUMS <= MEMORY);
static_assert(Gates::FLOATS + Candidate::FLOATS + Candidate::SUMS <= MEMORY);

extern "C" __global__ __launch_bounds__(THREADS, 1) void gru_team_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ h, float* __restrict__ saved,
    machine::Word* __restrict__ words, const long long* __restrict__ table, int T, int B,
    int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const Member member;

  Gates gates;
  gates.init(memory, [&](int output, int k) {
    const int unit = member.first + output % UNITS;
    return unit < H ? W[(output / UNITS * H + unit) * H + k] : 0.0f;
  });
  Candidate candidate;
  candidate.init(memory += Gates::FLOATS, [&](int output, int k) {
    const int unit = member.first + output;
    return unit < H ? W[(2 * H + unit) * H + k] : 0.0f;
  });
  float* const sums = memory + Candidate::FLOATS;
  Gather board(words, member.team);
  const float bias = PHI == MODRELU && member.here ? b[member.unit] : 0.0f;

  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const int rows = min(ROWS, B - first);
    const long long row = first + member.row;
    __syncthreads();  // the inputs are zero, or of the rows before
    for (int i = threadIdx.x; i < rows * H; i += THREADS)
      gates.set(i / H, i % H, h0[first * (long long)H + i]);
    const bool begins = member.here && member.row < rows;
    float state = begins ? h0[row * H + member.unit] : 0.0f;

    Steps steps(table, first, T, B, reverse), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    float next[3] = {};
    const auto fetch = [&] {
      if (member.here && row < steps_ahead.rows)
#pragma unroll
        for (int i = 0; i < 3; ++i) next[i] = x[(ahead * 3 + i) * H + member.unit];
      ahead += steps_ahead.advance();
    };
    fetch();
    __syncthreads();
    for (int t = 0; t < steps.T; ++t) {
      const float x_r = next[0], x_u = next[1], x_c = next[2];
      const bool counts = member.here && row < steps.rows;
      gates.multiply(sums);
      float r = 0, u = 0, c = 0;
      if (counts) {
        r = sigmoid(gates.output(sums, member.row, member.lane) + x_r);
        u = sigmoid(gates.output(sums, member.row, UNITS + member.lane) + x_u);
      }
      board.post(member, rows, r * state);
      if (t < steps.T - 1) fetch();
      board.collect(rows, candidate);
      candidate.multiply(sums);
      if (counts) {
        c = activate<PHI>(candidate.output(sums, member.row, member.lane) + x_c, bias);
        state = interpolate(state, c, u);
      }
      if (t < steps.T - 1) board.post(member, rows, state);
      if (counts) {
        h[at * H + member.unit] = state;
        float* const out = saved + at * 3 * H + member.unit;
        out[0] = r;
        out[H] = u;
        out[2 * H] = c;
      }
      at += steps.advance();
      if (t < steps.T - 1) board.collect(rows, gates);
    }
  }
}
