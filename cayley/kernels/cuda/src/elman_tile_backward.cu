// elman_backward.cu by tiles; `inputs` and `words` have zeros.
#include "elman_tile.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void elman_tile_backward(
    const float* __restrict__ grad_h, const float* __restrict__ saved, const float* __restrict__ W,
    const float* __restrict__, float* __restrict__ delta, float* __restrict__ grad_h0,
    float* __restrict__ partial_b, float* inputs, unsigned* words,
    const long long* __restrict__ table, int T, int B, int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* const weights = reinterpret_cast<float*>(shared);  // (INPUTS, GROUPS, UNITS)
  float* const stages = weights + INPUTS * WIDTH;
  const Member member;
  RowSet sets[SETS];
  float carries[SETS][GROUPS][4], totals[SETS][GROUPS][4];

#pragma unroll
  for (int group = 0; group < GROUPS; ++group)
    load_weights<WIDTH>(weights + group * UNITS, member.rank * GROUPS + group,
                        [&](int unit, int k) { return W[k * (long long)H + unit]; });
#pragma unroll 1
  for (int s = 0; s < SETS; ++s) sets[s] = RowSet(inputs, words, s, teams, member);

  // what a step of a set reads
  const auto fetch = [&](const RowSet& set, float (&next)[GROUPS][2][4]) {
    const int rows = set.rows();
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const int unit = member.unit_of(group);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool counts = unit < H && i < rows;
        next[group][0][i] = counts ? grad_h[(set.at + i) * H + unit] : 0.0f;
        next[group][1][i] = counts ? saved[(set.at + i) * H + unit] : 0.0f;
      }
    }
  };
  // and what other blocks need of it
  const auto give = [&](int s, const float (&next)[GROUPS][2][4]) {
    RowSet& set = sets[s];
    const int rows = set.rows();
    float d[GROUPS][4];
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float g = carries[s][group][i] + next[group][0][i], save = next[group][1][i];
        d[group][i] = i < rows ? slope<PHI>(save) * g : 0.0f;
        totals[s][group][i] += save < 0 ? -d[group][i] : d[group][i];
      }
      Progress::post(member, set.next(), d[group], group);
    }
    set.progress.tell(member);
    // while they are on their way
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
      const int unit = member.unit_of(group);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (unit < H && i < rows) delta[(set.at + i) * H + unit] = d[group][i];
    }
  };

  for (int top = 0; top < B; top += SETS * teams * ROWS) {
#pragma unroll 1
    for (int s = 0; s < SETS; ++s) {
      sets[s].begin(table, top + (s * teams + member.team) * ROWS, T, B, !reverse, member);
      if (sets[s].steps.T == 0) continue;
#pragma unroll
      for (int i = 0; i < 4 * GROUPS; ++i) carries[s][i / 4][i % 4] = totals[s][i / 4][i % 4] = 0;
      float next[GROUPS][2][4];
      fetch(sets[s], next);
      give(s, next);
    }
    for (int t = 0; t < sets[0].steps.T; ++t)
#pragma unroll 1
      for (int s = 0; s < SETS; ++s) {
        RowSet& set = sets[s];
        if (t >= set.steps.T) continue;
        const bool more = t < set.steps.T - 1;
        const int rows = set.rows();
        set.advance();
        float next[GROUPS][2][4];
        if (more) fetch(set, next);
        set.progress.wait();
        Tile<GROUPS> tile;
        tile.clear();
        tile.add(set.last(), weights, stages);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
          float sums[4];
          if (group > 0) __syncthreads();  // all have read the sums
          tile.total(group, member, stages, sums);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (i < rows) carries[s][group][i] = sums[i];
        }
        if (more)
          give(s, next);
        else
          __syncthreads();
      }
#pragma unroll 1
    for (int s = 0; s < SETS; ++s)
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        const int unit = member.unit_of(group);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (unit < H && sets[s].first + i < B) {
            const long long place = (sets[s].first + i) * (long long)H + unit;
            grad_h0[place] = carries[s][group][i];
            if (PHI == MODRELU) partial_b[place] = totals[s][group][i];
          }
      }
  }
}
