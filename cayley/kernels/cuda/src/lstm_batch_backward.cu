// The gradient of lstm_batch_forward.cu, from the last step to the first. `da`, the gradient of
// W h + b, has machine::MISSING everywhere; unlike all else it has the gates of a unit side by
// side, so that they travel together.
#include "lstm_batch.cuh"

using Back = Product<GATES * H, TEAM * UNITS, 4, IN_TEAM ? 64 : 16>;

// The statistics of the unit that a step reads: m, mean and scale of every feature.
constexpr int STATISTICS = 3 * FEATURES;
static_assert(STATISTICS <= 32, "each has a lane");

// The gradient of N. With S1 and S2 the sums over the rows of G and G z, where G is the gradient of
// z times the scale, those of mean and variance of the window of step t are p = -S1 and
// q = -scale S2 / 2. Each is divided by the number of values in the window and given to all of
// them.
template <int FIRST, int VALUES>
struct NormBack : Parameters<FIRST, VALUES> {
  using Base = Parameters<FIRST, VALUES>;

  const float* external;  // (4, T, WIDTH)
  float m[VALUES], mean[VALUES], scale[VALUES];
  float p[VALUES], q[VALUES];  // each divided by that number
  // what pull() needs: the factor of d, the mean of d, so that nothing is left where a row is alone,
  // and what comes beside it, slope z + rest
  float factor[VALUES], middle[VALUES], slope[VALUES], rest[VALUES];
  float total[2 * VALUES];  // the sums over the rows of d and d z
  float dm[VALUES];         // the gradient of the mean of a step, divided by the number of rows

  float parameters = 0;  // the gradient of β, or of γ, that a lane has
  float common = 0;      // that of what is added to all values, of every 8th lane

  __device__ NormBack(float* memory, const Site& site, const Member& member, const float* external)
      : Base(memory, site, member), external(external) {}

  // Statistics of a step, each with one lane.
  __device__ void take(float statistic) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      m[i] = WINDOWED ? __shfl_sync(~0u, statistic, 3 * (FIRST + i)) : 0.0f;
      mean[i] = __shfl_sync(~0u, statistic, 3 * (FIRST + i) + 1);
      scale[i] = __shfl_sync(~0u, statistic, 3 * (FIRST + i) + 2);
      factor[i] = Base::gamma(i) * scale[i];
    }
  }

  // z of a value of step t, the reference included.
  __device__ float normal(int i, float a, int t, int T, int row) const {
    float own = mean[i], factor = scale[i];
    if constexpr (GIVEN) Base::read(i, t, T, row, own, factor);
    return (a - Base::reference(i) - own) * factor;
  }

  // From the gradients d of γ z + β and from z, of all rows at step t, with 1/n for the number n of
  // values in its window.
  __device__ void finish(RowSums& sums, const Window& window, const Member& member,
                         const float (&d)[ITEMS][VALUES], const float (&z)[ITEMS][VALUES],
                         int rows, float share, int t, int T) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      total[i] = member.has(0, rows) ? d[0][i] : 0.0f;
      total[VALUES + i] = total[i] * z[0][i];
