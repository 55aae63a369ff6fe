// All steps of an LSTM whose statistics are those of each unit over the rows, or given. `h` has
// machine::MISSING everywhere. `derived`, if it is not null, gets references that are then used.
#include "lstm_batch.cuh"
#include "references.cuh"

static_assert(!IN_TEAM);

using Recurrent = Product<H, GATES * UNITS, VECTOR, 32>;

// N of VALUES features of a unit, of which those in the window begin with FIRST.
template <int FIRST, int VALUES>
struct Norm : Parameters<FIRST, VALUES> {
  using Base = Parameters<FIRST, VALUES>;

  float* out;  // (4, T, WIDTH)
  float m[VALUES], v[VALUES], mean[VALUES], scale[VALUES];
  float middle[VALUES];  // the mean as the values are

  __device__ Norm(float* memory, const Site& site, const Member& member, float* statistics)
      : Base(memory, site, member), out(statistics) {}

  // The statistics of a step, from the values less the reference and less an origin, which is one
  // of them.
  __device__ void observe(RowSums& sums, const Window& window, const Member& member,
                          const float (&a)[ITEMS][VALUES], int rows,
                          const float (&origin)[VALUES]) {
    sums.moments(member, a, rows, middle, v);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) m[i] = origin[i] + middle[i];
    if (member.here) join(window, rows, origin);
  }

  // The same without one.
  __device__ void observe(RowSums& sums, const Window& window, const Member& member,
                          const float (&a)[ITEMS][VALUES], int rows) {
    sums.moments_of_any(member, a, rows, m, v);
    const float origin[VALUES] = {};
#pragma unroll
    for (int i = 0; i < VALUES; ++i) middle[i] = m[i];
    if (member.here) join(window, rows, origin);
  }

  // As those of step t.
  __device__ void write(const Member& member, int t, int T) const {
    if (!member.here || member.part > 0 || member.lane >= 4 * VALUES) return;
    float own = m[0];
#pragma unroll
    for (int i = 1; i < 4 * VALUES; ++i) {
      const auto& numbers = i < VALUES ? m : i < 2 * VALUES ? v : i < 3 * VALUES ? mean : scale;
      if (member.lane == i) own = numbers[i % VALUES];
    }
    const long long step = (long long)member.lane / VALUES * T + t;
    out[step * Base::WIDTH + Base::at(member.lane % VALUES)] = own;
  }

  // z of a value as it was observed, by the statistics of step t; given ones are of those less the
  // reference.
  __device__ float normal(int i, float a, int t, int T, int row) const {
    float own = middle[i], factor = scale[i];
    if constexpr (GIVEN) Base::read(i, t, T, row, own, factor);
    return (a - own) * factor;
  }

  // Lets the window end with step t, by the first warp alone.
  __device__ void remember(Window& window, int rows, int t) const {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) window.put(FIRST + i, t, rows, m[i], v[i]);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < VALUES; ++i) {
      // by a shift to the mean of one of the steps
      const float* const entries = window.steps + 3 * (FIRST + i) * window.length;
      const float shift = entries[3 * (t % window.length) + 1];
      float sums[4] = {};
#pragma unroll 1
      for (int k = threadIdx.x % 32; k < window.length; k += 32) {
        const float w = entries[3 * k], d = entries[3 * k + 1] - shift;
        sums[0] += w;
        sums[1] += w * d;
        sums[2] += w * fmaf(d, d, entries[3 * k + 2]);
      }
      scatter_sums<32, 4>(threadIdx.x % 32, sums);
      const float own = sums[0], n = __shfl_sync(~0u, own, 0);
      const float first = __shfl_sync(~0u, own, 8), second = __shfl_sync(~0u, own, 16);
      if (threadIdx.x % 32 == 0) {
        const float offset = __fdividef(first, n);
        float* const total = window.totals + 4 * (FIRST + i);
        total[0] = n;
        total[1] = shift + offset;
        total[2] = second - first * offset;
      }
    }
    __syncwarp();  // who reads the totals may be another lane
  }

 private:
  // Those of the window.
  __device__ void join(const Window& window, int rows, const float (&origin)[VALUES]) {
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      float variance = v[i];
      mean[i] = m[i];
      if constexpr (WINDOWED) {
        const float* const past = window.total(FIRST + i);
        const float inverse = __fdividef(1, past[0] + rows), share = rows * inverse;
        const float d = m[i] - past[1];
        mean[i] = fmaf(d, share, past[1]);
        middle[i] = mean[i] - origin[i];
        variance = inverse * (past[2] + rows * v[i] + d * d * share * past[0]);
      }
      scale[i] = scale_of(variance);
    }
  }
};

