// elman_forward.cu by tiles; `inputs` and `words` have zeros.
#include "elman_tile.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void elman_tile_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ W,
    const float* __restrict__ b, float* __restrict__ h, float* __restrict__, float* inputs,
    unsigned* words, const long long* __restrict__ table, int T, int B, int reverse, int teams) {
  extern __shared__ float4 shared[];
  float* const weights = reinterpret_cast<float*>(shared);  // (INPUTS, GROUPS, UNITS)
  float* const stages = weights + INPUTS * WIDTH;
  const Member member;
  float bias[GROUPS];
  RowSet sets[SETS];

#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    const int unit = member.unit_of(group);
    bias[group] = PHI == MODRELU && unit < H ? b[unit] : 0.0f;
    load_weights<WIDTH>(weights + group * UNITS, member.rank * GROUPS + group,
                        [&](int unit, int k) { return W[unit * (long long)H + k]; });
  }
#pragma unroll 1
  for (int s = 0; s < SETS; ++s) sets[s] = RowSet(inputs, words, s, teams, member);
  // before a sequence begins, which it does late if time runs backwards
  const auto initial = [&](const RowSet& set, int unit, int i) {
    return unit < H && set.first + i < B ? h0[(set.first + i) * (long long)H + unit] : 0.0f;
  };

  for (int top = 0; top < B; top += SETS * teams * ROWS) {
#pragma unroll 1
    for (int s = 0; s < SETS; ++s) {
      RowSet& set = sets[s];
      set.begin(table, top + (s * teams + member.team) * ROWS, T, B, reverse, member);
      if (set.steps.T == 0) continue;
#pragma unroll
      for (int group = 0; group < GROUPS; ++group) {
        float state[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) state[i] = initial(set, member.unit_of(group), i);
        Progress::post(member, set.next(), state, group);
      }
      set.progress.tell(member);
    }
    for (int t = 0; t < sets[0].steps.T; ++t)
#pragma unroll 1
      for (int s = 0; s < SETS; ++s) {
        RowSet& set = sets[s];
        if (t >= set.steps.T) continue;
        const bool more = t < set.steps.T - 1;
        const int rows = set.rows();
        float next[GROUPS][4] = {};
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
          const int unit = member.unit_of(group);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (unit < H && i < rows) next[group][i] = x[(set.at + i) * H + unit];
        }
        set.progress.wait();
        Tile<GROUPS> tile;
        tile.clear();
        tile.add(set.last(), weights, stages);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
          const int unit = member.unit_of(group);
          float state[4];
          if (group > 0) __syncthreads();  // all have read the sums
          tile.total(group, member, stages, state);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            // from here on what will be written
            next[group][i] = activate<PHI>(state[i] + next[group][i], bias[group]);
            state[i] = i < rows ? next[group][i] : PACKED ? initial(set, unit, i) : 0.0f;
          }
          if (more) Progress::post(member, set.next(), state, group);
        }
        if (more)
          set.progress.tell(member);
        else
          __syncthreads();
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
          const int unit = member.unit_of(group);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (unit < H && i < rows) h[(set.at + i) * H + unit] = next[group][i];
        }
        set.advance();
      }
  }
}
