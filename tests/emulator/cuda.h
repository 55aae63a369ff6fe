// As much of CUDA as the kernels of cayley/kernels/cuda/src need, on a CPU. A block is a thread
// of the system, and a CUDA thread a fiber of it: fibers change places where they wait. Shared
// memory is NaN at first. What machine.cuh says in PTX is said here in C++.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(16) float4 {
  float x, y, z, w;
};

struct Index {
  int x = 0;
};

constexpr int SHARED_BYTES = 232448, LANES_OF_A_WARP = 32;
thread_local float4 shared[SHARED_BYTES / 16];
thread_local Index threadIdx, blockIdx;

namespace emulator {

struct Barrier {
  int arrived = 0;
  unsigned phase = 0;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  bool done = false;
};

struct Block {
  int rank, current = 0;
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  Barrier all, warps[32];
  double exchanged[1024];  // between the lanes of a warp
};

// One that counts arrivals and bytes, in shared memory of a block of a cluster.
struct Mbarrier {
  int count, pending;
  long bytes = 0;
  unsigned phase = 0;

  void advance() {
    if (pending == 0 && bytes == 0) {
      ++phase;
      pending = count;
    }
  }
};

thread_local Block* block;
std::mutex cluster;  // guards what follows
std::vector<float4*> memories;
std::vector<std::map<unsigned, Mbarrier>> mbarriers;
int members, arrived;
unsigned phase;
std::atomic<bool> outside;  // whether anything but an argument was read or written
std::atomic<bool> stuck;    // whether something is waited for that does not come
std::chrono::steady_clock::time_point deadline;
std::vector<std::pair<const char*, const char*>> arguments;  // where they begin and end

inline void yield() {
  Fiber& fiber = block->fibers[block->current];
  swapcontext(&fiber.context, &block->scheduler);
}

template <class Done>
void wait_until(Done done) {
  while (!done()) {
    yield();
    std::this_thread::yield();
  }
}

inline void wait(Barrier& barrier, int members) {
  const unsigned phase = barrier.phase;
  if (++barrier.arrived == members) {
    barrier.arrived = 0;
    ++barrier.phase;
  } else {
    wait_until([&] { return barrier.phase != phase; });
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
  for (const auto& range : arguments)
    if (begin >= range.first && begin + bytes <= range.second) return true;
  outside = true;
  return false;
}

// An address in a cluster has the block in its upper byte.
inline char* pointer(unsigned address) {
  return reinterpret_cast<char*>(memories[address >> 24]) + (address & 0xffffff);
}

inline Mbarrier& mbarrier(unsigned address) {
  return mbarriers[address >> 24].at(address & 0xffffff);
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::block->all, emulator::block->fibers.size()); }
inline int __syncthreads_or(int predicate) {
  emulator::block->exchanged[threadIdx.x] = predicate ? 1 : 0;
  __syncthreads();
  bool any = false;
  for (size_t i = 0; i < emulator::block->fibers.size(); ++i)
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
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }

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
  if (emulator::inside(word, 8))
    __atomic_store_n(&word->bits, (unsigned long long)tag << 32 | low, __ATOMIC_SEQ_CST);
}

inline Word peek(const Word* word) {
  static thread_local unsigned count = 0;
  if (++count % 8 == 0) {  // others have to come to what is waited for
    emulator::yield();
    std::this_thread::yield();
  }
  return {__atomic_load_n(&word->bits, __ATOMIC_SEQ_CST)};
}

inline unsigned rank_in_cluster() { return emulator::block->rank; }

inline unsigned address(const void* place) {
  const char* const base = reinterpret_cast<const char*>(shared);
  return static_cast<const char*>(place) - base + (rank_in_cluster() << 24);
}

inline unsigned address_in(unsigned address, unsigned rank) {
  return (address & 0xffffff) + (rank << 24);
}

inline void copy_ahead(float* to, const float* from) {
  if (emulator::inside(from, 4)) *to = *from;
}
inline void end_of_copies() {}
template <int PENDING>
inline void wait_for_copies() {}

