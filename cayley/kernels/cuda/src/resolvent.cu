// X = (I + A)^-1 for a skew matrix A, both (n, n), by Gauss-Jordan elimination in double precision,
// with PIVOTS rows and columns at a time: with P the pivots' square, R = P^-1 M[pivots, :] and
// C = M[:, pivots], all other entries become M - C R, the pivots' rows R, their columns -C P^-1, and
// their square P^-1. No pivot is searched for, since every Schur complement of I + A has a symmetric
// part of at least I. Products with P^-1 cost digits: the error is of the order of 1e-16 |A|^3.
//
// A matrix of STRIPES times STRIPES squares of PIVOTS rows and columns, of which those after n are
// of the identity, lies in the registers of ROWS times COLUMNS blocks, each with a tile of HEIGHT
// times WIDTH squares. One more block inverts the pivots' squares, each while the others still work
// with the pivots before. sizes.cuh, which resolvent.py writes, defines all these but PIVOTS. All
// blocks run at the same time. What they tell each other lies in global memory, each number at a
// place of its own, so that nobody has to wait until another has read it.
#include "sizes.cuh"

#include "machine.cuh"

constexpr int PIVOTS = 32, ENTRIES = PIVOTS * PIVOTS;  // of a square
constexpr int SIDE = 16, THREADS = SIDE * SIDE;  // each with 2 times 2 entries of a square
constexpr int AT_ONCE = 4;                       // pivots in the inversion of a square
constexpr int NONE = -1;                         // of the stripes
constexpr int BLOCKS = ROWS * COLUMNS;           // that have tiles
constexpr int TALL = ROWS * HEIGHT * PIVOTS, WIDE = COLUMNS * WIDTH * PIVOTS;
static_assert(TALL >= STRIPES * PIVOTS && WIDE >= STRIPES * PIVOTS, "the tiles are too small");

// Two numbers that are read and written together.
struct alignas(16) Pair {
  double at[2];
};

__device__ inline Pair* pair_at(double* place) { return reinterpret_cast<Pair*>(place); }
__device__ inline Pair pair_of(const double* place) {
  return *reinterpret_cast<const Pair*>(place);
}

// The first row, and the first column, that the thread has of a square.
__device__ inline int own_row() { return threadIdx.x / SIDE * 2; }
__device__ inline int own_column() { return threadIdx.x % SIDE * 2; }

// do_with(e, f) for the 2 times 2 entries.
template <class Do>
__device__ inline void each_entry(Do do_with) {
#pragma unroll
  for (int e = 0; e < 2; ++e)
#pragma unroll
    for (int f = 0; f < 2; ++f) do_with(e, f);
}

// What the thread has of H times W squares.
template <int H, int W>
struct Tile {
  double at[H][W][2][2];

  // do_with(p, q) for all squares.
  template <class Do>
  __device__ static void each(Do do_with) {
#pragma unroll
    for (int p = 0; p < H; ++p)
#pragma unroll
      for (int q = 0; q < W; ++q) do_with(p, q);
  }

  // Adds a product: the left factor is transposed, (PIVOTS, H * PIVOTS), the right (PIVOTS, W * PIVOTS).
  __device__ void add_product(const double* left, const double* right) {
    // as many terms at a time as registers allow
#pragma unroll(H * W > 2 ? 4 : 8)
    for (int k = 0; k < PIVOTS; ++k) {
      Pair l[H], r[W];
#pragma unroll
      for (int p = 0; p < H; ++p) l[p] = pair_of(left + (k * H + p) * PIVOTS + own_row());
#pragma unroll
      for (int q = 0; q < W; ++q) r[q] = pair_of(right + (k * W + q) * PIVOTS + own_column());
      each([&](int p, int q) {
        each_entry([&](int e, int f) {
          at[p][q][e][f] = fma(l[p].at[e], r[q].at[f], at[p][q][e][f]);
        });
      });
    }
  }

