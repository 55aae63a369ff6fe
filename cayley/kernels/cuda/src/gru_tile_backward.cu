// gru_backward.cu by tiles; `inputs` and `words` have zeros.
#include "gru.cuh"
#include "tile.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void gru_tile_backward(
    const float* __restrict__ grad_h, const float* __restrict__ h, const float* __restrict__ saved,
    const float* __restrict__ h0, const float* __restrict__ W, float* __restrict__ delta,
    float* __restrict__ grad_h0, float* __restrict__ partial, float* __restrict__ factors,
    float* inputs, unsigned* words, const long long* __restrict__ table, int T, int B, int reverse,
    int teams) {
  extern __shared__ float4 shared[];
  float* const weights = reinterpret_cast<float*>(shared);  // (3, INPUTS, UNITS)
  float* const stages = weights + 3 * INPUTS * UNITS;
  const Member member;

#pragma unroll 1
  for (int i = 0; i < 3; ++i)
    load_weights<UNITS>(weights + i * INPUTS * UNITS, member.rank, [&](int unit, int k) {
      return W[(i * H + k) * (long long)H + unit];
    });
  // of all units: delta_r, delta_c, and delta_u twice, in turn: others may still read the last one
  float* const all_r = inputs + member.team * 4LL * INPUTS * ROWS;
  float* const all_c = all_r + INPUTS * ROWS;
  float* all_u = all_c + INPUTS * ROWS;
  float* other_u = all_u + INPUTS * ROWS;
  Progress progress(words, member);

  for (int first = member.team * ROWS; first < B; first += teams * ROWS) {
    const long long row = first + member.row;
    Steps steps(table, first, T, B, !reverse), steps_ahead = steps;
    long long at = steps.first + row, ahead = at;
    int t_ahead = 0;
    float next[5][4] = {};  // grad_h, the state before, r, u and c
    const auto fetch = [&] {
      const int rows = steps_ahead.rows;
      const long long now = ahead;
      ahead += steps_ahead.advance();
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (member.unit < H && row + i < rows) {
          next[0][i] = grad_h[(now + i) * H + member.unit];
          const bool begun = t_ahead < steps.T - 1 && row + i < steps_ahead.rows;
          next[1][i] = begun ? h[(ahead + i) * H + member.unit] : h0[(row + i) * H + member.unit];
#pragma unroll
          for (int gate = 0; gate < 3; ++gate)
            next[2 + gate][i] = saved[((now + i) * 3 + gate) * H + member.unit];
        }
      ++t_ahead;
    };
    fetch();
    float carry[4] = {}, totals[4][4] = {};
    for (int t = 0; t < steps.T; ++t) {
      float state[4], r[4], u[4], g[4], d_r[4], d_u[4], d_c[4], v[4], sum[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool counts = row + i < steps.rows;
        const float c = next[4][i];
        state[i] = next[1][i], r[i] = next[2][i], u[i] = next[3][i];
        g[i] = counts ? carry[i] + next[0][i] : 0.0f;
        d_c[i] = counts ? delta_candidate<PHI>(g[i], u[i], c) : 0.0f;
        d_u[i] = counts ? delta_update(g[i], state[i], u[i], c) : 0.0f;
        totals[3][i] += c < 0 ? -d_c[i] : d_c[i];
      }
      Progress::post(member, all_c, d_c);
      Progress::post(member, all_u, d_u);
      progress.tell(member);
      // while they are on their way
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (member.unit < H && row + i < steps.rows) {
          float* const out = delta + (at + i) * 3 * H + member.unit;
          out[H] = d_u[i];
          out[2 * H] = d_c[i];
          float* const factor = factors + (at + i) * 2 * H + member.unit;
          factor[0] = state[i];
          factor[H] = r[i] * state[i];
        }
      if (t < steps.T - 1) fetch();
      progress.wait();
      Tile<1> tile;
      tile.clear();
      tile.add(all_c, weights + 2 * INPUTS * UNITS, stages);
      tile.total(0, member, stages, v);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        d_r[i] = row + i < steps.rows ? delta_reset(v[i], state[i], r[i]) : 0.0f;
      Progress::post(member, all_r, d_r);
      progress.tell(member);
      tile.clear();
      tile.add(all_u, weights + INPUTS * UNITS, stages);
      progress.wait();
      tile.add(all_r, weights, stages);
      tile.total(0, member, stages, sum);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        totals[0][i] += d_r[i];
        totals[1][i] += d_u[i];
        totals[2][i] += d_c[i];
        if (row + i < steps.rows) {
          carry[i] = carried(g[i], v[i], r[i], u[i]) + sum[i];
          if (member.unit < H) delta[(at + i) * 3 * H + member.unit] = d_r[i];
        }
      }
      at += steps.advance();
      float* const last_u = all_u;
      all_u = other_u;
      other_u = last_u;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (member.unit < H && row + i < B) {
        grad_h0[(row + i) * H + member.unit] = carry[i];
#pragma unroll
        for (int gate = 0; gate < 4; ++gate)
          partial[((row + i) * 4 + gate) * H + member.unit] = totals[gate][i];
      }
  }
}
