// Networks of one launch: blockIdx.y is the number of a network. sizes.cuh defines SEVERAL, 1 if
// there may be several of them, and 0 if the kernel is that of one network.
#pragma once

// The part of an array that belongs to the network of this block, which has `size` numbers. If the
// bit of the array in `shared` is set, there is one for all networks, or none at all.
template <class Number>
__device__ inline Number* of_network(Number* array, int shared, int bit, long long size) {
  return !SEVERAL || shared >> bit & 1 ? array : array + blockIdx.y * size;
}