#pragma unroll
      for (int item = 1; item < ITEMS; ++item) {
        const float own = member.has(item, rows) ? d[item][i] : 0.0f;
        total[i] += own;
        total[VALUES + i] = fmaf(own, z[item][i], total[VALUES + i]);
      }
    }
    sums.sum(member, total);
    if (GIVEN || !member.here) return;
    const float part = inverse_of(rows), weight = WINDOWED ? share : part;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      // 2 q / scale, to which comes that of other variances
      const float S2 = factor[i] * total[VALUES + i];
      slope[i] = -weight * S2;
      middle[i] = weight * total[i];
      dm[i] = rest[i] = 0;
      if (!WINDOWED && !EXTERNAL) continue;
      float dv = 0;
      if constexpr (WINDOWED) {
        const float* const after = window.total(FIRST + i);
        p[i] = -factor[i] * middle[i];
        q[i] = 0.5f * scale[i] * slope[i];
        dv = after[1];
        dm[i] = after[0] + 2 * ((dv + q[i]) * m[i] - fmaf(q[i], mean[i], after[2]));
      }
      if (EXTERNAL && external) {
        const float* const own = external + (long long)t * Base::WIDTH + Base::at(i);
        dm[i] = fmaf(part, own[0], dm[i]);
        dv = fmaf(part, own[(long long)T * Base::WIDTH], dv);
      }
      slope[i] += __fdividef(2 * dv, scale[i]);
      // z / scale + mean - m is what is left after the mean of the step is taken away
      rest[i] = dm[i];
      if constexpr (WINDOWED) rest[i] += 2 * (dv + q[i]) * (mean[i] - m[i]);
    }
  }

  // Adds what parameters get of a step, after finish().
  __device__ void settle(const Member& member, int rows) {
    if (!member.here) return;
    parameters += own_of(member, total);
    if constexpr (!GIVEN && VALUES == GATES)
#pragma unroll
      for (int i = 0; i < VALUES; ++i)
        // the sum of all that pull() gives, since the values less their mean have none
        if (member.lane / 8 == i)
          common += fmaf(rows, dm[i], factor[i] * fmaf(-middle[i], rows, total[i]));
  }

  // The gradient of the value of a row at step t, from d and z.
  __device__ float pull(int i, float d, float z, int t, int T, int row) const {
    if constexpr (GIVEN) {
      float mean, scale;
      Base::read(i, t, T, row, mean, scale);
      return d * Base::gamma(i) * scale;
    }
    return fmaf(factor[i], d - middle[i], fmaf(slope[i], z, rest[i]));
  }

  // Lets the window begin with step t, by the first warp alone.
  __device__ void remember(Window& window, int t) const {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) window.put(FIRST + i, t, p[i], q[i], q[i] * mean[i]);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < VALUES; ++i) {
      const float* const entries = window.steps + 3 * (FIRST + i) * window.length;
      float sums[4] = {};
#pragma unroll 1
      for (int k = threadIdx.x % 32; k < window.length; k += 32)
#pragma unroll
        for (int j = 0; j < 3; ++j) sums[j] += entries[3 * k + j];
      scatter_sums<32, 4>(threadIdx.x % 32, sums);
      if (threadIdx.x % 8 == 0) window.totals[4 * (FIRST + i) + threadIdx.x % 32 / 8] = sums[0];
    }
    __syncwarp();  // who reads the totals may be another lane
  }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_batch_backward(
    const float* __restrict__ x, const float* __restrict__ grad_h, const float* __restrict__ grad_c,
    const float* __restrict__ external_x, const float* __restrict__ external_h,
    const float* __restrict__ external_c, const float* __restrict__ c,
    const float* __restrict__ kept, const float* __restrict__ statistics_x,
    const float* __restrict__ statistics_h, const float* __restrict__ statistics_c,
    const float* __restrict__ c0, const float* __restrict__ W, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* __restrict__ reference_x,
    const float* __restrict__ given_x, const float* __restrict__ gamma_h,
    const float* __restrict__ beta_h, const float* __restrict__ reference_h,
    const float* __restrict__ given_h, const float* __restrict__ gamma_c,
    const float* __restrict__ beta_c, const float* __restrict__ reference_c,
    const float* __restrict__ given_c, float* __restrict__ dx, float* da,
    float* __restrict__ grad_h0, float* __restrict__ grad_c0, float* __restrict__ grad_parameters,
    const long long* __restrict__ table, int T, int B, int K, int rows_x, int rows_h, int rows_c,
    int x_row, int x_feature, int kept_row, int kept_feature, int dx_row, int dx_feature) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const Member member;
  const Rows<const float> inputs = {x, x_row, x_feature};
  const Rows<const float> kept_gates = {kept, kept_row, kept_feature};
  const Rows<float> of_inputs = {dx, dx_row, dx_feature};

  Back back;
  back.init(memory, [&](int output, int k) {
    const int unit = blockIdx.x / TEAM * TEAM * UNITS + output;
    return unit < H ? W[(k % GATES * H + k / GATES) * (long long)H + unit] : 0.0f;
  });
  Products<UNITS> products(memory += Back::FLOATS);
  products.init();
  RowSums sums = {memory += decltype(products)::FLOATS};
  float* const parameters = memory += RowSums::FLOATS;
  Window window(memory + PARAMETERS, member, K);

  NormBack<OF_X, GATES> N_x(parameters, {gamma_x, beta_x, reference_x, given_x, rows_x}, member,
                            external_x);
  NormBack<OF_H, GATES> N_h(parameters, {gamma_h, beta_h, reference_h, given_h, rows_h}, member,
                            external_h);
  NormBack<OF_C, 1> N_c(parameters, {gamma_c, beta_c, reference_c, given_c, rows_c}, member,
                        external_c);
  __syncthreads();

  // the statistic of this lane
  const int feature = member.lane / 3, kind = member.lane % 3 + (member.lane % 3 > 0);
  const int width = feature < OF_C ? GATES * H : H;
  const float* statistic = nullptr;
  if (!GIVEN && member.here && member.lane < STATISTICS) {
    if (feature < OF_H)
      statistic = NORM_X ? statistics_x : nullptr;
    else if (feature < OF_C)
      statistic = NORM_H ? statistics_h : nullptr;
    else
      statistic = NORM_C ? statistics_c : nullptr;
    if (statistic) statistic += (long long)kind * T * width + feature % GATES * H + member.unit;
  }

  Steps steps(table, 0, T, B, true), steps_read = steps;
  long long at = steps.first, at_read = at;
  int t_read = T - 1;
  constexpr int READS = 2 * GATES + 3;
  float next[ITEMS][READS] = {}, next_statistic = 0;
  // What a step needs, two steps before it: loads of one unit of many rows take long to issue, and
  // should not be in the way of what the other blocks wait for.
  const auto read = [&] {
    const int rows = steps_read.rows;
    const long long now = at_read;
    at_read += steps_read.advance();
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.has(item, rows)) {
        const long long row = member.row(item), unit = (now + row) * H + member.unit;
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          next[item][i] = kept_gates.at(member, now, item, i);
          if (NORM_X || NORM_H) next[item][GATES + i] = inputs.at(member, now, item, i);
        }
        if (grad_h) next[item][2 * GATES] = grad_h[unit];
        if (grad_c) next[item][2 * GATES + 1] = grad_c[unit];
        next[item][2 * GATES + 2] =
            (t_read > 0 ? c + (at_read + row) * H : c0 + row * H)[member.unit];
      }
    if (statistic) next_statistic = statistic[(long long)t_read * width];
    --t_read;
  };

  float cell_before[ITEMS] = {}, z_x[ITEMS][GATES] = {}, z_h[ITEMS][GATES] = {};
  float z_c[ITEMS][1] = {}, from_h[ITEMS] = {}, from_c[ITEMS] = {};
  float slopes[ITEMS][GATES] = {};  // of the products in each gate, by that of c, or of h for O
  float forget[ITEMS] = {}, to_cell[ITEMS] = {};  // from c to the one before, and from h to N_c
  float d[ITEMS][GATES] = {}, carry[ITEMS] = {};
  // What step t computes without the one after it.
  const auto prepare = [&](int t, int rows) {
    if (!GIVEN && member.here) {
      if constexpr (NORM_X) N_x.take(next_statistic);
      if constexpr (NORM_H) N_h.take(next_statistic);
      if constexpr (NORM_C) N_c.take(next_statistic);
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.has(item, rows)) {
        const int row = member.row(item);
        float gate[GATES];
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          gate[i] = next[item][i];
          float input = next[item][GATES + i];
          if constexpr (NORM_X) {
            z_x[item][i] = N_x.normal(i, input, t, T, row);
            input = N_x.apply(i, z_x[item][i]);
          }
          if constexpr (NORM_H) {
            z_h[item][i] = gate[i];
            gate[i] = activate_gate(i, N_h.apply(i, z_h[item][i]) + input);
          }
        }
        from_h[item] = next[item][2 * GATES];
        from_c[item] = next[item][2 * GATES + 1];
        float tanh_c = cell_before[item];  // of the step after it
        if constexpr (NORM_C) {
          z_c[item][0] = N_c.normal(0, cell_before[item], t, T, row);
          tanh_c = N_c.apply(0, z_c[item][0]);
        }
        tanh_c = tanhf(tanh_c);
        cell_before[item] = next[item][2 * GATES + 2];
        forget[item] = gate[F];
        to_cell[item] = gate[O] * (1 - tanh_c * tanh_c);
        slopes[item][I] = gate[G] * (gate[I] * (1 - gate[I]));
        slopes[item][F] = cell_before[item] * (gate[F] * (1 - gate[F]));
        slopes[item][G] = gate[I] * (1 - gate[G] * gate[G]);
        slopes[item][O] = tanh_c * (gate[O] * (1 - gate[O]));
      }
  };

  // Cells after the last step of each row, of which longer rows have the later ones.