inline void cluster_barrier() {
  unsigned phase;
  {
    const std::lock_guard<std::mutex> lock(emulator::cluster);
    phase = emulator::phase;
    if (++emulator::arrived == emulator::members) {
      emulator::arrived = 0;
      ++emulator::phase;
    }
  }
  emulator::wait_until([&] {
    const std::lock_guard<std::mutex> lock(emulator::cluster);
    return emulator::phase != phase;
  });
}

inline float load(unsigned there) { return *reinterpret_cast<float*>(emulator::pointer(there)); }

inline void init_barrier(unsigned barrier, int arrivals) {
  const std::lock_guard<std::mutex> lock(emulator::cluster);
  emulator::mbarriers[barrier >> 24][barrier & 0xffffff] = {arrivals, arrivals};
}
inline void publish_barriers() {}

inline void arrive_expecting(unsigned barrier, int bytes) {
  const std::lock_guard<std::mutex> lock(emulator::cluster);
  emulator::Mbarrier& found = emulator::mbarrier(barrier);
  found.bytes += bytes;
  --found.pending;
  found.advance();
}
inline void arrive(unsigned barrier) { arrive_expecting(barrier, 0); }

inline void wait(unsigned barrier, unsigned parity) {
  emulator::wait_until([&] {
    const std::lock_guard<std::mutex> lock(emulator::cluster);
    return emulator::mbarrier(barrier).phase % 2 != parity;
  });
}

inline void send(unsigned there, const float (&values)[4], unsigned barrier_there) {
  const std::lock_guard<std::mutex> lock(emulator::cluster);
  memcpy(emulator::pointer(there), values, 16);
  emulator::Mbarrier& found = emulator::mbarrier(barrier_there);
  found.bytes -= 16;
  found.advance();
}

}  // namespace machine

// The kernel, with the arguments of the launch; each source file has its own.
void run_kernel(void** arguments);

namespace emulator {

thread_local void** given;

void run_fiber() {
  run_kernel(given);
  block->fibers[block->current].done = true;
  yield();
}

void run_block(int number, int rank, int threads, void** pointers) {
  memset(shared, 0xff, sizeof(shared));
  memories[rank] = shared;
  Block own;
  own.rank = rank;
  own.fibers.resize(threads);
  block = &own;
  blockIdx.x = number;
  given = pointers;
  for (Fiber& fiber : own.fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (int left = threads; left > 0 && !stuck;) {
    for (int i = 0; i < threads; ++i) {
      Fiber& fiber = own.fibers[i];
      if (fiber.done) continue;
      own.current = threadIdx.x = i;
      swapcontext(&own.scheduler, &fiber.context);
      left -= fiber.done;
    }
    if (std::chrono::steady_clock::now() > deadline) stuck = true;
  }
}

}  // namespace emulator

// Clusters, or teams, one after another, and their blocks at the same time. Returns 0, or 1 where
// anything but the memory of the arguments, in `ranges`, was touched, or 2 after so many seconds.
extern "C" int launch(int clusters, int blocks, int threads, void** arguments, int count,
                      const char** ranges, int seconds) {
  emulator::outside = emulator::stuck = false;
  emulator::deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  emulator::arguments.clear();
  for (int i = 0; i < count; ++i) emulator::arguments.push_back({ranges[2 * i], ranges[2 * i + 1]});
  for (int cluster = 0; cluster < clusters; ++cluster) {
    emulator::memories.assign(blocks, nullptr);
    emulator::mbarriers.assign(blocks, {});
    emulator::members = blocks * threads;
    emulator::arrived = 0;
    std::vector<std::thread> running;
    for (int rank = 0; rank < blocks; ++rank)
      running.emplace_back(emulator::run_block, cluster * blocks + rank, rank, threads, arguments);
    for (std::thread& thread : running) thread.join();
  }
  return emulator::stuck ? 2 : emulator::outside ? 1 : 0;
}
