// elman_forward.cu by teams of blocks; `words` has zeros.
#include "elman_team.cuh"

using Recurrent = Weights<0, H, UNITS, COMPLEX>;
static_assert(Recurrent::FLOATS + Recurrent::SUMS <= MEMORY);

extern "C" __global__ __launch_bounds__(THREADS, 1) void elman_team_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ h, float* __restrict__ z,
    machine::Word* __restrict__ words, const long long* __restrict__ table, int T, int B,
    int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);
  const Member member;
  const int unit = unit_at(member.unit);

  Recurrent recurrent;
  recurrent.init(memory, [&](int output, int k) {
    const int place = member.first + output;
    return place < H ? W[unit_at(place) * (long long)H + unit_at(k)] : 0.0f;
  });
  float* const sums = memory + Recurrent::FLOATS;
  Gather board(words, member.team);
  const float bias = PHI >= MODRELU && member.here ? b[threshold_at(member.unit)] : 0.0f;

  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const int rows = min(ROWS, B - first);
    const long long row = first + member.row;
    const bool begins = member.here && member.row < rows;
    __syncthreads();  // the inputs are zero, or of the rows before
    for (int i = threadIdx.x; i < rows * H; i += THREADS)
      recurrent.set(i / H, i % H, h0[(first + i / H) * (long long)H + unit_at(i % H)]);
    float state = begins ? h0[row * H + unit] : 0.0f;

    Steps steps(table, first, T, B, reverse), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    float next = 0;
    const auto fetch = [&] {
      if (member.here && row < steps_ahead.rows) next = x[ahead * H + unit];
      ahead += steps_ahead.advance();
    };
    fetch();
    __syncthreads();
    for (int t = 0; t < steps.T; ++t) {
      const float input = next;
      const bool counts = member.here && row < steps.rows, more = t < steps.T - 1;
      recurrent.multiply(sums);
      float value = 0;
      if (counts) value = recurrent.output(sums, member.row, member.lane) + input;
      float result;
      if constexpr (PHI == MODRELU_STACKED)
        result = value * Complex(value, partner(value), bias).scale;
      else
        result = activate<PHI>(value, bias);
      if (counts) state = result;
      if (more) board.post(member, rows, state);
      if (counts) {
        h[at * H + unit] = state;
        if constexpr (PHI == MODRELU_STACKED) z[at * H + unit] = value;
      }
      at += steps.advance();
      if (more) {
        fetch();
        board.collect(rows, recurrent);
      }
    }
  }
}
