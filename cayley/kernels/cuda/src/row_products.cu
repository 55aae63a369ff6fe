// Gradients of parameters from what all steps have left behind, in one launch: for up to three
// pairs of arrays the sum over their rows k of a_k b_kᵀ, (F, G), and the sums over the rows of
// `summed`, (height, width). Where `first` is not null, the rows of b are one step late: the first B
// are those of `first`. The F numbers of a row of a may be those of several gates of F / gates
// units, with the gates of a unit side by side: the sum has the units of a gate side by side. The
// rows of a may lie anywhere: from a number to that of the next row it is a_row, to the next number
// of the row a_next, and one of both is 1.
//
// A cluster of BLOCKS blocks computes a square of one of the products, or SIDE of the sums. Each
// block has a part of the rows, its warps take turns with them, and what they have found is added
// up in an order that does not vary. sizes.cuh defines BLOCKS; CLUSTER, the attribute; and SEVERAL,
// which networks.cuh explains. Arrays of a network follow those of the one before, unless their
// bits in `shared`, of a, b and first, are set.
#include "machine.cuh"
#include "sizes.cuh"

#include "networks.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, SIDE = 32, SQUARE = SIDE * SIDE;
constexpr int DOWN = 8, ACROSS = 4;  // of the square, with a lane: 4 × 8 lanes
constexpr int BATCH = 8;             // rows that a warp reads at a time
constexpr int PITCH = 2 * SIDE + 4;  // of the rows of a batch, so that columns of it are fast, too

struct alignas(16) Four {
  float at[4];
};

struct Pair {
  const float *a, *b, *first;
  float* sum;
  int a_row, a_next, b_width;
  int F, G, gates;
  int apart, shared;  // numbers from the sum of a network to that of the next; bits

  // To the arrays of the network of this block.
  __device__ void move(long long rows, int B) {
    a = of_network(a, shared, 0, a_row == 1 ? (long long)a_next * F : rows * a_row);
    b = of_network(b, shared, 1, rows * b_width);
    first = first ? of_network(first, shared, 2, (long long)B * b_width) : nullptr;
    sum = of_network(sum, shared, 3, apart);
  }

  __device__ int squares() const { return (F + SIDE - 1) / SIDE * ((G + SIDE - 1) / SIDE); }
};

// The part of `rows` rows that this block has.
struct Part {
  int begin, end;

  __device__ explicit Part(int rows) {
    const int size = (rows + BLOCKS - 1) / BLOCKS, block = blockIdx.x % BLOCKS;
    begin = min(block * size, rows);
    end = min(begin + size, rows);
  }
};

// Adds `count` sums of all warps, (WARPS, SQUARE) in `found`, and those of all blocks, and gives
// each once to write(i, sum). `own` has room for them.
template <class Write>
__device__ void add_up(const float* found, float* own, int count, Write write) {
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += THREADS) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sum += found[warp * SQUARE + i];
    own[i] = sum;
  }
  if constexpr (BLOCKS > 1)
    machine::cluster_barrier();
  else
    __syncthreads();
  const int each = (count + BLOCKS - 1) / BLOCKS, begin = blockIdx.x % BLOCKS * each;
  for (int i = begin + threadIdx.x; i < min(begin + each, count); i += THREADS) {
    float sum = 0;
    if constexpr (BLOCKS > 1) {
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block)
        sum += machine::load(machine::address_in(machine::address(own + i), block));
    } else {
      sum = own[i];
    }
    write(i, sum);
  }
  // no block may end while another one still reads from it
  if constexpr (BLOCKS > 1) machine::cluster_barrier();
}

__device__ void multiply(const Pair& pair, int square, int rows, int B, float* memory) {
  const int across = (pair.G + SIDE - 1) / SIDE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int top = square / across * SIDE, left = square % across * SIDE;
  const int late = pair.first ? B : 0;
  const Part part(rows);
  // beyond the edge there are zeros
  const bool in_a = top + lane < pair.F, in_b = left + lane < pair.G;
  const bool in_columns = pair.a_next > 1;
  float a[BATCH], b[BATCH];
  const auto read = [&](int start) {
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
      const long long k = start + n;
      const bool there = k < part.end;
      const float* const rows_b = k < late ? pair.first : pair.b - (long long)late * pair.b_width;
      if (in_columns) {
        const int row = start + lane % BATCH, column = top + n * (32 / BATCH) + lane / BATCH;
        a[n] = row < part.end && column < pair.F ? pair.a[row + (long long)column * pair.a_next]
                                                 : 0.0f;
      } else {
        a[n] = there && in_a ? pair.a[k * pair.a_row + top + lane] : 0.0f;
      }
      b[n] = there && in_b ? rows_b[k * pair.b_width + left + lane] : 0.0f;
    }
  };
  float* const staged = memory + warp * BATCH * PITCH;
  const int i = lane / 8 * DOWN, j = lane % 8 * ACROSS;
  float own[DOWN][ACROSS] = {};
  int start = part.begin + warp * BATCH;
  read(start);
