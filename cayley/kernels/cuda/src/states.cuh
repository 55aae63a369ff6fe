// The states of a few batch rows, and the arrays in global memory that every step reads.
#pragma once

#include "machine.cuh"

// Two buffers of ROWS rows in every block of a cluster, for each of PASSES passes: a step reads
// one and fills the other. While the states of one pass travel, the others are computed.
//
// With several blocks, a new value is sent to all of them and counted by a barrier next to the
// buffer. A block fills a buffer only after it has got all values of the step before it, so after
// all warps that own an output have read that buffer. Every warp arrives at a buffer's barrier
// once it has seen it full, so that none can miss a phase; it has time for that until its block
// sends. So nothing is sent to blocks that never send: the first USED ones have outputs. At the
// first step nobody waits: the phase before a barrier's first one counts as completed.
template <int INPUTS, int WIDTH, int ROWS, int PASSES, int BLOCKS, int THREADS, int USED = BLOCKS>
struct States {
  static constexpr int SIZE = ROWS * WIDTH;
  static constexpr int FLOATS = PASSES * (2 * SIZE + (BLOCKS > 1 ? 4 : 0));
  static constexpr int BYTES = ROWS * ((INPUTS + 3) / 4 * 16);  // that come at every step

  float* buffers;
  unsigned barriers;
  int expected;  // bytes, by thread 0; and by a thread that does not arrive, -1
  int filled = 0;  // the buffer with the states before the step
  unsigned parity = 1;

  // first(row, input) gives the states before the first step.
  template <class First>
  __device__ void init(float* shared, First first) {
    buffers = shared;
    for (int i = threadIdx.x; i < PASSES * SIZE; i += THREADS) {
      const int pass = i / SIZE, input = i % WIDTH;
      buffers[i + pass * SIZE] = input < INPUTS ? first(i / WIDTH, input) : 0.0f;
      buffers[i + pass * SIZE + SIZE] = 0;
    }
    if constexpr (BLOCKS > 1) {
      barriers = machine::address(buffers + PASSES * 2 * SIZE);
      expected = machine::kept(threadIdx.x == 0 ? BYTES : threadIdx.x % 32 == 0 ? 0 : -1);
      if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * PASSES; ++i) machine::init_barrier(barriers + 8 * i, THREADS / 32);
        machine::publish_barriers();
      }
      __syncthreads();
      for (int pass = 0; pass < PASSES; ++pass)  // at those that the first step fills
        machine::arrive_if(expected >= 0, barriers + 8 * (2 * pass + 1), expected);
      machine::cluster_barrier();
    }
  }

  // The states before the step, once all of them are there.
  __device__ const float* before(int pass) const {
    const int buffer = 2 * pass + filled;
    if constexpr (BLOCKS == 1) {
      __syncthreads();
    } else {
      machine::wait(barriers + 8 * buffer, parity);
      __syncwarp();
    }
    return buffers + buffer * SIZE;
  }

  // To be called after before().
  __device__ void seen(int pass) const {
    if constexpr (BLOCKS > 1)
      machine::arrive_if(expected >= 0, barriers + 8 * (2 * pass + filled), expected);
  }

  // One of the states after the step, with one block.
  __device__ void set(int pass, int place, float value) const {
    buffers[(2 * pass + 1 - filled) * SIZE + place] = value;
  }

  // Four of them, at a multiple of four.
  __device__ void set(int pass, int place, const float (&values)[4]) const {
    *reinterpret_cast<float4*>(buffers + (2 * pass + 1 - filled) * SIZE + place) = {
        values[0], values[1], values[2], values[3]};
  }

  // Four of them, with several blocks, to the blocks that are `sender` modulo SENDERS.
  template <int SENDERS>
  __device__ void send(int pass, int place, const float (&values)[4], int sender) const {
    const int buffer = 2 * pass + 1 - filled;
    const unsigned here = machine::address(buffers + buffer * SIZE + place);
#pragma unroll
    for (int block = 0; block < USED; block += SENDERS)
      if (USED % SENDERS == 0 || block + sender < USED)
        machine::send(machine::address_in(here, block + sender), values,
                      machine::address_in(barriers + 8 * buffer, block + sender));
  }

  // To be called after the last pass of a step.
  __device__ void advance() {
    filled = 1 - filled;
    parity ^= filled;
  }

  // All that a block without outputs does.
  __device__ static void stay_out() { machine::cluster_barrier(); }

  // No block may end while another one still sends to it: those of the last step have to come.
  __device__ void finish() const {
    if constexpr (BLOCKS > 1) {
      for (int pass = 0; pass < PASSES; ++pass) before(pass);
      machine::cluster_barrier();
    }
  }
};

// The values of STREAMS arrays at VALUES elements of each step, fetched DEPTH - 1 steps ahead. Each
// thread reads what it has fetched itself, so that no barrier is needed.
template <int STREAMS, int VALUES, int DEPTH, int THREADS>
struct Ahead {
  static constexpr int STEP = STREAMS * VALUES * THREADS;
  static constexpr int FLOATS = DEPTH * STEP;

  float* first;
  int slot = 0;  // that the next step to be fetched goes to

  __device__ void init(float* shared) {
    first = shared + threadIdx.x;
#pragma unroll
    for (int i = 0; i < DEPTH * STREAMS * VALUES; ++i) first[i * THREADS] = 0;
  }

  __device__ void fetch(int stream, int i, const float* element) const {
    machine::copy_ahead(first + slot + (stream * VALUES + i) * THREADS, element);
  }

  __device__ void fetch_if(bool wanted, int stream, int i, const float* element) const {
    machine::copy_ahead_if(wanted, first + slot + (stream * VALUES + i) * THREADS, element);
  }

  __device__ void end_of_step() {
    machine::end_of_copies();
    slot = slot == FLOATS - STEP ? 0 : slot + STEP;
  }

  // To be called after the step DEPTH - 1 ahead has been fetched.
  __device__ static void wait() { machine::wait_for_copies<DEPTH - 1>(); }

  __device__ float get(int stream, int i) const {
    return first[slot + (stream * VALUES + i) * THREADS];
  }
};
