// What the two kernels of a recurrence with W = D3 R2 F^-1 D2 P R1 F D1 share. A block computes one
// row of the batch; units.cuh says how. sizes.cuh also defines TWIDDLES, how many of them there are;
// MEMORY, the bytes of shared memory; and what fourier.cuh needs.
#pragma once

#include "units.cuh"

#include "fourier.cuh"
#include "sums.cuh"

constexpr int WARPS = THREADS / 32;

// All that W and the activation have for a unit.
struct alignas(16) Unit {
  Number v1, D2;  // D2 is that of the place
  Number v2, D3;
  Number D1;
  float b;
  int place;  // where the permutation takes the unit
};

// The slots of sum_over_block.
constexpr int SLOTS = 2, SLOT_FLOATS = 4 * WARPS;

static_assert(sizeof(Unit) * N + sizeof(Number) * (2 * BUFFER + TWIDDLES) +
                  sizeof(float) * SLOTS * SLOT_FLOATS ==
              MEMORY);

// Shared memory.
struct Memory {
  Unit* units;
  Number *buffers, *twiddles;
  float* partials;  // of sums

  __device__ explicit Memory(float4* shared) : units(reinterpret_cast<Unit*>(shared)) {
    buffers = reinterpret_cast<Number*>(units + N);
    twiddles = buffers + 2 * BUFFER;
    partials = reinterpret_cast<float*>(twiddles + TWIDDLES);
  }

  template <int BUFFER_NUMBER>
  __device__ Number* buffer() const {
    return buffers + BUFFER_NUMBER * BUFFER;
  }
};

// The results of a transform that began in buffer 0 are here; the next one begins in the other one,
// so that a thread can fill that while others still read, and its results are in buffer 1.
constexpr int MIDDLE = TRANSFORMED<0>, SECOND = 1 - MIDDLE;
static_assert(TRANSFORMED<SECOND> == 1);

// w is (3, N), v (2, 2, N), b (N) and permutation (N). Transforms have no factor 1 / sqrt(N) of
// their own: D1 and D2 have it.
__device__ inline void init(const Memory& memory, const float* w, const float* v, const float* b,
                            const long long* permutation) {
  const double scale = 1 / sqrt((double)N);
#pragma unroll 1
  for (int i = threadIdx.x; i < N; i += THREADS) memory.units[permutation[i]].place = i;
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < N; i += THREADS) {
    Unit& unit = memory.units[i];
    unit.D1 = phase(w[i], scale);
    unit.D2 = phase(w[N + unit.place], scale);
    unit.D3 = phase(w[2 * N + i], 1);
    unit.v1 = read_unit(v, i);
    unit.v2 = read_unit(v + 2 * N, i);
    unit.b = b[i];
  }
  fill_twiddles(memory.twiddles);
  __syncthreads();
}

// The sums of one or two numbers over a block, to all threads. Two sums in a row, with no barrier
// in between, need different slots.
template <int SLOT, class... Numbers>
__device__ inline void sum_over_block(float* partials, Numbers&... numbers) {
  constexpr int COUNT = 2 * sizeof...(numbers);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float values[] = {numbers.re..., numbers.im...};
  float sum;
  if constexpr (COUNT == 4)
    sum = sum_four(values);
  else
    sum = sum_two(values[0], values[1]);
  static_assert(SLOT < SLOTS);
  partials += SLOT * SLOT_FLOATS;
  if (lane < COUNT) partials[warp * COUNT + lane] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int i = 0; i < (WARPS * COUNT + 31) / 32; ++i)
    if (lane + 32 * i < WARPS * COUNT) sum += partials[lane + 32 * i];
  sum = COUNT == 4 ? sum_over<4, 8, 16>(sum) : sum_over<2, 4, 8, 16>(sum);
  int real = 0, imaginary = COUNT / 2;
  ((numbers = {__shfl_sync(~0u, sum, real++), __shfl_sync(~0u, sum, imaginary++)}), ...);
}

// a - factor (v* a) v, where `along` is v* a
__device__ inline Number reflected(Number a, Number v, Number along, float factor) {
  return plus_product(a, {-factor * along.re, -factor * along.im}, v);
}
