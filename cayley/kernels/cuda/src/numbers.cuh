// Complex numbers.
#pragma once

struct alignas(8) Number {
  float re, im;
};

__device__ inline Number operator+(Number a, Number b) { return {a.re + b.re, a.im + b.im}; }
__device__ inline Number operator-(Number a, Number b) { return {a.re - b.re, a.im - b.im}; }
__device__ inline Number operator*(Number a, Number b) {
  return {fmaf(a.re, b.re, -(a.im * b.im)), fmaf(a.re, b.im, a.im * b.re)};
}
__device__ inline Number conjugate(Number a) { return {a.re, -a.im}; }

// conjugate(a) b
__device__ inline Number inner(Number a, Number b) {
  return {fmaf(a.re, b.re, a.im * b.im), fmaf(a.re, b.im, -(a.im * b.re))};
}

// sum + a b and sum + conjugate(a) b, in four instructions
__device__ inline Number plus_product(Number sum, Number a, Number b) {
  return {fmaf(a.re, b.re, fmaf(-a.im, b.im, sum.re)), fmaf(a.re, b.im, fmaf(a.im, b.re, sum.im))};
}
__device__ inline Number plus_inner(Number sum, Number a, Number b) {
  return plus_product(sum, conjugate(a), b);
}
