// Dense N x N matrices of one block: two in shared memory, and in registers every thread's part of
// a third, its tile. sizes.cuh, which cayley.py writes, defines N, THREADS, PITCH, the floats from a
// row in shared memory to the next, and MATRIX, those from a matrix to the next.
#pragma once

#include "sizes.cuh"

#include "sums.cuh"

constexpr int LANES = 32, WARPS = THREADS / LANES;
constexpr int ROWS = (N + WARPS - 1) / WARPS, COLUMNS = (N + LANES - 1) / LANES;  // of a tile
constexpr int PIVOT_ROW = COLUMNS * LANES, PIVOTS = PIVOT_ROW + ROWS * WARPS;

// as in polar.py: from where one step suffices, and after how many others there is no hope
constexpr float ONE_STEP = 3e-4f;
constexpr int MOST_STEPS = 50;

static_assert(WARPS == 16, "a column of tiles begins at every second row of them");
static_assert(MATRIX >= N * PITCH && MATRIX >= 2 * PIVOTS, "too little memory");

// A warp has every 16th row and a lane every 32nd column. Of the left factor of a product all lanes
// read the same number, and of the right one neighbours.
struct Tile {
  float at[ROWS][COLUMNS];
};

template <int SIZE>
struct alignas(4 * SIZE) Vector {
  float at[SIZE];
};

__device__ inline int warp() { return threadIdx.x / LANES; }
__device__ inline int lane() { return threadIdx.x % LANES; }
// how many there are on so many diagonals above the main one
__device__ inline int entries(int bandwidth) { return bandwidth * (2 * N - bandwidth - 1) / 2; }
__device__ inline float eye(int i, int j) { return i == j ? 1.0f : 0.0f; }

// f(i, j, entry) for all entries of a tile that belong to the matrix.
template <class F>
__device__ inline void each(Tile& tile, F f) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int i = warp() + r * WARPS, j = lane() + c * LANES;
      if (i < N && j < N) f(i, j, tile.at[r][c]);
    }
}

// a_ij = f(i, j, entry) in shared memory: all threads have read it before, and may afterwards.
template <class F>
__device__ inline void put(float* a, Tile& tile, F f) {
  __syncthreads();
  each(tile, [&](int i, int j, float entry) { a[i * PITCH + j] = f(i, j, entry); });
  __syncthreads();
}

// The skew matrix with free entries x(k), as many diagonals as there are of them, and a number on
// the main diagonal. Lanes go along a diagonal.
template <class Entries>
__device__ inline void put_skew(float* a, float diagonal, int bandwidth, Entries x) {
  __syncthreads();
  for (int d = warp(); d < N; d += WARPS) {
    const int first = (d - 1) * N - d * (d - 1) / 2;
    for (int i = lane(); i < N - d; i += LANES) {
      const float entry = d == 0 ? diagonal : d <= bandwidth ? x(first + i) : 0.0f;
      a[(i + d) * PITCH + i] = -entry;
      a[i * PITCH + i + d] = entry;
    }
  }
  __syncthreads();
}

// SIZE terms of the product, from the k-th on. Rows and columns outside are copies of the last.
template <int SIZE, bool TRANSPOSED>
__device__ inline void add_terms(Tile& sums, const float* a, const float* b, int k) {
  float right[SIZE][COLUMNS];
#pragma unroll
  for (int e = 0; e < SIZE; ++e)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int j = lane() + c * LANES;
      right[e][c] = b[(k + e) * PITCH + (c < COLUMNS - 1 ? j : min(j, N - 1))];
    }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int inside = warp() + r * WARPS, i = r < ROWS - 1 ? inside : min(inside, N - 1);
    Vector<SIZE> left;
    if constexpr (TRANSPOSED) {
#pragma unroll
      for (int e = 0; e < SIZE; ++e) left.at[e] = a[(k + e) * PITCH + i];
    } else {
      left = *reinterpret_cast<const Vector<SIZE>*>(a + i * PITCH + k);
    }
#pragma unroll
    for (int e = 0; e < SIZE; ++e)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        sums.at[r][c] = fmaf(left.at[e], right[e][c], sums.at[r][c]);
  }
}

// a b, or its transpose times b.
template <bool TRANSPOSED = false>
__device__ inline Tile product(const float* a, const float* b) {
  constexpr int SIZE = TRANSPOSED || PITCH % 4 == 0 ? 4 : PITCH % 2 == 0 ? 2 : 1;
  constexpr int WHOLE = N / SIZE * SIZE;
  Tile sums = {};
#pragma unroll 1
  for (int k = 0; k < WHOLE; k += SIZE) add_terms<SIZE, TRANSPOSED>(sums, a, b, k);
#pragma unroll
  for (int k = WHOLE; k < N; ++k) add_terms<1, TRANSPOSED>(sums, a, b, k);
  return sums;
}