#pragma unroll
  for (int item = 0; item < ITEMS; ++item)
    if (member.has(item, B)) {
      const int row = member.row(item), last = steps_of(table, row, T) - 1;
      cell_before[item] = c[(start_of(table, last, T, B) + row) * H + member.unit];
    }
  int n = 0;  // of the values in the window of a step
  const auto rows_at = [&](int t) { return PACKED ? (int)table[t] : B; };
  if constexpr (WINDOWED)
#pragma unroll 1
    for (int t = T < K ? 0 : T - K; t < T; ++t) n += rows_at(t);

  if (IN_TEAM && is_worker()) {
    for (int t = T - 1; t >= 0; --t) {
      if (has_units(blockIdx.x)) wait_for_members();
      products.compute<true>(back, da + at * GATES * H, steps.rows);
      at += steps.advance();
    }
    return;
  }
  if (!has_units(blockIdx.x)) return;
  if (IN_TEAM && H % (TEAM * UNITS) == 0 && !member.here) __builtin_unreachable();
  read();
  prepare(T - 1, steps.rows);
  if (T > 1) read();
  float grad_bias = 0;  // that a lane has
  int rows_after = 0;
  sync_members();  // the weights and the window are there
  for (int t = T - 1; t >= 0; --t) {
    const int rows = steps.rows;
    const float share = WINDOWED ? __fdividef(1, n) : 0.0f;
    float dh[ITEMS] = {}, dc[ITEMS][1] = {};
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.computes(item, rows)) {
        const int row = member.row(item);
        dh[item] = from_h[item];
        if (row < rows_after) dh[item] += products.at(member.slot, row);
        // rounded before their mean is taken away, not fused with it: a row that is alone gets 0
        dc[item][0] = __fmul_rn(dh[item], to_cell[item]);
      }
    if constexpr (NORM_C) N_c.finish(sums, window, member, dc, z_c, rows, share, t, T);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.computes(item, rows)) {
        const bool there = member.has(item, rows);
        float own = dc[item][0];
        if constexpr (NORM_C)
          if (!GIVEN || there) own = N_c.pull(0, own, z_c[item][0], t, T, member.row(item));
        own += from_c[item] + carry[item];
        carry[item] = there ? own * forget[item] : 0.0f;
#pragma unroll
        for (int i = 0; i < GATES; ++i)
          d[item][i] = __fmul_rn(slopes[item][i], i == O ? dh[item] : own);
      }
    if constexpr (NORM_H) N_h.finish(sums, window, member, d, z_h, rows, share, t, T);
    float bias[GATES] = {};
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.has(item, rows)) {
        const int row = member.row(item);
        float own[GATES];
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          own[i] = d[item][i];
          if constexpr (NORM_H) own[i] = N_h.pull(i, own[i], z_h[item][i], t, T, row);
          bias[i] += own[i];
        }
        machine::publish(da + ((at + row) * H + member.unit) * GATES, own);
      }
    tell_workers();
    // while it is on its way
    if constexpr (!NORM_H || GIVEN) {
      sums.sum(member, bias);
      grad_bias += own_of(member, bias);
    }
    if constexpr (NORM_H) N_h.settle(member, rows);
    if constexpr (NORM_C) N_c.settle(member, rows);
    if constexpr (NORM_X) {
      N_x.finish(sums, window, member, d, z_x, rows, share, t, T);
      N_x.settle(member, rows);
    }
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.has(item, rows))
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          float own = d[item][i];
          if constexpr (NORM_X) own = N_x.pull(i, own, z_x[item][i], t, T, member.row(item));
          of_inputs.at(member, at, item, i) = own;
        }
    const long long now = at;
    at += steps.advance();
    if constexpr (WINDOWED) {
      sync_members();  // all have read the window
      if (Window::mine(member)) {
        if constexpr (NORM_X) N_x.remember(window, t);
        if constexpr (NORM_H) N_h.remember(window, t);
        if constexpr (NORM_C) N_c.remember(window, t);
      }
      n += (t >= K ? rows_at(t - K) : 0) - rows;
    }
    if (t > 0) prepare(t - 1, steps.rows);
    if (t > 1) read();
    if constexpr (!IN_TEAM) {
      __syncthreads();  // all have read the products
      products.compute<true>(back, da + now * GATES * H, rows);
    }
    products.take(rows);
    rows_after = rows;
  }