  // Writes square (p, q) to (PIVOTS, width), or transposed, from its first entry on.
  __device__ void put(int p, int q, double* place, int width) const {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      *pair_at(place + (own_row() + e) * width + own_column()) = {at[p][q][e][0], at[p][q][e][1]};
  }
  __device__ void put_transposed(int p, int q, double* place, int width) const {
#pragma unroll
    for (int f = 0; f < 2; ++f)
      *pair_at(place + (own_column() + f) * width + own_row()) = {at[p][q][0][f], at[p][q][1][f]};
  }
};

using Square = Tile<1, 1>;

// The inverse of a square, AT_ONCE pivots at a time, whose rows and columns go through one of two
// rooms of 2 * AT_ONCE * PIVOTS numbers, so that one barrier suffices.
__device__ inline void invert(Square& square, double* rooms) {
  double(&m)[2][2] = square.at[0][0];
#pragma unroll 1
  for (int first = 0; first < PIVOTS; first += AT_ONCE) {
    double* const rows = rooms + first / AT_ONCE % 2 * 2 * AT_ONCE * PIVOTS;  // (AT_ONCE, PIVOTS)
    double* const factors = rows + AT_ONCE * PIVOTS;                          // (PIVOTS, AT_ONCE)
    const int row = own_row() - first, column = own_column() - first;  // among the pivots, or not
    const bool in_row = 0 <= row && row < AT_ONCE, in_column = 0 <= column && column < AT_ONCE;
    // zeros in both and -1 for a pivot's factor: then these change as all others do
    if (in_row) square.put(0, 0, rows - first * PIVOTS, PIVOTS);
    if (in_column)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        Pair own = {m[e][0], m[e][1]};
        if (in_row) own = {row + e == column ? -1.0 : 0.0, row + e == column + 1 ? -1.0 : 0.0};
        *pair_at(factors + (own_row() + e) * AT_ONCE + column) = own;
      }
    if (in_row || in_column) each_entry([&](int e, int f) { m[e][f] = 0; });
    __syncthreads();
    double pivots[AT_ONCE][AT_ONCE], scaled[AT_ONCE][2];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int j = 0; j < AT_ONCE; j += 2) {
        const Pair some = pair_of(rows + i * PIVOTS + first + j);
        pivots[i][j] = some.at[0], pivots[i][j + 1] = some.at[1];
      }
      const Pair own = pair_of(rows + i * PIVOTS + own_column());
#pragma unroll
      for (int f = 0; f < 2; ++f)
        scaled[i][f] = !in_column ? own.at[f] : i == column + f ? 1.0 : 0.0;
    }
    // the pivots' square divides their rows, by substitution
    double over[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      over[k] = machine::inverse(pivots[k][k]);
#pragma unroll
      for (int i = k + 1; i < AT_ONCE; ++i) {
        const double factor = -pivots[i][k] * over[k];
#pragma unroll
        for (int j = k + 1; j < AT_ONCE; ++j) pivots[i][j] = fma(factor, pivots[k][j], pivots[i][j]);
#pragma unroll
        for (int f = 0; f < 2; ++f) scaled[i][f] = fma(factor, scaled[k][f], scaled[i][f]);
      }
    }
#pragma unroll
    for (int k = AT_ONCE - 1; k >= 0; --k)
#pragma unroll
      for (int f = 0; f < 2; ++f) {
        scaled[k][f] *= over[k];
#pragma unroll
        for (int i = 0; i < k; ++i) scaled[i][f] = fma(-pivots[i][k], scaled[k][f], scaled[i][f]);
      }
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int k = 0; k < AT_ONCE; k += 2) {
        const Pair some = pair_of(factors + (own_row() + e) * AT_ONCE + k);
#pragma unroll
        for (int f = 0; f < 2; ++f)
          m[e][f] = fma(-some.at[1], scaled[k + 1][f], fma(-some.at[0], scaled[k][f], m[e][f]));
      }
  }
}

// What blocks tell each other, in global memory. For each of STRIPES steps: the pivots' rows,
// (PIVOTS, WIDE), and columns, transposed, (PIVOTS, TALL), both before the step; the pivots' square,
// before the step before; and its inverse, transposed.
struct Board {
  double *rows, *columns, *ahead, *inverses;

