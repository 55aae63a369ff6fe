// The gradient of composed_forward.cu, last step first: delta_t, the gradient of z_t, (T, B, 2N);
// grad_h0; and from each row those of w, partial_w (B, 3, N), of v, partial_v (B, 2, 2, N), and of
// b, partial_b (B, N). Gradients of complex numbers are complex: g stands for Re(conj(g) dh).
//
// What W* takes delta through is its own chain of transforms, and the gradients of w and v also
// need what W took h_{t-1} through: s = F D1 h, and u = F^-1 D2 P R1 s. These are computed again,
// in the same transforms as the second vector of each.
#include "composed.cuh"

// The gradient with respect to v of e = u - f v (v* u), with f = 2 / (v* v), is
// -f (conj(v* u) g + (g* v) u) + f^2 Re((g* v) (v* u)) v, with the gradient g of e.
struct Reflection {
  Number terms[EACH] = {};
  float products = 0;

  __device__ void add(int e, Number g, Number u, Number along, Number against) {
    terms[e] = plus_product(plus_inner(terms[e], along, g), against, u);
  }

  __device__ void add_product(Number along, Number against) {
    products = fmaf(against.re, along.re, fmaf(-against.im, along.im, products));
  }

  __device__ Number gradient(int e, Number v, float factor) const {
    const float times = factor * factor * products;
    return {fmaf(times, v.re, -factor * terms[e].re), fmaf(times, v.im, -factor * terms[e].im)};
  }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void composed_backward(
    const float* __restrict__ grad_h, const float* __restrict__ z, const float* __restrict__ h0,
    const float* __restrict__ w, const float* __restrict__ v, const float* __restrict__ factors,
    const float* __restrict__ b, const long long* __restrict__ permutation,
    float* __restrict__ delta, float* __restrict__ grad_h0, float* __restrict__ partial_w,
    float* __restrict__ partial_v, float* __restrict__ partial_b,
    const long long* __restrict__ table, int T, int B, int reverse) {
  static_assert(BATCH == 2);
  extern __shared__ float4 shared[];
  const Memory memory(shared);
  init(memory, w, v, b, permutation);
  const float factor1 = factors[0], factor2 = factors[1];
  const Row row(table, T, B, reverse);
  h0 += row.row * 2 * N;

  // z of a step, and before the first one h0
  Number saved[EACH], saved_before[EACH], added[EACH];
  const auto read_saved = [&](int t, Number (&to)[EACH]) {
    const float* const from = t < 0 ? h0 : z + row.at(t);
    each_unit([&](int e, int i) { to[e] = read_unit(from, i); });
  };
  const auto read_added = [&](int t) {
    const float* const from = grad_h + row.at(t);
    each_unit([&](int e, int i) { added[e] = read_unit(from, i); });
  };
  read_saved(row.T - 1, saved);
  if (row.T > 0) {
    read_saved(row.T - 2, saved_before);
    read_added(row.T - 1);
  }

  Number g[EACH] = {}, epsilon[EACH];
  float grad_w1[EACH] = {}, grad_w2[EACH] = {}, grad_w3[EACH] = {}, grad_b[EACH] = {};
  Reflection of_v1, of_v2;
#pragma unroll 1
  for (int t = row.T - 1; t >= 0; --t) {
    const long long step = row.at(t);
    Number against2 = {0, 0};
    each_unit([&](int e, int i) {
      const Unit& unit = memory.units[i];
      const Number at = saved[e], total = g[e] + added[e];
      const Complex phi(at.re, at.im, unit.b);
      grad_w1[e] = plus_turn(grad_w1[e], g[e], {phi.scale * at.re, phi.scale * at.im});
      const float radial = phi.inverse * (at.re * total.re + at.im * total.im);
      const float bent = radial * phi.curvature;
      const Number d = {phi.scale * total.re + bent * at.re, phi.scale * total.im + bent * at.im};
      grad_b[e] += radial;
      write_unit(delta + step, i, d);
      epsilon[e] = inner(unit.D3, d);
      against2 = plus_inner(against2, epsilon[e], unit.v2);
    });
    sum_over_block<0>(memory.partials, against2);
    each_unit([&](int e, int i) {
      const Unit& unit = memory.units[i];
      Number* const to = memory.buffer<0>() + place(i);
      const Number before = t > 0 ? activated(saved_before[e], unit.b) : saved_before[e];
      to[0] = unit.D1 * before;
      to[VECTOR] = reflected(epsilon[e], unit.v2, conjugate(against2), factor2);
    });

    transform<0>(memory.buffers, memory.twiddles);
    Number s[EACH], rho[EACH], along1 = {0, 0}, against1 = {0, 0};
    each_unit([&](int e, int i) {
      const Unit& unit = memory.units[i];
      const Number* const from = memory.buffer<MIDDLE>();
      s[e] = from[place(i)];
      rho[e] = inner(unit.D2, from[VECTOR + place(unit.place)]);
      along1 = plus_inner(along1, unit.v1, s[e]);
      against1 = plus_inner(against1, rho[e], unit.v1);
    });
    sum_over_block<0>(memory.partials, along1, against1);
    of_v1.add_product(along1, against1);
    each_unit([&](int e, int i) {
      const Unit& unit = memory.units[i];
      const Number kept = reflected(s[e], unit.v1, along1, factor1);
      grad_w2[e] = plus_turn(grad_w2[e], rho[e], kept);
      of_v1.add(e, rho[e], s[e], along1, against1);
      Number* const to = memory.buffer<SECOND>();
      to[place(unit.place)] = exchanged(unit.D2 * kept);
      to[VECTOR + place(i)] =
          exchanged(reflected(rho[e], unit.v1, conjugate(against1), factor1));
    });

    // long before they are needed
    each_unit([&](int e, int) { saved[e] = saved_before[e]; });
    if (t > 0) {
      read_saved(t - 2, saved_before);
      read_added(t - 1);
    }
    transform<SECOND>(memory.buffers, memory.twiddles);
    Number u[EACH], along2 = {0, 0};
    each_unit([&](int e, int i) {
      const Unit& unit = memory.units[i];
      const Number* const from = memory.buffer<1>() + place(i);
      u[e] = exchanged(from[0]);
      g[e] = inner(unit.D1, exchanged(from[VECTOR]));
      along2 = plus_inner(along2, unit.v2, u[e]);
    });
    sum_over_block<1>(memory.partials, along2);
    of_v2.add_product(along2, against2);
    each_unit([&](int e, int i) {
      const Unit& unit = memory.units[i];
      const Number kept = reflected(u[e], unit.v2, along2, factor2);
      grad_w3[e] = plus_turn(grad_w3[e], epsilon[e], kept);
      of_v2.add(e, epsilon[e], u[e], along2, against2);
    });
  }

  partial_w += row.row * 3 * N;
  partial_v += row.row * 4 * N;
  each_unit([&](int e, int i) {
    const Unit& unit = memory.units[i];
    write_unit(grad_h0 + row.row * 2 * N, i, g[e]);
    partial_w[i] = plus_turn(grad_w1[e], g[e], saved[e]);
    partial_w[N + unit.place] = grad_w2[e];
    partial_w[2 * N + i] = grad_w3[e];
    write_unit(partial_v, i, of_v1.gradient(e, unit.v1, factor1));
    write_unit(partial_v + 2 * N, i, of_v2.gradient(e, unit.v2, factor2));
    partial_b[row.row * N + i] = grad_b[e];
  });
}