#pragma unroll
  for (int item = 0; item < ITEMS; ++item)
    if (member.has(item, B)) {
      const int row = member.row(item);
      grad_h0[row * (long long)H + member.unit] = products.at(member.slot, row);
      grad_c0[row * (long long)H + member.unit] = carry[item];
    }
  if (!member.here || member.part > 0) return;
  // β and γ of N_c, N_x and N_h, with every 16th or 4th lane, and b and, unless statistics are
  // given, what is added to all x, with every 8th
  float* out = grad_parameters + member.unit;
  if (member.lane % 16 == 0) out[member.lane / 16 * H] = N_c.parameters;
  out += 2 * H;
  if (member.lane % 4 == 0) {
    out[member.lane / 4 * H] = N_x.parameters;
    out[(2 * GATES + member.lane / 4) * H] = N_h.parameters;
  }
  if (member.lane % 8 == 0)
    out[(4 * GATES + member.lane / 8) * H] = NORM_H && !GIVEN ? N_h.common : grad_bias;
  if constexpr (!GIVEN && !NORM_X && NORM_H) {
    // the same as β of N_h
    if (member.lane % 4 == 0 && member.lane < 16)
      out[(5 * GATES + member.lane / 4) * H] = N_h.parameters;
  } else if (!GIVEN && member.lane % 8 == 0) {
    out[(5 * GATES + member.lane / 8) * H] = NORM_X ? N_x.common : grad_bias;
  }
}
