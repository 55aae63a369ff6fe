// The steps of a sequence, in the order in which a kernel goes through them.
#pragma once

// Step t of row r is row t B + r of x and h. With PACKED, which sizes.cuh defines, step t has only
// the sizes[t] rows that have not ended, never more than the step before it, and the steps follow
// one another. The table that packed.py writes holds the sizes of all T steps, then for each the
// row of x that it begins with, then for each of the B rows how many steps it has.
__device__ inline int steps_of(const long long* table, long long row, int T) {
  return PACKED ? (int)table[2 * T + row] : T;
}

// The row of x that step t begins with.
__device__ inline long long start_of(const long long* table, int t, int T, int B) {
  return PACKED ? table[T + t] : t * (long long)B;
}

struct Steps {
  int T;            // of the row that has been asked for; rows after it have no more
  long long first;  // the row of x that the first of them begins with
  int before = 0, rows, next = 0;  // of the step before, the one at hand and the next one
  const long long* sizes;
  int B, loaded = 2;
  bool back;

  Steps() = default;

  __device__ Steps(const long long* table, long long row, int T, int B, bool back)
      : T(steps_of(table, row, T)), sizes(table), B(B), back(back) {
    first = back ? start_of(table, this->T - 1, T, B) : 0;
    if constexpr (PACKED) {
      rows = size(0);
      if (this->T > 1) next = size(1);
    } else {
      before = rows = B;
    }
  }

  // Moves on to the next step, which is so many rows of x further. After the last one has no rows.
  __device__ long long advance() {
    if constexpr (!PACKED) return (back ? -1 : 1) * (long long)B;
    const int by = back ? -next : rows;
    before = rows;
    rows = next;
    // read a step early, so that no thread waits for it
    next = loaded < T ? size(loaded) : 0;
    ++loaded;
    return by;
  }

 private:
  __device__ int size(int step) const { return (int)sizes[back ? T - 1 - step : step]; }
};