// What the means of each feature are measured from, (9H): near the value of least magnitude that
// the first row of x has over time, with a window near the bias of the products, and 0 for cells.
__device__ inline void derive_references(float* derived, const float* x, const float* b,
                                         const long long* table, const Member& member, int T,
                                         int B, int x_row, int x_feature) {
  if (!member.here) return;
  derived += member.unit;
#pragma unroll 1
  for (int i = member.part; i < GATES; i += PARTS) {
    float least = 3e38f;
#pragma unroll 4
    for (int t = NORM_X ? member.lane : T; t < T; t += 32) {
      const float value =
          x[start_of(table, t, T, B) * x_row + (i * H + member.unit) * (long long)x_feature];
      if (fabsf(value) < fabsf(least)) least = value;
    }
    least = least_of_warp(least);
    if (member.lane == 0) {
      derived[i * H] = coarse(least);
      derived[(OF_H + i) * H] = NORM_H && WINDOWED && b ? coarse(b[i * H + member.unit]) : 0.0f;
      if (i == 0) derived[OF_C * H] = 0;
    }
  }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void lstm_batch_forward(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ b, const float* __restrict__ gamma_x,
    const float* __restrict__ beta_x, const float* reference_x, const float* __restrict__ given_x,
    const float* __restrict__ gamma_h, const float* __restrict__ beta_h, const float* reference_h,
    const float* __restrict__ given_h, const float* __restrict__ gamma_c,
    const float* __restrict__ beta_c, const float* reference_c, const float* __restrict__ given_c,
    float* derived, float* h, float* __restrict__ c, float* __restrict__ kept,
    float* __restrict__ statistics_x, float* __restrict__ statistics_h,
    float* __restrict__ statistics_c, const long long* __restrict__ table, int T, int B, int K,
    int rows_x, int rows_h, int rows_c, int x_row, int x_feature, int kept_row,
    int kept_feature) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);
  const Member member;
  const Rows<const float> inputs = {x, x_row, x_feature};
  const Rows<float> kept_gates = {kept, kept_row, kept_feature};

  if (derived) {
    derive_references(derived, x, b, table, member, T, B, x_row, x_feature);
    __syncthreads();
    reference_x = derived;
    reference_h = derived + OF_H * H;
    reference_c = derived + OF_C * H;
  }
  Recurrent recurrent;
  recurrent.init(memory, [&](int output, int k) {
    const int unit = blockIdx.x * UNITS + output % UNITS, gate = output / UNITS;
    return unit < H ? W[(gate * H + unit) * H + k] : 0.0f;
  });
  Products<GATES * UNITS> products(memory += Recurrent::FLOATS);
  RowSums sums = {memory += decltype(products)::FLOATS};
  float* const parameters = memory += RowSums::FLOATS;
  Window window(memory + PARAMETERS, member, K);

  Norm<OF_X, GATES> N_x(parameters, {gamma_x, beta_x, reference_x, given_x, rows_x}, member,
                        statistics_x);
  Norm<OF_H, GATES> N_h(parameters, {gamma_h, beta_h, reference_h, given_h, rows_h}, member,
                        statistics_h);
  Norm<OF_C, 1> N_c(parameters, {gamma_c, beta_c, reference_c, given_c, rows_c}, member,
                    statistics_c);
  __syncthreads();  // the parameters are there
  float bias[GATES];
#pragma unroll
  for (int i = 0; i < GATES; ++i)
    bias[i] = (b && member.here ? b[i * H + member.unit] : 0.0f) - N_h.reference(i);

  // x is normalised a step before it is used, and read two steps before
  Steps steps(table, 0, T, B, false), steps_ahead = steps, steps_read = steps;
  long long at = 0, before = 0, at_read = 0;
  float cell[ITEMS] = {}, input[ITEMS][GATES] = {}, next[ITEMS][GATES] = {};
  const auto read = [&] {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.has(item, steps_read.rows))
#pragma unroll
        for (int i = 0; i < GATES; ++i)
          next[item][i] = inputs.at(member, at_read, item, i);
    at_read += steps_read.advance();
  };
  const auto normalize_input = [&](int t) {
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
#pragma unroll
      for (int i = 0; i < GATES; ++i) input[item][i] = next[item][i] - N_x.reference(i);
    if constexpr (NORM_X) {
      if constexpr (!GIVEN) {
        N_x.observe(sums, window, member, input, steps_ahead.rows);
        N_x.write(member, t, T);
      }
#pragma unroll
      for (int item = 0; item < ITEMS; ++item)
        if (member.has(item, steps_ahead.rows))
#pragma unroll
          for (int i = 0; i < GATES; ++i) {
            const float z = N_x.normal(i, input[item][i], t, T, member.row(item));
            input[item][i] = N_x.apply(i, z);
          }
    }
    // what else is added to the normalised products
    if constexpr (NORM_H)
#pragma unroll
      for (int item = 0; item < ITEMS; ++item)
#pragma unroll
        for (int i = 0; i < GATES; ++i) input[item][i] += N_h.beta(i);
  };

