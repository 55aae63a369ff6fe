// Where the units are among the states: there the two parts of a complex number are neighbours.
// sizes.cuh defines H, the number of units; PHI, the activation; and COMPLEX, whether the weights
// are complex, which product.cuh explains.
#pragma once

constexpr bool PAIRS = COMPLEX || PHI == MODRELU_STACKED;

// The unit at a place.
__device__ inline int unit_at(int place) {
  return PAIRS ? place / 2 + place % 2 * (H / 2) : place;
}

// Its threshold, which the parts of a complex number share under the complex modReLU.
__device__ inline int threshold_at(int place) {
  return PHI == MODRELU_STACKED ? place / 2 : unit_at(place);
}
