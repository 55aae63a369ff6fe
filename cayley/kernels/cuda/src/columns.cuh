// Columns of the factors of a sum over rows of a_k b_kᵀ: a (K, M), b (K, N). With `first`, (F, N), row
// k of b is row k - F of the array, and F rows come before it, or with `reverse` row k + F, and they
// come after it. sizes.cuh defines M, N and ALIGNED, whether rows begin at multiples of four numbers.
#pragma once

constexpr int SIDE = 128;               // the columns of a block
constexpr int FOURS = SIDE / 4;         // the threads that read them
constexpr int NEXT = THREADS / FOURS;   // as many have the same columns
static_assert(THREADS % FOURS == 0);

struct alignas(16) Four {
  float at[4];
};

// Four of them, which a thread reads.
struct Columns {
  const float* array;   // at row 0
  long long apart;      // from there to rows that are not in the array
  int K, shift, width;  // shift: from a row to that of the array
  int column, count;    // of the columns there are

  __device__ Columns(const float* array, const float* first, int width, int begin, int K, int F,
                     int reverse)
      : K(K),
        shift(reverse ? F : -F),
        width(width),
        column(begin + threadIdx.x % FOURS * 4),
        count(min(max(width - column, 0), 4)) {
    this->array = array + column;
    apart = first - array + (long long)(reverse ? -K : F) * width;
  }

  // Row k, and 0 from row `end` on.
  __device__ Four read(int k, int end) const {
    Four found = {};
    const int row = k + shift;
    const float* place = array + (long long)row * width;
    if ((unsigned)row >= (unsigned)K) place += apart;
    if (ALIGNED) {
      if (k < end && count > 0) found = *reinterpret_cast<const Four*>(place);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (k < end && i < count) found.at[i] = place[i];
    }
    return found;
  }
};
