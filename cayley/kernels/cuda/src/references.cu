// What the means of a sequence are measured from, of x_0, (B, 4H), of W h0 + b and of c0, of each
// row, in result (3, B); 0 of what is null. W and b have so many rows: all of them, or their mean.
#include "sizes.cuh"

#include "references.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void references(
    const float* __restrict__ x, const float* __restrict__ h0, const float* __restrict__ c0,
    const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ result, int rows,
    int H, int B) {
  write_references(x, h0, c0, W, b, result, blockIdx.x, rows, H, B);
}
