// Dense N x N matrices of a block: two in shared memory, and in registers every thread's part of a
// third, its tile. With BLOCKS > 1, these form a cluster, all of which have both matrices: each of
// them computes some columns of a product. sizes.cuh, which cayley.py writes, defines N, THREADS and
// BLOCKS; PITCH, the floats from a row in shared memory to the next; MATRIX, those from a matrix to
// the next, and after the second to what is left for sums; and CLUSTER, what a kernel of a cluster
// has to say.
#pragma once

#include "sizes.cuh"

#include "machine.cuh"
#include "sums.cuh"

constexpr int LANES = 32, WARPS = THREADS / LANES;
constexpr int ROWS = (N + WARPS - 1) / WARPS, COLUMNS = (N + LANES - 1) / LANES;  // of a tile
constexpr int SPAN = (N + BLOCKS - 1) / BLOCKS;  // columns of a block
// If these are few, two halves of a warp have the same ones, and share the terms of their sums.
constexpr int PARTS = SPAN <= LANES / 2 ? 2 : 1, SIDE = LANES / PARTS;
constexpr int WIDTH = (SPAN + SIDE - 1) / SIDE;  // the block's columns of a lane
constexpr int TALL = (ROWS + 3) / 4 * 4;         // and the rows of a warp, read four at a time
constexpr int PIVOT = COLUMNS * LANES;  // floats of a pivot's row, and of its column

// as in polar.py: from where one step suffices, and after how many others there is no hope
constexpr float ONE_STEP = 3e-4f;
constexpr int MOST_STEPS = 50;

static_assert(WARPS == 16, "a column of tiles begins at every second row of them");
static_assert(MATRIX >= N * PITCH && MATRIX >= 8 * PIVOT, "too little memory");
static_assert(PIVOT >= (ROWS + ROWS % 2) * WARPS, "a warp reads factors of two rows at a time");

template <int SIZE>
struct alignas(4 * SIZE) Vector {
  float at[SIZE];
};

__device__ inline int warp() { return threadIdx.x / LANES; }
__device__ inline int lane() { return threadIdx.x % LANES; }
// how many there are on so many diagonals above the main one
__device__ inline int entries(int bandwidth) { return bandwidth * (2 * N - bandwidth - 1) / 2; }
__device__ inline float eye(int i, int j) { return i == j ? 1.0f : 0.0f; }

// The block's columns are those from the first one on, before the end.
__device__ inline int first_column() {
  return BLOCKS > 1 ? blockIdx.x % BLOCKS * SPAN : 0;
}
__device__ inline int end_of_columns() { return min(first_column() + SPAN, N); }

// Of a matrix a warp has every 16th row, and a lane every 32nd column: elimination is shared evenly.
struct Whole {
  static constexpr int HEIGHT = ROWS, COUNT = COLUMNS;
  float at[HEIGHT][COUNT];

  __device__ static int row(int r) { return warp() + r * WARPS; }
  __device__ static int column(int c) { return lane() + c * LANES; }
  __device__ static bool has(int i, int j) { return i < N && j < N; }
};

// Of the block's columns a warp has rows one after another, which are read together. All lanes read
// the same numbers of the left factor of a product, and neighbours of the right one.
struct Strip {
  static constexpr int HEIGHT = TALL, COUNT = WIDTH;
  float at[HEIGHT][COUNT];

  __device__ static int row(int r) { return warp() * TALL + r; }
  __device__ static int column(int c) { return first_column() + lane() % SIDE + c * SIDE; }
  __device__ static bool has(int i, int j) {
    return i < N && j < end_of_columns() && (PARTS == 1 || lane() < SIDE);
  }
};

// f(i, j, entry) for all entries of a tile that belong to the matrix.
template <class Tile, class F>
__device__ inline void each(Tile& tile, F f) {
#pragma unroll
  for (int r = 0; r < Tile::HEIGHT; ++r)
#pragma unroll
    for (int c = 0; c < Tile::COUNT; ++c) {
      const int i = Tile::row(r), j = Tile::column(c);
      if (Tile::has(i, j)) f(i, j, tile.at[r][c]);
    }
}

