// The sum over rows of a_k b_kᵀ, of factors as in columns.cuh, by tensor cores: parts of it, (splits,
// M, N). As in tensor.cuh a number is two halves. Each column has a scale of its own, for its largest
// modulus: `largest` has the bits of those of a, and then of b. sizes.cuh also defines THREADS and
// SEVERAL, which networks.cuh explains.
#include "sizes.cuh"

#include "columns.cuh"
#include "networks.cuh"
#include "tensor.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int DEPTH = 32;  // rows at a time, in pairs
constexpr int PAIRS = DEPTH / 2, STEPS = DEPTH / SIXTEEN;
constexpr int PITCH = SIDE + 8;  // words from a pair of rows to the next: no two of a read meet
constexpr int COLUMNS = 32, ROWS = SIDE * SIDE / COLUMNS / WARPS;  // of a warp
constexpr int TILES = ROWS / SIXTEEN, ACROSS = COLUMNS / EIGHT;
constexpr int ITEMS = PAIRS / NEXT;  // pairs of rows that a thread has of a and of b
static_assert(WARPS == SIDE / ROWS * (SIDE / COLUMNS) && ITEMS <= TILES);

struct alignas(16) Words {
  unsigned at[4];
};

// Pairs of halves of neighbouring rows: nearest ones, and rests.
struct Stage {
  static constexpr int WORDS = PAIRS * PITCH;
  static constexpr int FLOATS = 4 * WORDS;

  unsigned* words;

  __device__ explicit Stage(float* memory) : words(reinterpret_cast<unsigned*>(memory)) {}

  // of a (0) or b (1)
  __device__ unsigned* nearest(int which) const { return words + 2 * which * WORDS; }
  __device__ unsigned* rests(int which) const { return words + (2 * which + 1) * WORDS; }
};

// A factor, of which a thread writes four columns.
struct Factor {
  Columns columns;
  int which;
  float scale[4];

  __device__ Factor(const Columns& columns, int which, const unsigned* largest)
      : columns(columns), which(which) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scale[i] = i < columns.count ? Scale(largest[columns.column + i]).up : 0.0f;
  }

  // Writes a pair of rows.
  __device__ void write(const Stage& stage, int pair, const Four (&rows)[2]) const {
    Words nearest, rests;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Halves low(scale[i] * rows[0].at[i]), high(scale[i] * rows[1].at[i]);
      nearest.at[i] = low.nearest | (unsigned)high.nearest << 16;
      rests.at[i] = low.rest | (unsigned)high.rest << 16;
    }
    const int place = pair * PITCH + threadIdx.x % FOURS * 4;
    *reinterpret_cast<Words*>(stage.nearest(which) + place) = nearest;
    *reinterpret_cast<Words*>(stage.rests(which) + place) = rests;
  }
};

extern "C" __global__ __launch_bounds__(THREADS, 1) void half_products(
    const float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ first,
    const unsigned* __restrict__ largest, float* __restrict__ sum, int K, int F, int reverse,
    int splits, int shared_arrays) {
  extern __shared__ float4 shared[];
  float* memory = reinterpret_cast<float*>(shared);

  a = of_network(a, shared_arrays, 0, (long long)K * M);
  b = of_network(b, shared_arrays, 1, (long long)K * N);
  first = of_network(first, shared_arrays, 2, (long long)F * N);
  largest = of_network(largest, shared_arrays, 3, M + N);
  sum = of_network(sum, shared_arrays, 4, (long long)splits * M * N);

  constexpr int ACROSS_ALL = (N + SIDE - 1) / SIDE, SQUARES = (M + SIDE - 1) / SIDE * ACROSS_ALL;
  const int square = blockIdx.x % SQUARES, split = blockIdx.x / SQUARES;
  const int top = square / ACROSS_ALL * SIDE, left = square % ACROSS_ALL * SIDE;
  // whole depths, but for the last
  const int depths = (K + DEPTH - 1) / DEPTH, each = (depths + splits - 1) / splits;
  const int begin = min(split * each, depths) * DEPTH, end = min((split + 1) * each * DEPTH, K);

  const Factor of_a(Columns(a, a, M, top, K, 0, 0), 0, largest);
  const Factor of_b(Columns(b, first, N, left, K, first ? F : 0, reverse), 1, largest + M);
  Four ahead[ITEMS][2][2];
  const auto pair_of = [&](int item) { return (int)threadIdx.x / FOURS + item * NEXT; };
  const auto read = [&](int item, int k) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = k + 2 * pair_of(item) + j;
      ahead[item][0][j] = of_a.columns.read(row, end);
      ahead[item][1][j] = of_b.columns.read(row, end);
    }
  };
  const auto write = [&](int item, const Stage& stage) {
    of_a.write(stage, pair_of(item), ahead[item][0]);
    of_b.write(stage, pair_of(item), ahead[item][1]);
  };

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / (SIDE / COLUMNS) * ROWS, column = warp % (SIDE / COLUMNS) * COLUMNS;
  float sums[TILES][ACROSS][4] = {};
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    read(item, begin);
    write(item, Stage(memory));
    read(item, begin + DEPTH);
  }
  int stage = 0;
  for (int k = begin; k < end; k += DEPTH) {
    __syncthreads();
    const Stage now(memory + stage * Stage::FLOATS), next(memory + (1 - stage) * Stage::FLOATS);
    unsigned of_columns[STEPS][ACROSS][2][2];
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int i = 0; i < ACROSS; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int place = (8 * step + lane % 4 + 4 * j) * PITCH + column + 8 * i + lane / 4;
          of_columns[step][i][0][j] = now.nearest(1)[place];
          of_columns[step][i][1][j] = now.rests(1)[place];
        }
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      // tensor cores round towards 0: over many rows these errors would add up
      float products[ACROSS][4] = {}, with_rests[ACROSS][4] = {};
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        unsigned nearest[4], rests[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int place =
              (8 * step + lane % 4 + j / 2 * 4) * PITCH + row + 16 * tile + lane / 4 + j % 2 * 8;
          nearest[j] = now.nearest(0)[place];
          rests[j] = now.rests(0)[place];
        }
#pragma unroll
        for (int i = 0; i < ACROSS; ++i) machine::multiply(nearest, of_columns[step][i][0], products[i]);
#pragma unroll
        for (int i = 0; i < ACROSS; ++i) machine::multiply(rests, of_columns[step][i][0], with_rests[i]);
#pragma unroll
        for (int i = 0; i < ACROSS; ++i)
          machine::multiply(nearest, of_columns[step][i][1], with_rests[i]);
      }
#pragma unroll
      for (int i = 0; i < ACROSS; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sums[tile][i][j] += fmaf(with_rests[i][j], 1 / REST, products[i][j]);
      // while tensor cores multiply
      if (tile < ITEMS) {
        write(tile, next);
        read(tile, k + 2 * DEPTH);
      }
    }
    stage = 1 - stage;
  }

  sum += (long long)split * M * N;
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < ACROSS; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int m = top + row + 16 * tile + lane / 4 + j / 2 * 8;
        const int n = left + column + 8 * i + lane % 4 * 2 + j % 2;
        if (m < M && n < N)
          sum[(long long)m * N + n] =
              sums[tile][i][j] * Scale(largest[m]).down * Scale(largest[M + n]).down;
      }
}
