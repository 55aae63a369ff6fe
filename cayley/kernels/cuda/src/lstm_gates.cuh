// The gates of an LSTM, in the order in which they are stacked.
#pragma once

#include "activations.cuh"

enum Gate { I, F, G, O };

__device__ inline float activate_gate(int gate, float z) {
  return gate == G ? tanhf(z) : sigmoid(z);
}