#pragma unroll 1
  for (; start < part.end; start += WARPS * BATCH) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
      const int place = in_columns ? lane % BATCH * PITCH + n * (32 / BATCH) + lane / BATCH
                                   : n * PITCH + lane;
      staged[place] = a[n];
      staged[n * PITCH + SIDE + lane] = b[n];
    }
    __syncwarp();
    read(start + WARPS * BATCH);
#pragma unroll
    for (int n = 0; n < BATCH; ++n) {
      const Four* const row = reinterpret_cast<const Four*>(staged + n * PITCH);
      const Four upper = row[i / 4], lower = row[i / 4 + 1], right = row[(SIDE + j) / 4];
#pragma unroll
      for (int e = 0; e < DOWN; ++e)
#pragma unroll
        for (int f = 0; f < ACROSS; ++f)
          own[e][f] = fmaf(e < 4 ? upper.at[e % 4] : lower.at[e % 4], right.at[f], own[e][f]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < DOWN; ++e)
#pragma unroll
    for (int f = 0; f < ACROSS; ++f)
      memory[warp * SQUARE + (i + e) * SIDE + j + f] = own[e][f];
  add_up(memory, memory + WARPS * SQUARE, SQUARE, [&](int at, float sum) {
    const int row = top + at / SIDE, column = left + at % SIDE;
    const int place = row % pair.gates * (pair.F / pair.gates) + row / pair.gates;
    if (row < pair.F && column < pair.G) pair.sum[(long long)place * pair.G + column] = sum;
  });
}

extern "C" __global__ CLUSTER __launch_bounds__(THREADS) void row_products(
    const float* __restrict__ a0, const float* __restrict__ b0, const float* __restrict__ first0,
    float* __restrict__ sum0, int a_row0, int a_next0, int b_width0, int F0, int G0, int gates0,
    int apart0, int shared0,
    const float* __restrict__ a1, const float* __restrict__ b1, const float* __restrict__ first1,
    float* __restrict__ sum1, int a_row1, int a_next1, int b_width1, int F1, int G1, int gates1,
    int apart1, int shared1,
    const float* __restrict__ a2, const float* __restrict__ b2, const float* __restrict__ first2,
    float* __restrict__ sum2, int a_row2, int a_next2, int b_width2, int F2, int G2, int gates2,
    int apart2, int shared2,
    const float* __restrict__ summed, float* __restrict__ total, int height, int width, int rows,
    int B) {
  extern __shared__ float4 shared[];
  float* const memory = reinterpret_cast<float*>(shared);
  Pair pairs[] = {
      {a0, b0, first0, sum0, a_row0, a_next0, b_width0, F0, G0, gates0, apart0, shared0},
      {a1, b1, first1, sum1, a_row1, a_next1, b_width1, F1, G1, gates1, apart1, shared1},
      {a2, b2, first2, sum2, a_row2, a_next2, b_width2, F2, G2, gates2, apart2, shared2}};
  int cluster = blockIdx.x / BLOCKS;
#pragma unroll
  for (int p = 0; p < 3; ++p) {
    pairs[p].move(rows, B);
    const int squares = pairs[p].squares();
    if (cluster >= 0 && cluster < squares) multiply(pairs[p], cluster, rows, B, memory);
    cluster -= squares;
  }
  if (cluster < 0) return;
  summed = of_network(summed, 0, 0, (long long)height * width);
  total = of_network(total, 0, 0, width);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = cluster * SIDE + lane;
  const Part part(height);
  float own = 0;
  if (column < width)
#pragma unroll 8
    for (int k = part.begin + warp; k < part.end; k += WARPS)
      own += summed[(long long)k * width + column];
  memory[warp * SQUARE + lane] = own;
  add_up(memory, memory + WARPS * SQUARE, SIDE, [&](int at, float sum) {
    if (cluster * SIDE + at < width) total[cluster * SIDE + at] = sum;
  });
}