  __device__ explicit Board(double* room)
      : rows(room),
        columns(rows + STRIPES * PIVOTS * WIDE),
        ahead(columns + STRIPES * PIVOTS * TALL),
        inverses(ahead + STRIPES * ENTRIES) {}

  __device__ double* rows_at(int step, int stripe) const {
    return rows + step * PIVOTS * WIDE + stripe * PIVOTS;
  }
  __device__ double* columns_at(int step, int stripe) const {
    return columns + step * PIVOTS * TALL + stripe * PIVOTS;
  }
};

// Copies (PIVOTS, W * PIVOTS) into shared memory, from rows of `width` numbers, multiplied by SIGN. The
// squares are of stripes from the first one on, and that of stripe `own` is of the identity.
template <int W, int SIGN>
__device__ inline void fetch(double* shared, const double* from, int width, int first, int own) {
#pragma unroll
  for (int q = 0; q < W; ++q)
#pragma unroll
    for (int i = threadIdx.x; i < ENTRIES / 2; i += THREADS) {
      const int k = i / SIDE, j = i % SIDE * 2;
      Pair some = {k == j ? 1.0 : 0.0, k == j + 1 ? 1.0 : 0.0};
      if (first + q != own) {
        some = pair_of(from + k * width + q * PIVOTS + j);
        some = {SIGN * some.at[0], SIGN * some.at[1]};
      }
      *pair_at(shared + (k * W + q) * PIVOTS + j) = some;
    }
}

// Thread number `thread` waits until a block has told others what they need for a step.
__device__ inline void wait_for(int thread, const unsigned* told, int step) {
  if (threadIdx.x == thread)
    while (machine::raised(told) <= step) {
    }
}

// All threads have written what others need for a step.
__device__ inline void tell(unsigned* told, int step) {
  __syncthreads();
  if (threadIdx.x == 0) machine::raise(told, step + 1);
}

// I + A, with more rows and columns of I.
__device__ inline double entry(const float* A, int n, int i, int j) {
  return (i == j ? 1.0 : 0.0) + (i < n && j < n ? (double)A[(size_t)i * n + j] : 0.0);
}

