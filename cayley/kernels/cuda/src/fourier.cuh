// Fourier transforms of BATCH vectors of N complex numbers at a time, in the shared memory of a
// block. sizes.cuh, which composed.py writes, defines both; THREADS, those of the block; RADICES,
// whose product is N, and STAGES, their number; SPLIT, GROUPS and PADDED, explained below; and
// functions cosine<R>(k) and sine<R>(k) of the angle 2 pi k / R for each radix R.
//
// These are Stockham's: each stage reads one buffer and fills another, and the numbers end up in
// their order. A stage has N / RADIX small transforms, and gives each of them to one thread.
#pragma once

#include "numbers.cuh"

// The inverse transform is the same one between two exchanges of real and imaginary parts.
__device__ inline Number exchanged(Number a) { return {a.im, a.re}; }

// Where a number is in a buffer. With PADDED there are gaps, since strides of a power of two would
// take all lanes of a warp to a few banks.
constexpr int BANKS = 16;  // of a whole number each

__device__ constexpr int place(int i) { return PADDED ? i + i / BANKS : i; }

constexpr int VECTOR = PADDED ? N + (N - 1) / BANKS : N;
constexpr int BUFFER = BATCH * VECTOR;

// X_k = sum over j of x_j e^(-2 pi i j k / RADIX). The terms of j and RADIX - j have the same
// cosine and the opposite sine, and so have the results k and RADIX - k.
template <int RADIX>
__device__ inline void transform_few(Number (&x)[RADIX]) {
  constexpr int PAIRS = (RADIX - 1) / 2;
  constexpr bool MIDDLE = RADIX % 2 == 0;  // there is an x that has no partner beside the first
  const Number first = x[0], middle = x[RADIX / 2];
  Number sums[PAIRS + 1], differences[PAIRS + 1];
#pragma unroll
  for (int j = 1; j <= PAIRS; ++j) {
    sums[j] = x[j] + x[RADIX - j];
    differences[j] = x[j] - x[RADIX - j];
  }
#pragma unroll
  for (int k = 0; k <= RADIX / 2; ++k) {
    Number even = first, odd = {0, 0};
    if constexpr (MIDDLE) even = k % 2 ? even - middle : even + middle;
#pragma unroll
    for (int j = 1; j <= PAIRS; ++j) {
      const float cos = cosine<RADIX>(j * k % RADIX), sin = sine<RADIX>(j * k % RADIX);
      if (cos != 0) {
        even.re = fmaf(cos, sums[j].re, even.re);
        even.im = fmaf(cos, sums[j].im, even.im);
      }
      if (sin != 0) {
        odd.re = fmaf(sin, differences[j].re, odd.re);
        odd.im = fmaf(sin, differences[j].im, odd.im);
      }
    }
    if (k == 0 || 2 * k == RADIX) {
      x[k] = even;
    } else {
      x[k] = {even.re + odd.im, even.im - odd.re};
      x[RADIX - k] = {even.re - odd.im, even.im + odd.re};
    }
  }
}

// With SPLIT the first radix is a prime that is large enough for several threads. The sums with
// cosines and those with sines, and the real and imaginary parts of each, do not need each other:
// a lane takes one of the four, and has half of the numbers to read. Results k and PRIME - k are
// left as their sum of cosines, at k, and their sum of sines, at PRIME - k, for the next stage.
static_assert(!SPLIT || (!PADDED && STAGES > 1));

template <int ROLE>
__device__ inline void sum_column(const float* column, float* out) {
  constexpr int PRIME = RADICES[0], PAIRS = PRIME / 2, STRIDE = 2 * (N / PRIME);
  constexpr bool SINES = ROLE % 2;
  constexpr int SIZE = (PAIRS + GROUPS) / GROUPS;  // results of a role
  constexpr int BEGIN = ROLE / 2 * SIZE + (SINES && ROLE / 2 == 0 ? 1 : 0);
  constexpr int WANTED = (ROLE / 2 + 1) * SIZE;
  constexpr int END = WANTED < PAIRS + 1 ? WANTED : PAIRS + 1;
  float terms[PAIRS + 1];
  terms[0] = SINES ? 0.0f : column[0];
#pragma unroll
  for (int j = 1; j <= PAIRS; ++j) {
    const float x = column[j * STRIDE], partner = column[(PRIME - j) * STRIDE];
    terms[j] = SINES ? x - partner : x + partner;
  }
#pragma unroll
  for (int k = BEGIN; k < END; ++k) {
    float sum = terms[0];
#pragma unroll
    for (int j = 1; j <= PAIRS; ++j)
      sum = fmaf(SINES ? sine<PRIME>(j * k % PRIME) : cosine<PRIME>(j * k % PRIME), terms[j], sum);
    out[2 * (SINES ? PRIME - k : k)] = sum;
  }
}