// a_ij = f(i, j, entry) in shared memory: all threads have read it before, and may afterwards.
template <class Tile, class F>
__device__ inline void put(float* a, Tile& tile, F f) {
  __syncthreads();
  each(tile, [&](int i, int j, float entry) { a[i * PITCH + j] = f(i, j, entry); });
  __syncthreads();
}

// The columns of the other blocks, which these have written to a matrix (N, N) in global memory.
__device__ inline void share(float* a, const float* all) {
  if constexpr (BLOCKS > 1) {
    machine::cluster_barrier();
    Whole others;
    each(others, [&](int i, int j, float& entry) { entry = all[i * N + j]; });
    put(a, others, [](int, int, float entry) { return entry; });
  }
}

// The skew matrix with free entries x(k), as many diagonals as there are of them, and a number on
// the main diagonal. Lanes go along a diagonal, and read all of it before they write.
template <class Entries>
__device__ inline void put_skew(float* a, float diagonal, int bandwidth, Entries x) {
  __syncthreads();
#pragma unroll 2
  for (int d = warp(); d < N; d += WARPS) {
    const int first = (d - 1) * N - d * (d - 1) / 2;
    float entry[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int i = lane() + c * LANES;
      entry[c] = d == 0 ? diagonal : 0.0f;
      if (0 < d && d <= bandwidth && i < N - d) entry[c] = x(first + i);
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int i = lane() + c * LANES;
      if (i < N - d) {
        a[(i + d) * PITCH + i] = -entry[c];
        a[i * PITCH + i + d] = entry[c];
      }
    }
  }
  __syncthreads();
}

// SIZE terms of the product, from the k-th on. Rows and columns outside are copies of the last.
template <int SIZE, bool TRANSPOSED>
__device__ inline void add_terms(Strip& sums, const float* a, const float* b, int k) {
  // rows that are read together
  constexpr int GROUP = !TRANSPOSED ? 1 : PITCH % 4 == 0 ? 4 : PITCH % 2 == 0 ? 2 : 1;
  float right[SIZE][WIDTH];
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
#pragma unroll
    for (int c = 0; c < WIDTH; ++c)
      right[e][c] = b[(k + e) * PITCH + min(Strip::column(c), N - 1)];
#pragma unroll
  for (int first = 0; first < TALL; first += GROUP) {
    float left[GROUP][SIZE];
    if constexpr (TRANSPOSED) {
      // the last of them may lie after the row's end, but not after that of its room
      const int i = min(Strip::row(first), (N - 1) / GROUP * GROUP);
#pragma unroll
      for (int e = 0; e < SIZE; ++e) {
        const auto some = *reinterpret_cast<const Vector<GROUP>*>(a + (k + e) * PITCH + i);
#pragma unroll
        for (int r = 0; r < GROUP; ++r) left[r][e] = some.at[r];
      }
    } else {
      const int i = min(Strip::row(first), N - 1);
      const auto some = *reinterpret_cast<const Vector<SIZE>*>(a + i * PITCH + k);
#pragma unroll
      for (int e = 0; e < SIZE; ++e) left[0][e] = some.at[e];
    }
#pragma unroll
    for (int r = 0; r < GROUP; ++r)
#pragma unroll
      for (int e = 0; e < SIZE; ++e)
#pragma unroll
        for (int c = 0; c < WIDTH; ++c)
          sums.at[first + r][c] = fmaf(left[r][e], right[e][c], sums.at[first + r][c]);
  }
}

// The block's columns of a b, or of the transpose of a times b, from these columns of b.
template <bool TRANSPOSED = false>
__device__ inline Strip product(const float* a, const float* b) {
  constexpr int SIZE = TRANSPOSED || PITCH % 4 == 0 ? 4 : PITCH % 2 == 0 ? 2 : 1;
  constexpr int STEP = PARTS * SIZE, WHOLE = N / STEP * STEP;
  const int part = lane() / SIDE;
  Strip sums = {};
#pragma unroll 1
  for (int k = 0; k < WHOLE; k += STEP) add_terms<SIZE, TRANSPOSED>(sums, a, b, k + part * SIZE);
  if (part == 0)
#pragma unroll
    for (int k = WHOLE; k < N; ++k) add_terms<1, TRANSPOSED>(sums, a, b, k);
  if constexpr (PARTS > 1)
#pragma unroll
    for (int r = 0; r < TALL; ++r)
#pragma unroll
      for (int c = 0; c < WIDTH; ++c) sums.at[r][c] += __shfl_xor_sync(~0u, sums.at[r][c], SIDE);
  return sums;
}