__device__ inline void compute_tile(const float* A, float* X, int n, const Board& board,
                                    unsigned* told, double* shared) {
  double* const inverse = shared;                     // transposed
  double* const rows = inverse + ENTRIES;             // (PIVOTS, WIDTH * PIVOTS)
  double* const divided = rows + ENTRIES * WIDTH;     // R
  double* const columns = divided + ENTRIES * WIDTH;  // -C, transposed, (PIVOTS, HEIGHT * PIVOTS)
  const int row = blockIdx.x / COLUMNS, column = blockIdx.x % COLUMNS;  // of the tile
  const int top = row * HEIGHT, left = column * WIDTH;                  // stripes
  using Own = Tile<HEIGHT, WIDTH>;
  Own tile;
  Own::each([&](int p, int q) {
    const int i = (top + p) * PIVOTS + own_row(), j = (left + q) * PIVOTS + own_column();
    each_entry([&](int e, int f) { tile.at[p][q][e][f] = entry(A, n, i + e, j + f); });
  });

  // Whether others need a square for a step: its pivots' rows and columns, and the next pivots' square.
  const auto is_needed = [&](int p, int q, int step) {
    const int i = top + p, j = left + q;
    return i == step || j == step || (i == step + 1 && j == step + 1 && i < STRIPES);
  };
  const auto publish = [&](int step) {
    Own::each([&](int p, int q) {
      const int i = top + p, j = left + q;
      if (i == step) tile.put(p, q, board.rows_at(step, j), WIDE);
      if (j == step) tile.put_transposed(p, q, board.columns_at(step, i), TALL);
      if (is_needed(p, q, step) && i != step && j != step)
        tile.put(p, q, board.ahead + i * ENTRIES, PIVOTS);
    });
    tell(told + blockIdx.x, step);
  };
  const auto has_needed = [&](int step) {
    bool any = false;
    Own::each([&](int p, int q) { any |= is_needed(p, q, step); });
    return any;
  };

  if (has_needed(0)) publish(0);
#pragma unroll 1
  for (int step = 0; step < STRIPES; ++step) {
    wait_for(0, told + step / HEIGHT * COLUMNS + column, step);
    wait_for(32, told + row * COLUMNS + step / WIDTH, step);
    wait_for(64, told + BLOCKS, step);
    __syncthreads();
    // zeros for the pivots' rows and columns, the identity in their place in R and in that of -C: then
    // these change as all others do
    fetch<WIDTH, 1>(rows, board.rows_at(step, left), WIDE, left, step);
    fetch<HEIGHT, -1>(columns, board.columns_at(step, top), TALL, top, step);
    fetch<1, 1>(inverse, board.inverses + step * ENTRIES, PIVOTS, 0, NONE);
    Own::each([&](int p, int q) {
      if (top + p == step || left + q == step)
        each_entry([&](int e, int f) { tile.at[p][q][e][f] = 0; });
    });
    __syncthreads();
    Tile<1, WIDTH> R = {};
    R.add_product(inverse, rows);
#pragma unroll
    for (int q = 0; q < WIDTH; ++q) R.put(0, q, divided + q * PIVOTS, WIDTH * PIVOTS);
    __syncthreads();
    tile.add_product(columns, divided);
    const int next = step + 1;
    if (next < STRIPES && has_needed(next)) publish(next);
  }

  Own::each([&](int p, int q) {
    const int i = (top + p) * PIVOTS + own_row(), j = (left + q) * PIVOTS + own_column();
    each_entry([&](int e, int f) {
      if (i + e < n && j + f < n) X[(size_t)(i + e) * n + j + f] = (float)tile.at[p][q][e][f];
    });
  });
}

__device__ inline void invert_pivots(const float* A, int n, const Board& board, unsigned* told,
                                     double* shared) {
  double* const inverse = shared;          // transposed
  double* const rows = inverse + ENTRIES;  // of the pivots, in the next ones' columns
  double* const columns = rows + ENTRIES;  // in the next ones' rows, transposed, negative
  double* const rooms = columns + ENTRIES;
  Square pivots;
  each_entry([&](int e, int f) {
    pivots.at[0][0][e][f] = entry(A, n, own_row() + e, own_column() + f);
  });
#pragma unroll 1
  for (int step = 0;; ++step) {
    invert(pivots, rooms);
    pivots.put_transposed(0, 0, inverse, PIVOTS);
    pivots.put_transposed(0, 0, board.inverses + step * ENTRIES, PIVOTS);
    tell(told + BLOCKS, step);
    const int next = step + 1, row = next / HEIGHT * COLUMNS, column = next / WIDTH;
    if (next == STRIPES) break;
    wait_for(0, told + step / HEIGHT * COLUMNS + column, step);
    wait_for(32, told + row + step / WIDTH, step);
    wait_for(64, told + row + column, step);
    __syncthreads();
    fetch<1, 1>(rows, board.rows_at(step, next), WIDE, 0, NONE);
    fetch<1, -1>(columns, board.columns_at(step, next), TALL, 0, NONE);
    const double* const ahead = board.ahead + next * ENTRIES + own_row() * PIVOTS + own_column();
    __syncthreads();
    Square R = {};
    R.add_product(inverse, rows);
    __syncthreads();
    R.put(0, 0, rows, PIVOTS);
    __syncthreads();
    each_entry([&](int e, int f) { pivots.at[0][0][e][f] = ahead[e * PIVOTS + f]; });
    pivots.add_product(columns, rows);
  }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void resolvent(
    const float* A, float* X, double* room, unsigned* told, int n) {
  extern __shared__ float4 shared[];
  const Board board(room);
  if (blockIdx.x < BLOCKS)
    compute_tile(A, X, n, board, told, reinterpret_cast<double*>(shared));
  else
    invert_pivots(A, n, board, told, reinterpret_cast<double*>(shared));
}