// The coefficients are constants of the code, so that all lanes of a warp have the same role.
template <int ROLE>
__device__ inline void sum_column_as(int role, const float* column, float* out) {
  if (role == ROLE)
    sum_column<ROLE>(column, out);
  else if constexpr (ROLE + 1 < 2 * GROUPS)
    sum_column_as<ROLE + 1>(role, column, out);
}

__device__ inline void split_stage(const Number* from, Number* to) {
  constexpr int PRIME = RADICES[0], COLUMNS = 2 * (N / PRIME);  // of real numbers
  constexpr int WARPS_OF_ROLE = (BATCH * COLUMNS + 31) / 32;
  for (int task = threadIdx.x / 32; task < 2 * GROUPS * WARPS_OF_ROLE; task += THREADS / 32) {
    const int at = task % WARPS_OF_ROLE * 32 + threadIdx.x % 32;
    if (at >= BATCH * COLUMNS) continue;
    const int vector = at / COLUMNS, column = at % COLUMNS;
    sum_column_as<0>(task / WARPS_OF_ROLE,
                     reinterpret_cast<const float*>(from + vector * VECTOR) + column,
                     reinterpret_cast<float*>(to + vector * VECTOR + column / 2 * PRIME) +
                         column % 2);
  }
}

// After stages whose radices have the product BEFORE. The first of MIRRORED stages comes after a
// split one.
template <int RADIX, int BEFORE, bool MIRRORED>
__device__ inline void plain_stage(const Number* from, Number* to, const Number* twiddles) {
  constexpr int COUNT = N / RADIX;
  for (int at = threadIdx.x; at < BATCH * COUNT; at += THREADS) {
    const int vector = at / COUNT * VECTOR, number = at % COUNT, k = number % BEFORE;
    Number x[RADIX];
    if constexpr (MIRRORED) {
      const bool upper = k > BEFORE / 2;
      const int partner = k == 0 ? 0 : BEFORE - 2 * k;
      const float sign = k == 0 ? 0.0f : upper ? -1.0f : 1.0f;
      const Number* const cosines = from + vector + number + (upper ? partner : 0);
      const Number* const sines = from + vector + number + (upper ? 0 : partner);
#pragma unroll
      for (int j = 0; j < RADIX; ++j) {
        const Number even = cosines[j * COUNT], odd = sines[j * COUNT];
        x[j] = {fmaf(sign, odd.im, even.re), fmaf(-sign, odd.re, even.im)};
      }
    } else {
#pragma unroll
      for (int j = 0; j < RADIX; ++j) x[j] = from[vector + place(number + j * COUNT)];
    }
    if constexpr (BEFORE > 1)
#pragma unroll
      for (int j = 1; j < RADIX; ++j) x[j] = x[j] * twiddles[(j - 1) * BEFORE + k];
    transform_few<RADIX>(x);
    const int first = (number - k) * RADIX + k;
#pragma unroll
    for (int j = 0; j < RADIX; ++j) to[vector + place(first + j * BEFORE)] = x[j];
  }
}

// The factors e^(-2 pi i j k / (RADIX BEFORE)) of all stages but the first, which has none.
template <int STAGE = 1, int BEFORE = RADICES[0]>
__device__ inline void fill_twiddles(Number* twiddles) {
  if constexpr (STAGE < STAGES) {
    constexpr int RADIX = RADICES[STAGE], COUNT = (RADIX - 1) * BEFORE;
#pragma unroll 1
    for (int i = threadIdx.x; i < COUNT; i += THREADS) {
      double sin, cos;
      sincospi(-2.0 * (i / BEFORE + 1) * (i % BEFORE) / (RADIX * BEFORE), &sin, &cos);
      twiddles[i] = {(float)cos, (float)sin};
    }
    fill_twiddles<STAGE + 1, BEFORE * RADIX>(twiddles + COUNT);
  }
}

// Transforms the vectors in buffer FROM of two; the results are in buffer TRANSFORMED<FROM>.
template <int FROM>
constexpr int TRANSFORMED = (FROM + STAGES) % 2;

template <int FROM, int STAGE = 0, int BEFORE = 1>
__device__ inline void transform(Number* buffers, const Number* twiddles) {
  constexpr int RADIX = RADICES[STAGE];
  const Number* const from = buffers + FROM * BUFFER;
  Number* const to = buffers + (1 - FROM) * BUFFER;
  __syncthreads();
  if constexpr (SPLIT && STAGE == 0)
    split_stage(from, to);
  else
    plain_stage<RADIX, BEFORE, SPLIT && STAGE == 1>(from, to, twiddles);
  if constexpr (STAGE + 1 < STAGES)
    transform<1 - FROM, STAGE + 1, BEFORE * RADIX>(
        buffers, twiddles + (STAGE > 0 ? (RADIX - 1) * BEFORE : 0));
  else
    __syncthreads();
}