// The inverse of a matrix all of whose pivots are good, by Gauss-Jordan elimination with two pivots at
// a time. Their rows and columns go through one of two rooms, so that one barrier suffices.
__device__ inline void eliminate(Whole& m, float* rooms) {
  constexpr int EVEN = N + N % 2;
  // an odd matrix gets one more row and column, of the identity
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (EVEN > N && warp() + r * WARPS == N && lane() == N % LANES) m.at[r][N / LANES] = 1.0f;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int c = r / 2;
#pragma unroll 1
    for (int w = 0; w < min(WARPS, EVEN - r * WARPS); w += 2) {
      const int pivot = r * WARPS + w;
      // which of the two is this warp's row, and this lane's column
      const int mine = warp() - w, own = lane() - pivot % LANES;
      const bool in_row = mine == 0 || mine == 1, in_column = own == 0 || own == 1;
      float *rows = rooms + w % 4 * 2 * PIVOT, *columns = rows + 2 * PIVOT;
      // of the warp's rows one after another, those for both pivots
      float* const factors = columns + warp() * 2 * (ROWS + ROWS % 2);
      // zeros in both and -1 for a pivot's factor: then these change as all others do
      if (in_row)
#pragma unroll
        for (int other = 0; other < COLUMNS; ++other) {
          rows[mine * PIVOT + lane() + other * LANES] = m.at[r][other];
          m.at[r][other] = 0.0f;
        }
      if (in_column)
#pragma unroll
        for (int other = 0; other < ROWS; ++other) {
          const float factor = mine == own ? -1.0f : 0.0f;
          factors[2 * other + own] = other == r && in_row ? factor : m.at[other][c];
          m.at[other][c] = 0.0f;
        }
      __syncthreads();
      const auto first = *reinterpret_cast<const Vector<2>*>(rows + pivot);
      const auto second = *reinterpret_cast<const Vector<2>*>(rows + PIVOT + pivot);
      // one pivot after the other: a determinant could be too large, and rows times the inverse of
      // both would lose digits where entries differ widely
      const float over = machine::inverse(first.at[0]), left = second.at[0] * over;
      const float rest = machine::inverse(fmaf(-left, first.at[1], second.at[1]));
      const float right = over * first.at[1], above = -right * rest;
      const float inverse[2][2] = {{fmaf(-above, left, over), above}, {-rest * left, rest}};
      float scaled[2][COLUMNS];
#pragma unroll
      for (int other = 0; other < COLUMNS; ++other) {
        const float one = rows[lane() + other * LANES], two = rows[PIVOT + lane() + other * LANES];
        scaled[1][other] = fmaf(-left, one, two) * rest;
        scaled[0][other] = fmaf(-right, scaled[1][other], over * one);
      }
      if (in_column)
#pragma unroll
        for (int i = 0; i < 2; ++i) scaled[i][c] = inverse[i][own];
#pragma unroll
      for (int i = 0; i < ROWS; i += 2) {
        const auto own_factors = *reinterpret_cast<const Vector<4>*>(factors + 2 * i);
#pragma unroll
        for (int e = 0; e < 2 && i + e < ROWS; ++e)
#pragma unroll
          for (int j = 0; j < COLUMNS; ++j)
            m.at[i + e][j] = fmaf(-own_factors.at[2 * e + 1], scaled[1][j],
                                  fmaf(-own_factors.at[2 * e], scaled[0][j], m.at[i + e][j]));
      }
    }
  }
}

