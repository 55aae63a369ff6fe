// The steps of a sequence, in the order in which a kernel goes through them.
#pragma once

// Step t of row r is row t B + r of x and h. With PACKED, which sizes.cuh defines, step t has only
// the sizes[t] rows that have not ended, never more than the step before it, and the steps follow
// one another. The table that packed.py writes holds the sizes of all T steps, then for each of the
// B rows how many steps it has, then for each the row of x that its last step begins with.
struct Steps {
  int T;            // of the row that has been asked for; rows after it have no more
  long long first;  // the row of x that the first of them begins with
  int before = 0, rows, next = 0;  // of the step before, the one at hand and the next one
  const long long* sizes;
  int B, loaded = 2;
  bool back;

  __device__ Steps(const long long* table, long long row, int T, int B, bool back)
      : T(T), sizes(table), B(B), back(back) {
    if constexpr (PACKED) {
      this->T = (int)table[T + row];
      first = back ? table[T + B + row] : 0;
      rows = size(0);
      if (this->T > 1) next = size(1);
    } else {
      first = back ? (T - 1) * (long long)B : 0;
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
