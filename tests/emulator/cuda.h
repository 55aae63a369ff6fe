// As much of CUDA as the kernels of cayley/kernels/cuda/src need, on a CPU. CUDA threads are fibers
// of one thread of the system: they change places where they wait, and blocks take their turns at
// random, so that one may run far ahead of another. Shared memory is NaN at first. What machine.cuh
// says in PTX is said here in C++.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __shared__ emulator::one_block(); static
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};

struct Index {
  int x = 0, y = 0;
};

constexpr int SHARED_BYTES = 232448, LANES_OF_A_WARP = 32;
Index threadIdx, blockIdx;

namespace emulator {

struct Barrier {
  int arrived = 0;
  unsigned phase = 0;
};

struct Fiber {
  jmp_buf place;
  const unsigned* watched = nullptr;  // what it waits for: another number than `seen` here
  unsigned seen;
  bool started = false, done = false;
};

// One that counts arrivals and bytes, in shared memory of a block of a cluster.
struct Mbarrier {
  unsigned place;
  int count = 0, pending = 0;
  long bytes = 0;
  unsigned phase = 0;

  void advance() {
    if (pending == 0 && bytes == 0) {
      ++phase;
      pending = count;
    }
  }
};

struct Block {
  int number, rank, left;
  Fiber fibers[1024];
  Barrier all, warps[32], named[4];
  double exchanged[1024];  // between the lanes of a warp
  float4* memory;          // shared by its threads
  Mbarrier mbarriers[16];
};

struct Range {
  const char *begin, *end;
};

Block* block;  // whose fiber runs
Fiber* fiber;
jmp_buf scheduler;
Block* blocks;  // of the cluster
int members, threads;
Barrier cluster;
unsigned long events;  // that somebody may have waited for
bool outside;          // whether anything but an argument was read or written
bool several;          // whether several blocks at a time have variables of their own
Range arguments[64];
int argument_count;

// Variables of a block are those of the program: enough where there is one block at a time.
inline void one_block() { several = several || members > 1; }

inline void yield() {
  if (_setjmp(fiber->place) == 0) _longjmp(scheduler, 1);
}

// Waits while there is this number.
inline void wait_while(const unsigned& watched, unsigned seen) {
  if (watched != seen) return;
  fiber->watched = &watched;
  fiber->seen = seen;
  yield();
  fiber->watched = nullptr;
}

inline void wait(Barrier& barrier, int members) {
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.phase;
    ++events;
  } else {
    wait_while(barrier.phase, barrier.phase);
  }
}

inline void wait_for_warp() { wait(block->warps[threadIdx.x / LANES_OF_A_WARP], LANES_OF_A_WARP); }

inline double exchange(double value, int from) {
  block->exchanged[threadIdx.x] = value;
  wait_for_warp();
  const double other = block->exchanged[from];
  wait_for_warp();
  return other;
}

inline bool inside(const void* first, int bytes) {
  const char* const begin = static_cast<const char*>(first);
  for (int i = 0; i < argument_count; ++i)
    if (begin >= arguments[i].begin && begin + bytes <= arguments[i].end) return true;
  outside = true;
  return false;
}

// An address in a cluster has the block in its upper byte.
inline char* pointer(unsigned address) {
  return reinterpret_cast<char*>(blocks[address >> 24].memory) + (address & 0xffffff);
}