// X = M^-1 for M = I + A with a skew A, in the block's columns; M is lost. Every Schur complement has
// a symmetric part of at least I, so that no pivot is small, and a Newton step gives back the digits
// that this costs. All blocks eliminate: to exchange pivots would take longer.
__device__ inline void invert(float* X, float* M) {
  Whole m = {};
  each(m, [&](int i, int j, float& entry) { entry = M[i * PITCH + j]; });
  eliminate(m, X);
  put(X, m, [](int, int, float entry) { return entry; });
  Strip correction = product(M, X);
  put(M, correction, [](int i, int j, float entry) { return eye(i, j) - entry; });
  correction = product(X, M);
  put(X, correction, [&](int i, int j, float entry) { return X[i * PITCH + j] + entry; });
}

// The Frobenius norm of the matrix of all blocks' tiles, the same for all threads, added up in an
// order that does not vary. `sums` has room for those of the warps, and of the block.
__device__ inline float norm_of(Strip& m, float* sums) {
  float sum = 0.0f;
  each(m, [&](int, int, float entry) { sum = fmaf(entry, entry, sum); });
  sum = sum_warp(sum);
  // others may still read what was there before
  __syncthreads();
  if (lane() == 0) sums[warp()] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int other = 0; other < WARPS; ++other) sum += sums[other];
  if constexpr (BLOCKS > 1) {
    if (threadIdx.x == 0) sums[WARPS] = sum;
    machine::cluster_barrier();
    sum = 0.0f;
    for (int rank = 0; rank < BLOCKS; ++rank)
      sum += machine::load(machine::address_in(machine::address(sums + WARPS), rank));
    machine::cluster_barrier();
  }
  return sqrtf(sum);
}

// |I - X M|, Frobenius.
__device__ inline float residual_of(const float* X, const float* M, float* sums) {
  Strip m = product(X, M);
  each(m, [](int i, int j, float& entry) { entry = eye(i, j) - entry; });
  return norm_of(m, sums);
}

// I - X^T X
__device__ inline Strip defect_of(const float* X) {
  Strip m = product<true>(X, X);
  each(m, [](int i, int j, float& entry) { entry = eye(i, j) - entry; });
  return m;
}

// What a forward kernel returns: X, and if there is a D, W = (2 X - I) D after a Newton-Schulz step
// towards the orthogonal matrices, and D. X and the other matrix in shared memory are lost.
__device__ inline void conclude(float* X, float* other, float* sums, const float* D, float* inverse,
                                float* W, float* signs) {
  Strip m;
  Whole all;
  each(m, [&](int i, int j, float) { inverse[i * N + j] = X[i * PITCH + j]; });
  if (!D) return;
  share(X, inverse);
  put(X, all, [&](int i, int j, float) { return 2.0f * X[i * PITCH + j] - eye(i, j); });
  m = defect_of(X);
  float size = norm_of(m, sums);
  // For odd N a large A takes digits, and one step does not suffice. Steps converge where no
  // singular value is above sqrt(3): after the division none is above 1.
  if (size > 1.0f) {
    const float scale = rsqrtf(1.0f + size);
    put(X, all, [&](int i, int j, float) { return scale * X[i * PITCH + j]; });
    m = defect_of(X);
    size = norm_of(m, sums);
  }
  for (int step = 0; step < MOST_STEPS && size > ONE_STEP; ++step) {
    put(other, m, [](int, int, float entry) { return entry; });
    m = product(X, other);
    put(X, m, [&](int i, int j, float entry) { return fmaf(0.5f, entry, X[i * PITCH + j]); });
    // by way of what will be written in the end
    each(m, [&](int i, int j, float) { W[i * N + j] = X[i * PITCH + j]; });
    share(X, W);
    m = defect_of(X);
    size = norm_of(m, sums);
  }
  put(other, m, [](int, int, float entry) { return entry; });
  m = product(X, other);
  each(m, [&](int i, int j, float entry) {
    W[i * N + j] = fmaf(0.5f, entry, X[i * PITCH + j]) * D[j];
  });
  for (int j = first_column() + threadIdx.x; j < end_of_columns(); j += THREADS) signs[j] = D[j];
}
