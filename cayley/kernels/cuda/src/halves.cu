// The halves of R rows, from row `top` on, of the factors of a sum over rows of a_k b_kᵀ, see
// columns.cuh, of G networks: for a, (2, G, R, M), the nearest ones and the rests, as tensor.cuh says;
// for b, (2, G, R, N), the rests and the nearest ones. Rows from K on are 0; M and N are multiples of
// four. Each column has a scale of its own, for its largest modulus: `largest` has the bits of those of
// a, and then of b, and `down` gets what to multiply their products with. A block has DEPTH rows of a
// or b. sizes.cuh also defines THREADS and SEVERAL, which networks.cuh explains.
#include "sizes.cuh"

#include "columns.cuh"
#include "networks.cuh"
#include "tensor.cuh"

struct alignas(8) FourHalves {
  unsigned short at[4];
};

extern "C" __global__ __launch_bounds__(THREADS) void halves(
    const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ first,
    const unsigned* __restrict__ largest, unsigned short* __restrict__ of_a,
    unsigned short* __restrict__ of_b, float* __restrict__ down, int K, int F, int reverse,
    int top, int R, int G, int shared_arrays) {
  a = of_network(a, shared_arrays, 0, (long long)K * M);
  b = of_network(b, shared_arrays, 1, (long long)K * N);
  first = of_network(first, shared_arrays, 2, (long long)F * N);
  largest = of_network(largest, shared_arrays, 3, M + N);
  of_a = of_network(of_a, shared_arrays, 4, (long long)R * M);
  of_b = of_network(of_b, shared_arrays, 5, (long long)R * N);
  down = of_network(down, shared_arrays, 6, M + N);

  constexpr int OF_A = (M + SIDE - 1) / SIDE, GROUPS = OF_A + (N + SIDE - 1) / SIDE;
  const int group = blockIdx.x % GROUPS, begin = blockIdx.x / GROUPS * DEPTH;
  const bool is_a = group < OF_A;
  const Columns columns = is_a ? Columns(a, a, M, group * SIDE, K, 0, 0)
                               : Columns(b, first, N, (group - OF_A) * SIDE, K, first ? F : 0, reverse);
  const int width = columns.width, start = is_a ? 0 : M;
  if (columns.count == 0) return;
  float up[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Scale scale(largest[start + columns.column + i]);
    up[i] = scale.up;
    if (begin == 0 && threadIdx.x < FOURS) down[start + columns.column + i] = scale.down;
  }
  unsigned short* const first_half = (is_a ? of_a : of_b) + columns.column;
  unsigned short* const second_half = first_half + (long long)G * R * width;
#pragma unroll 4
  for (int k = begin + threadIdx.x / FOURS; k < min(begin + DEPTH, R); k += NEXT) {
    const Four four = columns.read(top + k, K);
    FourHalves nearest, rests;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Halves halves(up[i] * four.at[i]);
      nearest.at[i] = halves.nearest;
      rests.at[i] = halves.rest;
    }
    const FourHalves one = is_a ? nearest : rests, other = is_a ? rests : nearest;
    const long long place = (long long)k * width;
    *reinterpret_cast<FourHalves*>(first_half + place) = one;
    *reinterpret_cast<FourHalves*>(second_half + place) = other;
  }
}