// That at an address, or a new one.
inline Mbarrier& mbarrier(unsigned address) {
  for (Mbarrier& found : blocks[address >> 24].mbarriers)
    if (found.count == 0 || found.place == address) {
      found.place = address;
      return found;
    }
  abort();
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::block->all, emulator::threads); }
inline int __syncthreads_or(int predicate) {
  emulator::block->exchanged[threadIdx.x] = predicate ? 1 : 0;
  __syncthreads();
  bool any = false;
  for (int i = 0; i < emulator::threads; ++i)
    any = any || emulator::block->exchanged[i] != 0;
  __syncthreads();
  return any;
}
inline void __syncwarp() { emulator::wait_for_warp(); }
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int bits) {
  return emulator::exchange(value, threadIdx.x ^ bits);
}
template <class T>
inline T __shfl_sync(unsigned, T value, int lane) {
  return emulator::exchange(value, threadIdx.x / LANES_OF_A_WARP * LANES_OF_A_WARP + lane % 32);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  for (int bits = 1; bits < LANES_OF_A_WARP; bits *= 2) {
    const unsigned other = __shfl_xor_sync(mask, value, bits);
    value = value < other ? other : value;
  }
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline void sincospi(double x, double* sin, double* cos) { sincos(M_PI * x, sin, cos); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }

inline float __ldg(const float* place) { return emulator::inside(place, 4) ? *place : NAN; }

namespace machine {

struct Word {
  unsigned long long bits;

  float value() const {
    float number;
    memcpy(&number, &bits, 4);
    return number;
  }
  unsigned tag() const { return bits >> 32; }
};

inline void post(Word* word, float value, unsigned tag) {
  unsigned low;
  memcpy(&low, &value, 4);
  if (emulator::inside(word, 8)) word->bits = (unsigned long long)tag << 32 | low;
  ++emulator::events;
}

inline Word peek(const Word* word) {
  static unsigned count = 0;
  if (++count % 8 == 0) emulator::yield();  // others have to come to what is waited for
  return *word;
}

inline void raise(unsigned* word, unsigned value) {
  if (emulator::inside(word, 4)) *word = value;
  ++emulator::events;
}

inline unsigned raised(const unsigned* word) {
  static unsigned count = 0;
  if (++count % 8 == 0) emulator::yield();  // others have to come to what is waited for
  return *word;
}

constexpr unsigned MISSING = 0xffffffffu;

inline bool is_missing(float value) { return __float_as_uint(value) == MISSING; }

inline void publish(float* place, float value) {
  const unsigned bits = is_missing(value) ? 0x7fffffffu : __float_as_uint(value);
  if (emulator::inside(place, 4)) memcpy(place, &bits, 4);
  ++emulator::events;
}

inline void publish(float* place, const float (&values)[4]) {
  emulator::outside = emulator::outside || (unsigned long)place % 16 != 0;
  for (int i = 0; i < 4; ++i) publish(place + i, values[i]);
}

template <int COUNT>
inline void look(const float* place, float (&seen)[COUNT]) {
  static unsigned count = 0;
  if (++count % 8 == 0) emulator::yield();  // others have to come to what is waited for
  emulator::outside = emulator::outside || (unsigned long)place % (4 * COUNT) != 0;
  if (emulator::inside(place, 4 * COUNT)) memcpy(seen, place, 4 * COUNT);
}

inline int kept(int value) { return value; }
inline const float* kept(const float* array) { return array; }
inline float inverse(float x) { return 1 / x; }
template <int MASK>
inline float from_lane(float value, int bits) {
  return emulator::exchange(value, (threadIdx.x & ~MASK) | bits);
}
inline float inverse_root(float x) { return 1 / sqrtf(x); }

inline unsigned rank_in_cluster() { return emulator::block->rank; }

inline unsigned address(const void* place) {
  const char* const base = reinterpret_cast<const char*>(emulator::block->memory);
  return static_cast<const char*>(place) - base + (rank_in_cluster() << 24);
}

inline unsigned address_in(unsigned address, unsigned rank) {
  return (address & 0xffffff) + (rank << 24);
}

inline void store_if(bool wanted, float* place, float value) {
  if (wanted && emulator::inside(place, 4)) *place = value;
}

inline void copy_ahead(float* to, const float* from) {
  if (emulator::inside(from, 4)) *to = *from;
}
inline void copy_ahead_if(bool wanted, float* to, const float* from) {
  if (wanted) copy_ahead(to, from);
}
inline void copy_four_ahead(float* to, const float* from) {
  emulator::outside = emulator::outside || ((unsigned long)to | (unsigned long)from) % 16 != 0;
  if (emulator::inside(from, 16)) memcpy(to, from, 16);
}
inline void end_of_copies() {}
template <int PENDING>
inline void wait_for_copies() {}

inline void cluster_barrier() {
  emulator::wait(emulator::cluster, emulator::members * emulator::threads);
}

inline float load(unsigned there) { return *reinterpret_cast<float*>(emulator::pointer(there)); }

inline void init_barrier(unsigned barrier, int arrivals) {
  emulator::Mbarrier& made = emulator::mbarrier(barrier);
  made.count = made.pending = arrivals;
}
inline void publish_barriers() {}

inline void arrive_if(bool arrives, unsigned barrier, int bytes) {
  if (!arrives) return;
  emulator::Mbarrier& found = emulator::mbarrier(barrier);
  found.bytes += bytes;
  --found.pending;
  found.advance();
  ++emulator::events;
}

inline void wait(unsigned barrier, unsigned parity) {
  const unsigned& phase = emulator::mbarrier(barrier).phase;
  while (phase % 2 == parity) emulator::wait_while(phase, phase);
}

template <int NUMBER, int COUNT>
inline void sync() {
  emulator::wait(emulator::block->named[NUMBER], COUNT);
}

template <int NUMBER, int COUNT>
inline void signal() {
  emulator::Barrier& barrier = emulator::block->named[NUMBER];
  if (++barrier.arrived < COUNT) return;
  barrier.arrived = 0;
  ++barrier.phase;
  ++emulator::events;
}

inline void send(unsigned there, float value, unsigned barrier_there) {
  memcpy(emulator::pointer(there), &value, 4);
  emulator::Mbarrier& found = emulator::mbarrier(barrier_there);
  found.bytes -= 4;
  found.advance();
  ++emulator::events;
}

inline void send(unsigned there, const float (&values)[4], unsigned barrier_there) {
  memcpy(emulator::pointer(there), values, 16);
  emulator::Mbarrier& found = emulator::mbarrier(barrier_there);
  found.bytes -= 16;
  found.advance();
  ++emulator::events;
}

}  // namespace machine

// The kernel, with the arguments of the launch; each source file has its own.
void run_kernel(void** arguments);

namespace emulator {

extern "C" int late_block = -1;  // one that is slower than all others

constexpr size_t STACK = 1 << 16;
constexpr long PATIENCE = 1000;  // turns of a block in which nothing happens
void** given;

void run_fiber() {
  run_kernel(given);
  fiber->done = true;
  ++events;
  _longjmp(scheduler, 1);
}

// Fibers begin on stacks of their own; from then on `_longjmp` changes between them, which does not
// ask the system for anything as `swapcontext` does.
void start(char* stack) {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, run_fiber, 0);
  fiber->started = true;
  setcontext(&context);
}

void run(Block& own, int thread, char* stack) {
  block = &own;
  fiber = &own.fibers[thread];
  if (fiber->done || (fiber->watched && *fiber->watched == fiber->seen)) return;
  blockIdx.x = own.number;
  threadIdx.x = thread;
  if (_setjmp(scheduler) == 0) {
    if (fiber->started) _longjmp(fiber->place, 1);
    start(stack);
  }
  block->left -= fiber->done;
}

constexpr long LATE = 100;  // how seldom a block that is late has its turn

// Whether all of them came to their end.
bool run_cluster(char* stacks) {
  unsigned random = 1;
  long idle = 0, turns_of_late = 0;
  for (int over = 0; over < members;) {
    random = random * 1664525 + 1013904223;
    const int rank = (random >> 16) % members;
    Block& own = blocks[rank];
    if (own.left == 0) continue;
    if (own.number == late_block && idle < PATIENCE && ++turns_of_late % LATE > 0) continue;
    const unsigned long before = events;
    for (int i = 0; i < threads; ++i) {
      const int thread = random >> 31 ? i : threads - 1 - i;
      run(own, thread, stacks + ((size_t)rank * threads + thread) * STACK);
    }
    over += own.left == 0;
    idle = events == before ? idle + 1 : 0;
    if (idle > PATIENCE * members) return false;
  }
  return true;
}

}  // namespace emulator

