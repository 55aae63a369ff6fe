// The gradient of rotated_forward.cu, last step first: delta_t, the gradient of z_t, (T, B, 2N);
// grad_h0; and from each row and unit what it adds to the gradients of angles and of phases,
// partial_angles (B, LAYERS, N) and partial_phases (B, LAYERS + 1, N), those of D last, and to that of
// b, partial_b (B, N). Gradients of complex numbers are complex: g stands for Re(conj(g) dh).
//
// W takes h_{t-1} forward once more. Then all turns are undone, those of W h_{t-1} as those of its
// gradient, from D to the first that was applied: nothing between them is kept.
#include "rotated.cuh"

struct alignas(16) Both {
  Number v, g;
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void rotated_backward(
    const float* __restrict__ grad_h, const float* __restrict__ z, const float* __restrict__ h0,
    const float* __restrict__ theta, const float* __restrict__ phi,
    const float* __restrict__ omega, const float* __restrict__ b, float* __restrict__ delta,
    float* __restrict__ grad_h0, float* __restrict__ partial_angles,
    float* __restrict__ partial_phases, float* __restrict__ partial_b,
    const long long* __restrict__ table, int T, int B, int reverse) {
  extern __shared__ float4 shared[];
  Memory<Both> memory(shared);
  fill(memory.turns, theta, phi);
  const Row row(table, T, B, reverse);
  h0 += row.row * 2 * N;
  Number D[EACH];
  float threshold[EACH];
  each_unit([&](int e, int i) {
    D[e] = phase(omega[i], 1);
    threshold[e] = b[i];
  });

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
  if (row.T > 0) {
    read_saved(row.T - 1, saved);
    read_saved(row.T - 2, saved_before);
    read_added(row.T - 1);
  }

  Both at[EACH] = {}, others[EACH];  // a state, or what it became, and its gradient
  float of_angles[LAYERS + 1][EACH] = {}, of_phases[LAYERS + 1][EACH] = {}, grad_b[EACH] = {};
#pragma unroll 1
  for (int t = row.T - 1; t >= 0; --t) {
    const long long step = row.at(t);
    each_unit([&](int e, int i) {
      const Number own = saved[e], total = at[e].g + added[e];
      const Complex phi(own.re, own.im, threshold[e]);
      const float radial = phi.inverse * (own.re * total.re + own.im * total.im);
      const float bent = radial * phi.curvature;
      const Number d = {phi.scale * total.re + bent * own.re, phi.scale * total.im + bent * own.im};
      grad_b[e] += radial;
      write_unit(delta + step, i, d);
      at[e].v = t > 0 ? activated(saved_before[e], threshold[e]) : saved_before[e];
      at[e].g = inner(D[e], d);
    });
    // long before they are needed
    each_unit([&](int e, int) { saved[e] = saved_before[e]; });
    if (t > 0) {
      read_saved(t - 2, saved_before);
      read_added(t - 1);
    }
    each_layer_back([&](auto layer) {
      memory.exchange(layer, at, others);
      each_unit([&](int e, int i) { at[e].v = turned(at[e].v, others[e].v, memory.of(layer, i)); });
    });
    each_unit([&](int e, int) {
      of_phases[LAYERS][e] = plus_turn(of_phases[LAYERS][e], at[e].g, at[e].v);
    });
    each_layer([&](auto layer) {
      constexpr int L = decltype(layer)::INDEX;
      each_unit([&](int e, int i) {
        const Turn by = memory.of(layer, i);
        of_phases[L][e] = plus_turn(of_phases[L][e], at[e].g, at[e].v);
        at[e] = {unphased(at[e].v, by), unphased(at[e].g, by)};
      });
      memory.exchange(layer, at, others);
      each_unit([&](int e, int i) {
        const Turn by = memory.of(layer, i);
        const Number other = others[e].v, g = at[e].g;
        of_angles[L][e] = fmaf(g.re, other.re, fmaf(g.im, other.im, of_angles[L][e]));
        at[e] = {unturned(at[e].v, other, by), unturned(g, others[e].g, by)};
      });
    });
  }

  each_unit([&](int e, int i) {
    write_unit(grad_h0 + row.row * 2 * N, i, at[e].g);
    partial_b[row.row * N + i] = grad_b[e];
#pragma unroll
    for (int l = 0; l <= LAYERS; ++l) {
      if (l < LAYERS) partial_angles[(row.row * LAYERS + l) * N + i] = of_angles[l][e];
      partial_phases[(row.row * (LAYERS + 1) + l) * N + i] = of_phases[l][e];
    }
  });
}