// The inverse of a matrix all of whose pivots are good, by Gauss-Jordan elimination. Pivot row and
// column go through one of two rooms, so that one barrier a step suffices.
__device__ inline void eliminate(Tile& m, float* rooms) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int c = r / 2;
#pragma unroll 1
    for (int w = 0; w < min(WARPS, N - r * WARPS); ++w) {
      const int pivot = r * WARPS + w;
      const bool in_row = warp() == w, in_column = lane() == pivot % LANES;
      float *row = rooms + w % 2 * PIVOTS, *column = row + PIVOT_ROW;
      // zeros in both and -1 for the pivot's factor: then these change as all others do
      if (in_row)
#pragma unroll
        for (int other = 0; other < COLUMNS; ++other) {
          row[lane() + other * LANES] = m.at[r][other];
          m.at[r][other] = 0.0f;
        }
      if (in_column)
#pragma unroll
        for (int other = 0; other < ROWS; ++other) {
          column[warp() + other * WARPS] = other == r && in_row ? -1.0f : m.at[other][c];
          m.at[other][c] = 0.0f;
        }
      __syncthreads();
      const float over = 1.0f / row[pivot];
      float scaled[COLUMNS];
#pragma unroll
      for (int other = 0; other < COLUMNS; ++other)
        scaled[other] = row[lane() + other * LANES] * over;
      if (in_column) scaled[c] = over;
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const float factor = column[warp() + i * WARPS];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) m.at[i][j] = fmaf(-factor, scaled[j], m.at[i][j]);
      }
    }
  }
}

// X = M^-1 for M = I + A with a skew A; M is lost. Every Schur complement has a symmetric part of
// at least I, so that no pivot is small, and a Newton step gives back the digits that this costs.
__device__ inline void invert(float* X, float* M) {
  Tile m = {};
  each(m, [&](int i, int j, float& entry) { entry = M[i * PITCH + j]; });
  eliminate(m, X);
  put(X, m, [&](int, int, float entry) { return entry; });
  m = product(M, X);
  put(M, m, [&](int i, int j, float entry) { return eye(i, j) - entry; });
  m = product(X, M);
  put(X, m, [&](int i, int j, float entry) { return X[i * PITCH + j] + entry; });
}

// The Frobenius norm of a tile's matrix, the same for all threads, added up in an order that does
// not vary.
__device__ inline float norm_of(Tile& m) {
  __shared__ float partials[WARPS];
  float sum = 0.0f;
  each(m, [&](int, int, float entry) { sum = fmaf(entry, entry, sum); });
  sum = sum_warp(sum);
  // others may still read what was there before
  __syncthreads();
  if (lane() == 0) partials[warp()] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int other = 0; other < WARPS; ++other) sum += partials[other];
  return sqrtf(sum);
}

// |I - X M|, Frobenius.
__device__ inline float residual_of(const float* X, const float* M) {
  Tile m = product(X, M);
  each(m, [&](int i, int j, float& entry) { entry = eye(i, j) - entry; });
  return norm_of(m);
}

// I - X^T X
__device__ inline Tile defect_of(const float* X) {
  Tile m = product<true>(X, X);
  each(m, [&](int i, int j, float& entry) { entry = eye(i, j) - entry; });
  return m;
}

// What a forward kernel returns: X, and if there is a D, W = (2 X - I) D after a Newton-Schulz step
// towards the orthogonal matrices, and D. X and the other matrix in shared memory are lost.
__device__ inline void conclude(float* X, float* other, const float* D, float* inverse, float* W,
                                float* signs) {
  Tile m;
  each(m, [&](int i, int j, float) { inverse[i * N + j] = X[i * PITCH + j]; });
  if (!D) return;
  put(X, m, [&](int i, int j, float) { return 2.0f * X[i * PITCH + j] - eye(i, j); });
  m = defect_of(X);
  float size = norm_of(m);
  // For odd N a large A takes digits, and one step does not suffice. Steps converge where no
  // singular value is above sqrt(3): after the division none is above 1.
  if (size > 1.0f) {
    const float scale = rsqrtf(1.0f + size);
    put(X, m, [&](int i, int j, float) { return scale * X[i * PITCH + j]; });
    m = defect_of(X);
    size = norm_of(m);
  }
  for (int step = 0; step < MOST_STEPS && size > ONE_STEP; ++step) {
    put(other, m, [&](int, int, float entry) { return entry; });
    m = product(X, other);
    put(X, m, [&](int i, int j, float entry) { return fmaf(0.5f, entry, X[i * PITCH + j]); });
    m = defect_of(X);
    size = norm_of(m);
  }
  put(other, m, [&](int, int, float entry) { return entry; });
  m = product(X, other);
  each(m, [&](int i, int j, float entry) {
    W[i * N + j] = fmaf(0.5f, entry, X[i * PITCH + j]) * D[j];
  });
  for (int j = threadIdx.x; j < N; j += THREADS) signs[j] = D[j];
}