// Clusters, or teams, one after another, for one network after another. Returns 0, or 1 where anything but the memory of the
// arguments, in `ranges`, was touched, or 2 where threads wait for what does not come, or 3 where
// a cluster of blocks has `__shared__` variables, which are not emulated.
extern "C" int launch(int clusters, int networks, int blocks, int threads, void** arguments,
                      int count, const char** ranges) {
  using namespace emulator;
  outside = several = false;
  given = arguments;
  members = blocks;
  emulator::threads = threads;
  argument_count = count;
  for (int i = 0; i < count; ++i) emulator::arguments[i] = {ranges[2 * i], ranges[2 * i + 1]};
  const size_t stacks = STACK * blocks * threads, memory = (size_t)SHARED_BYTES * blocks;
  char* const space = static_cast<char*>(mmap(nullptr, stacks + memory, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (space == MAP_FAILED) abort();
  bool ended = true;
  for (int number = 0; number < networks * clusters && ended; ++number) {
    blockIdx.y = number / clusters;
    memset(space + stacks, 0xff, memory);
    // all of it begins with 0; `new` would need the library of C++
    emulator::blocks = static_cast<Block*>(calloc(blocks, sizeof(Block)));
    cluster = {};
    for (int rank = 0; rank < blocks; ++rank) {
      Block& own = emulator::blocks[rank];
      own.number = number % clusters * blocks + rank;
      own.rank = rank;
      own.left = threads;
      own.memory = reinterpret_cast<float4*>(space + stacks + (size_t)SHARED_BYTES * rank);
    }
    ended = run_cluster(space);
    free(emulator::blocks);
  }
  munmap(space, stacks + memory);
  return !ended ? 2 : several ? 3 : outside ? 1 : 0;
}
