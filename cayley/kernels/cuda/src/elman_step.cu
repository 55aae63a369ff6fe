// One step h' = φ(U x + W h; b) of an Elman recurrence, for the few rows of a stream.
//
// sizes.cuh, which elman_step.py writes, defines THREADS, and PHI after the activations. A block
// computes 32 units of one row, or 32 complex ones; its warps share the terms of the sums.
#include "activations.cuh"
#include "sizes.cuh"

constexpr int LANES = 32, WARPS = THREADS / LANES;
constexpr int PARTS = PHI == MODRELU_STACKED ? 2 : 1;  // of a unit: real and imaginary

extern "C" __global__ __launch_bounds__(THREADS) void elman_step(
    const float* __restrict__ x, const float* __restrict__ h, const float* __restrict__ U,
    const float* __restrict__ Wt, const float* __restrict__ b, float* output, float* state, int I,
    int H, int tiles) {
  __shared__ float sums[PARTS][WARPS][LANES];
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  const int row = blockIdx.x / tiles, units = H / PARTS;
  const int unit = blockIdx.x % tiles * LANES + lane;
  const bool inside = unit < units;
  x += (long long)row * I;
  h += (long long)row * H;
  float z[PARTS] = {};
  if (inside) {
#pragma unroll 8
    for (int k = warp; k < H; k += WARPS)
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        z[part] = fmaf(h[k], Wt[(long long)k * H + part * units + unit], z[part]);
    for (int i = warp; i < I; i += WARPS)
#pragma unroll
      for (int part = 0; part < PARTS; ++part)
        z[part] = fmaf(x[i], U[(long long)(part * units + unit) * I + i], z[part]);
  }
#pragma unroll
  for (int part = 0; part < PARTS; ++part) sums[part][warp][lane] = z[part];
  __syncthreads();
  if (warp > 0 || !inside) return;
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int other = 1; other < WARPS; ++other) z[part] += sums[part][other][lane];
  if constexpr (PHI == MODRELU_STACKED) {
    const float scale = Complex(z[0], z[PARTS - 1], b[unit]).scale;
    for (float& value : z) value *= scale;
  } else if constexpr (PHI == MODRELU) {
    z[0] = activate<PHI>(z[0], b[unit]);
  } else {
    z[0] = activate<PHI>(z[0] + b[unit], 0.0f);
  }
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    const long long place = (long long)row * H + part * units + unit;
    output[place] = z[part];
    state[place] = z[part];
  }
}