#pragma unroll
  for (int item = 0; item < ITEMS; ++item)
    if (member.has(item, B)) cell[item] = c0[member.row(item) * (long long)H + member.unit];
  read();
  __syncthreads();  // the weights and the window are there
  normalize_input(0);
  if (T > 1) read();
  __syncthreads();
  if (WINDOWED && NORM_X && Window::mine(member)) N_x.remember(window, steps_ahead.rows, 0);
  for (int t = 0; t < T; ++t) {
    const int rows = steps.rows;
    if (t > 0)
      products.compute<true>(recurrent, h + before * H, rows);
    else
      products.compute<false>(recurrent, h0, rows);
    float a[ITEMS][GATES] = {}, z[ITEMS][GATES], y[ITEMS][1] = {}, known[GATES] = {};
    if (member.here) {
      float origin[GATES] = {};
      if constexpr (NORM_H && !GIVEN)
#pragma unroll
        for (int i = 0; i < GATES; ++i) origin[i] = products.at(i * UNITS + member.slot, 0);
#pragma unroll
      for (int item = 0; item < ITEMS; ++item)
        if (member.computes(item, rows))
#pragma unroll
          for (int i = 0; i < GATES; ++i) {
            a[item][i] = products.at(i * UNITS + member.slot, member.row(item));
            // the bias is in the origin, too
            a[item][i] += NORM_H && !GIVEN ? -origin[i] : bias[i];
          }
      if constexpr (NORM_H && !GIVEN)
#pragma unroll
        for (int i = 0; i < GATES; ++i) known[i] = origin[i] + bias[i];
    }
    if constexpr (NORM_H && !GIVEN) N_h.observe(sums, window, member, a, rows, known);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.computes(item, rows)) {
#pragma unroll
        for (int i = 0; i < GATES; ++i) {
          z[item][i] = a[item][i];
          if constexpr (NORM_H) {
            if (!GIVEN || member.has(item, rows))
              z[item][i] = N_h.normal(i, a[item][i], t, T, member.row(item));
            a[item][i] = N_h.gamma(i) * z[item][i];
          }
          a[item][i] = activate_gate(i, a[item][i] + input[item][i]);
          if (!NORM_H) z[item][i] = a[item][i];
        }
        cell[item] = fmaf(a[item][I], a[item][G], a[item][F] * cell[item]);
        y[item][0] = cell[item] - N_c.reference(0);
      }
    if constexpr (NORM_C && !GIVEN) N_c.observe(sums, window, member, y, rows);
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.computes(item, rows)) {
        float own = y[item][0];
        if constexpr (NORM_C) {
          if (!GIVEN || member.has(item, rows))
            own = N_c.normal(0, own, t, T, member.row(item));
          own = N_c.apply(0, own);
        }
        own = a[item][O] * tanhf(own);
        if (member.has(item, rows))
          machine::publish(h + (at + member.row(item)) * H + member.unit, own);
      }
    const bool more = t + 1 < T;
    // while it is on its way
#pragma unroll
    for (int item = 0; item < ITEMS; ++item)
      if (member.has(item, rows)) {
        const long long row = at + member.row(item);
        c[row * H + member.unit] = cell[item];
#pragma unroll
        for (int i = 0; i < GATES; ++i)
          kept_gates.at(member, at, item, i) = z[item][i];
      }
    if constexpr (NORM_H && !GIVEN) N_h.write(member, t, T);
    if constexpr (NORM_C && !GIVEN) N_c.write(member, t, T);
    before = at;
    at += steps.advance();
    if (more) {
      steps_ahead.advance();
      normalize_input(t + 1);
      if (t + 2 < T) read();
    }
    __syncthreads();  // all have read the products, and the window
    if (WINDOWED && more && Window::mine(member)) {
      if constexpr (NORM_X) N_x.remember(window, steps_ahead.rows, t + 1);
      if constexpr (NORM_H) N_h.remember(window, rows, t);
      if constexpr (NORM_C) N_c.remember(window, rows, t);
    }
  }
}
