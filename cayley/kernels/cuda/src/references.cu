// What the means of a sequence are measured from, of x, (T, B, 4H), or (N, 4H) with the table of a
// packed sequence, and of products with a bias b, of each row, in result (3, B); 0 of what is null,
// and of cells.
#include "sizes.cuh"

#include "references.cuh"

extern "C" __global__ __launch_bounds__(THREADS) void references(
    const float* __restrict__ x, const float* __restrict__ b, const long long* __restrict__ table,
    float* __restrict__ result, int T, int H, int B) {
  write_references(x, b, table, result, blockIdx.x, T, H, B);
}
