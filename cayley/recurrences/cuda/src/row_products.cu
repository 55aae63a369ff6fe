// Gradients of parameters from what all steps have left behind, in one launch: for up to three
// pairs of arrays the sum over their rows k of a_k b_kᵀ, (F, G), and the sums over the rows of
// `summed`, (height, width). A block computes a square of one of the sums, and its warps take turns
// with the rows, so that the order of additions is always the same. Where `first` is not null, the
// rows of b are one step late: the first B are those of `first`.
constexpr int WARPS = 16, THREADS = 32 * WARPS, SIDE = 16;
constexpr int DOWN = 4, ACROSS = 2;  // of the square, with a lane: 4 × 8 lanes
constexpr int BATCH = 8;             // rows that a warp reads before it adds any of them up

struct Pair {
  const float *a, *b, *first;
  float* sum;
  int a_width, b_width;  // of a row in memory
  int F, G;

  __device__ int squares() const { return (F + SIDE - 1) / SIDE * ((G + SIDE - 1) / SIDE); }
};

__device__ void add_up(const Pair& pair, int square, int rows, int B, float (*sums)[SIDE * SIDE]) {
  const int across = (pair.G + SIDE - 1) / SIDE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int top = square / across * SIDE, left = square % across * SIDE;
  const int i = lane / 8 * DOWN, j = lane % 8 * ACROSS;
  // what is beyond the edge is computed from what is at the edge, and not written
  int down[DOWN], right[ACROSS];
#pragma unroll
  for (int e = 0; e < DOWN; ++e) down[e] = min(top + i + e, pair.F - 1);
#pragma unroll
  for (int e = 0; e < ACROSS; ++e) right[e] = min(left + j + e, pair.G - 1);
  float own[DOWN][ACROSS] = {};
  const int late = pair.first ? B : 0;
#pragma unroll 1
  for (int start = warp; start < rows; start += WARPS * BATCH) {
    float a[BATCH][DOWN], b[BATCH][ACROSS];
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
      const int k = start + n * WARPS;
      const long long row = min(k, rows - 1);
      const float* const as = pair.a + row * pair.a_width;
      const float* const bs = row < late ? pair.first + row * pair.b_width
                                         : pair.b + (row - late) * pair.b_width;
#pragma unroll
      for (int e = 0; e < DOWN; ++e) a[n][e] = k < rows ? as[down[e]] : 0.0f;
#pragma unroll
      for (int f = 0; f < ACROSS; ++f) b[n][f] = bs[right[f]];
    }
#pragma unroll
    for (int n = 0; n < BATCH; ++n)
#pragma unroll
      for (int e = 0; e < DOWN; ++e)
#pragma unroll
        for (int f = 0; f < ACROSS; ++f) own[e][f] = fmaf(a[n][e], b[n][f], own[e][f]);
  }
#pragma unroll
  for (int e = 0; e < DOWN; ++e)
#pragma unroll
    for (int f = 0; f < ACROSS; ++f) sums[warp][(i + e) * SIDE + j + f] = own[e][f];
  __syncthreads();
  const int row = top + threadIdx.x / SIDE, column = left + threadIdx.x % SIDE;
  if (threadIdx.x >= SIDE * SIDE || row >= pair.F || column >= pair.G) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += sums[w][threadIdx.x];
  pair.sum[(long long)row * pair.G + column] = sum;
}

extern "C" __global__ __launch_bounds__(THREADS) void row_products(
    const float* __restrict__ a0, const float* __restrict__ b0, const float* __restrict__ first0,
    float* __restrict__ sum0, int a_width0, int b_width0, int F0, int G0,
    const float* __restrict__ a1, const float* __restrict__ b1, const float* __restrict__ first1,
    float* __restrict__ sum1, int a_width1, int b_width1, int F1, int G1,
    const float* __restrict__ a2, const float* __restrict__ b2, const float* __restrict__ first2,
    float* __restrict__ sum2, int a_width2, int b_width2, int F2, int G2,
    const float* __restrict__ summed, float* __restrict__ total, int height, int width, int rows,
    int B) {
  __shared__ float sums[WARPS][SIDE * SIDE];
  const Pair pairs[] = {{a0, b0, first0, sum0, a_width0, b_width0, F0, G0},
                        {a1, b1, first1, sum1, a_width1, b_width1, F1, G1},
                        {a2, b2, first2, sum2, a_width2, b_width2, F2, G2}};
  int block = blockIdx.x;
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    const int squares = pairs[p].squares();
    if (block >= 0 && block < squares) add_up(pairs[p], block, rows, B, sums);
    block -= squares;
  }
  if (block < 0) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = block * 32 + lane;
  float own = 0;
  if (column < width)
#pragma unroll 4
    for (int k = warp; k < height; k += WARPS) own += summed[(long long)k * width + column];
  sums[warp][lane] = own;
  __syncthreads();
  if (warp > 0 || column >= width) return;
  own = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) own += sums[w][lane];
  total[column] = own;
}
