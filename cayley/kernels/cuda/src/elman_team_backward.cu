// elman_backward.cu by teams of blocks; `words` has zeros.
#include "elman_team.cuh"

using Back = Weights<0, H, UNITS, COMPLEX>;
static_assert(Back::FLOATS + Back::SUMS <= MEMORY);

extern "C" __global__ __launch_bounds__(THREADS, 1) void elman_team_backward(
    const float* __restrict__ grad_h, const float* __restrict__ saved, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ delta, float* __restrict__ grad_h0,
    float* __restrict__ partial_b, machine::Word* __restrict__ words,
    const long long* __restrict__ table, int T, int B, int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);
  const Member member;
  const int unit = unit_at(member.unit);

  Back back;
  back.init(memory, [&](int output, int k) {
    const int place = member.first + output;
    return place < H ? W[unit_at(k) * (long long)H + unit_at(place)] : 0.0f;
  });
  float* const sums = memory + Back::FLOATS;
  Gather board(words, member.team);
  const bool complex = PHI == MODRELU_STACKED;
  const float bias = complex && member.here ? b[threshold_at(member.unit)] : 0.0f;
  __syncthreads();

  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const int rows = min(ROWS, B - first);
    const long long row = first + member.row;
    const bool begins = member.here && member.row < rows;

    Steps steps(table, first, T, B, !reverse), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    float next = 0, next_saved = 0;
    const auto fetch = [&] {
      if (member.here && row < steps_ahead.rows) {
        next = grad_h[ahead * H + unit];
        next_saved = saved[ahead * H + unit];
      }
      ahead += steps_ahead.advance();
    };
    fetch();
    float carry = 0, grad_b = 0;
    for (int t = 0; t < steps.T; ++t) {
      const bool counts = member.here && row < steps.rows;
      const float g = counts ? carry + next : 0.0f, save = counts ? next_saved : 0.0f;
      float d;
      if constexpr (PHI == MODRELU_STACKED) {
        const float other = partner(save);
        const Complex phi(save, other, bias);
        const float radial = phi.inverse * (save * g + other * partner(g));
        d = phi.scale * g + radial * phi.curvature * save;
        grad_b += radial;
      } else {
        d = slope<PHI>(save) * g;
        grad_b += save < 0 ? -d : d;
      }
      board.post(member, rows, d);
      if (counts) delta[at * H + unit] = d;
      at += steps.advance();
      if (t < steps.T - 1) fetch();
      board.collect(rows, back);
      back.multiply(sums);
      if (counts) carry = back.output(sums, member.row, member.lane);
    }
    if (begins) grad_h0[row * H + unit] = carry;
    if (PHI >= MODRELU && begins && (!complex || member.unit % 2 == 0))
      partial_b[row * (complex ? H / 2 : H) + threshold_at(member.unit)] = grad_b;
  }
}
