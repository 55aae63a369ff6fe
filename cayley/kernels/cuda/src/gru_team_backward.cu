// gru_backward.cu by teams of blocks; `words` has zeros.
#include "gru.cuh"
#include "team.cuh"

using CandidateBack = Weights<0, H, UNITS>;
using GatesBack = Weights<1, 2 * UNITS, H>;
constexpr int SUMS =
    GatesBack::SUMS > CandidateBack::SUMS ? GatesBack::SUMS : CandidateBack::SUMS;
static_assert(CandidateBack::FLOATS + GatesBack::FLOATS + SUMS + Reduce::FLOATS <= MEMORY);

extern "C" __global__ __launch_bounds__(THREADS, 1) void gru_team_backward(
    const float* __restrict__ grad_h, const float* __restrict__ h, const float* __restrict__ saved,
    const float* __restrict__ h0, const float* __restrict__ W, float* __restrict__ delta,
    float* __restrict__ grad_h0, float* __restrict__ partial, float* __restrict__ factors,
    machine::Word* __restrict__ words, const long long* __restrict__ table, int T, int B,
    int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const Member member;

  CandidateBack candidate;
  candidate.init(memory, [&](int output, int k) {
    const int unit = member.first + output;
    return unit < H ? W[(2 * H + k) * H + unit] : 0.0f;
  });
  GatesBack gates;
  gates.init(memory += CandidateBack::FLOATS, [&](int output, int k) {
    const int unit = member.first + k % UNITS;
    return unit < H ? W[(k / UNITS * H + unit) * H + output] : 0.0f;
  });
  float* const sums = memory += GatesBack::FLOATS;
  float* const parts = memory + SUMS;
  Gather gather(words, member.team);
  Reduce reduce(words + teams * 2LL * Gather::SIZE, member.team);
  __syncthreads();

  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const int rows = min(ROWS, B - first);
    const long long row = first + member.row;
    const bool begins = member.here && member.row < rows;

    Steps steps(table, first, T, B, !reverse), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    int t_ahead = 0;
    float next[5] = {};  // grad_h, the state before, r, u and c
    const auto fetch = [&] {
      const bool counts = member.here && row < steps_ahead.rows;
      const long long now = ahead;
      ahead += steps_ahead.advance();
      if (counts) {
        next[0] = grad_h[now * H + member.unit];
        const bool begun = t_ahead < steps.T - 1 && row < steps_ahead.rows;  // by an earlier step
        next[1] = begun ? h[ahead * H + member.unit] : h0[row * H + member.unit];
#pragma unroll
        for (int i = 0; i < 3; ++i) next[2 + i] = saved[(now * 3 + i) * H + member.unit];
      }
      ++t_ahead;
    };
    fetch();
    float carry = 0, totals[4] = {};
    for (int t = 0; t < steps.T; ++t) {
      const float from_h = next[0], state = next[1], r = next[2], u = next[3], c = next[4];
      const bool counts = member.here && row < steps.rows;
      float g = 0, d_u = 0, d_c = 0, v = 0;
      if (counts) {
        g = carry + from_h;
        d_c = delta_candidate<PHI>(g, u, c);
        d_u = delta_update(g, state, u, c);
      }
      gather.post(member, rows, d_c);
      if (t < steps.T - 1) fetch();
      gather.collect(rows, candidate);
      candidate.multiply(sums);
      if (counts) v = candidate.output(sums, member.row, member.lane);
      const float d_r = delta_reset(v, state, r);
      if (begins) {
        gates.set(member.row, member.lane, d_r);
        gates.set(member.row, UNITS + member.lane, d_u);
      }
      __syncthreads();
      gates.multiply(sums);
      reduce.post<GatesBack>(member, rows, sums);
      if (counts) {
        float* const out = delta + at * 3 * H + member.unit;
        out[0] = d_r;
        out[H] = d_u;
        out[2 * H] = d_c;
        float* const factor = factors + at * 2 * H + member.unit;
        factor[0] = state;
        factor[H] = r * state;
        totals[0] += d_r;
        totals[1] += d_u;
        totals[2] += d_c;
        totals[3] += c < 0 ? -d_c : d_c;
      }
      at += steps.advance();
      const float sum = reduce.collect(member, rows, parts);
      if (counts) carry = carried(g, v, r, u) + sum;
    }
    if (begins) {
      grad_h0[row * H + member.unit] = carry;
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[(row * 4 + i) * H + member.unit] = totals[i];
    }
  }
}
