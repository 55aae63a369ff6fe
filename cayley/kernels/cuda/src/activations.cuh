// The activations h = φ(z; b) and their derivatives, as in cayley/activations.py.
#pragma once

#include "machine.cuh"

enum Activation { IDENTITY, RELU, LEAKY_RELU, TANH, MODRELU, MODRELU_STACKED };

constexpr float EPSILON = 1e-5f;
constexpr float NEGATIVE_SLOPE = 0.01f;

__device__ inline float sigmoid(float z) { return machine::inverse(1.0f + expf(-z)); }

// φ of one number. Comparisons are such that a NaN stays one.
template <Activation PHI>
__device__ inline float activate(float z, float b) {
  if constexpr (PHI == RELU) return z <= 0 ? 0.0f : z;
  if constexpr (PHI == LEAKY_RELU) return z > 0 ? z : NEGATIVE_SLOPE * z;
  if constexpr (PHI == TANH) return tanhf(z);
  if constexpr (PHI == MODRELU) {
    const float modulus = fabsf(z) + b;
    return z == 0 || modulus <= 0 ? 0.0f : copysignf(modulus, z);
  }
  return z;
}

// φ′ of one number, told by h.
template <Activation PHI>
__device__ inline float slope(float h) {
  if constexpr (PHI == RELU) return h > 0 ? 1.0f : 0.0f;
  if constexpr (PHI == LEAKY_RELU) return h > 0 ? 1.0f : NEGATIVE_SLOPE;
  if constexpr (PHI == TANH) return 1 - h * h;
  if constexpr (PHI == MODRELU) return h != 0 ? 1.0f : 0.0f;
  return 1;
}

// Complex modReLU of z with imaginary or real part `partner`: h = scale * z. A gradient g becomes
// scale * g + radial * curvature * z, where radial = inverse * (z g + partner g') is that of b.
// Every step waits for it, and an exact square root and quotient take three times as long.
struct Complex {
  float scale, inverse, curvature;

  Complex() = default;

  __device__ Complex(float z, float partner, float b) {
    const float square = z * z + partner * partner + EPSILON, root = machine::inverse_root(square);
    const float r = square * root, quotient = machine::inverse(r + EPSILON);
    const bool off = r + b <= 0;
    inverse = off ? 0.0f : quotient;
    scale = off ? 0.0f : (r + b) * quotient;
    curvature = (EPSILON - b) * root * quotient;
  }
};
