// Networks of one launch: those of a column of the grid, blockIdx.y.
#pragma once

#include "machine.cuh"

// The part of an array that belongs to the network of this block, which has `size` numbers. If the
// bit of the array in `shared` is set, there is one for all networks, or none at all.
template <class Number>
__device__ inline Number* of_network(Number* array, int shared, int bit, long long size) {
  return array + (shared >> bit & 1 ? 0 : blockIdx.y * size);
}

// The same for weights, of which a thread reads many at once: for each of them the compiler would
// add up index and offset in registers of their own, and spill.
__device__ inline const float* weights_of_network(const float* W, int shared, int bit, int size) {
  return machine::kept(of_network(W, shared, bit, size));
}
