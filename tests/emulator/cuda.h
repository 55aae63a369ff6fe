// As much of CUDA as the kernels of cayley/kernels/cuda/src need, on a CPU; machine.cpp does it. What
// machine.cuh says in PTX is said here in C++.
#pragma once

#include <math.h>
#include <stddef.h>

#define __device__
#define __global__
#define __shared__ emulator::one_block(); static
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};

struct Index {
  int x, y;
};

constexpr int LANES_OF_A_WARP = 32;
extern Index threadIdx, blockIdx;

namespace emulator {

// Variables of a block are those of the program: enough where there is one block at a time.
void one_block();
float4* shared_memory();
double exchange(double value, int from);  // between the lanes of a warp
void sync(int number, int count);
void signal(int number, int count);
void look(const float* place, float* seen, int count);

}  // namespace emulator

void __syncthreads();
int __syncthreads_or(int predicate);
void __syncwarp();
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int bits) {
  return emulator::exchange(value, threadIdx.x ^ bits);
}
template <class T>
inline T __shfl_sync(unsigned, T value, int lane) {
  return emulator::exchange(value, threadIdx.x / LANES_OF_A_WARP * LANES_OF_A_WARP + lane % 32);
}
unsigned __reduce_max_sync(unsigned mask, unsigned value);
unsigned __float_as_uint(float value);
float __uint_as_float(unsigned bits);
unsigned atomicMax(unsigned* place, unsigned value);
int min(int a, int b);
int max(int a, int b);
unsigned max(unsigned a, unsigned b);
long long min(long long a, long long b);
void sincospi(double x, double* sin, double* cos);
float rsqrtf(float x);
float __fdividef(float a, float b);
float __fmul_rn(float a, float b);
float __fsub_rn(float a, float b);
float __ldg(const float* place);

namespace machine {

struct Word {
  unsigned long long bits;

  float value() const;
  unsigned tag() const;
};

void post(Word* word, float value, unsigned tag);
Word peek(const Word* word);
void raise(unsigned* word, unsigned value);
unsigned raised(const unsigned* word);

constexpr unsigned MISSING = 0xffffffffu;

bool is_missing(float value);
void publish(float* place, float value);
void publish(float* place, const float (&values)[4]);
template <int COUNT>
inline void look(const float* place, float (&seen)[COUNT]) {
  emulator::look(place, seen, COUNT);
}

int kept(int value);
const float* kept(const float* array);
float inverse(float x);
double inverse(double x);
template <int MASK>
inline float from_lane(float value, int bits) {
  return emulator::exchange(value, (threadIdx.x & ~MASK) | bits);
}
float inverse_root(float x);
unsigned short to_half(float x);
float of_half(unsigned short half);
void multiply(const unsigned (&weights)[4], const unsigned (&states)[2], float (&sums)[4]);

unsigned rank_in_cluster();
unsigned address(const void* place);
unsigned address_in(unsigned address, unsigned rank);

void store_if(bool wanted, float* place, float value);
void copy_ahead(float* to, const float* from);
void copy_ahead_if(bool wanted, float* to, const float* from);
void copy_four_ahead(float* to, const float* from);
void end_of_copies();
template <int PENDING>
inline void wait_for_copies() {}

void cluster_barrier();
float load(unsigned there);
void init_barrier(unsigned barrier, int arrivals);
void publish_barriers();
void arrive_if(bool arrives, unsigned barrier, int bytes);
void wait(unsigned barrier, unsigned parity);
template <int NUMBER, int COUNT>
inline void sync() {
  emulator::sync(NUMBER, COUNT);
}
template <int NUMBER, int COUNT>
inline void signal() {
  emulator::signal(NUMBER, COUNT);
}
void send(unsigned there, float value, unsigned barrier_there);
void send(unsigned there, const float (&values)[4], unsigned barrier_there);

}  // namespace machine
