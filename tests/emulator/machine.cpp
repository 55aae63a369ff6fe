// The machine that runs kernels on a CPU, one for all of them. CUDA threads are fibers of one thread
// of the system: they change places where they wait, and blocks take their turns at random, so that
// one may run far ahead of another. Shared memory is NaN at first.
#include "cuda.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

constexpr int SHARED_BYTES = 232448;  // of a block, with those that its kernel has not asked for
Index threadIdx, blockIdx;

namespace emulator {

struct Barrier {
  int arrived = 0;
  unsigned phase = 0;
};

struct Fiber {
  const unsigned* watched = nullptr;  // what it waits for: another number than `seen` here
  unsigned seen;
  bool done = false;
};

// Where a fiber lives. It stays there for the next launch: to begin takes longer than a short kernel.
struct Home {
  char stack[1 << 16];
  bool started;
  jmp_buf place;
  char apart[5000];  // or the tops of all stacks would share a few lines of the cache
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
  // between the lanes of a warp, in turn: who writes has passed a barrier since the others read
  double exchanged[2][1024];
  float tiles[2][1024][12];  // the weights and states of a product of a warp
  bool votes[1024];
  float4* memory;  // shared by its threads
  Mbarrier mbarriers[16];
};

struct Range {
  const char *begin, *end;
};

Block* block;  // whose fiber runs
Fiber* fiber;
Home* home;
jmp_buf scheduler;
Block* blocks;  // of the cluster
int members, threads;
Barrier cluster;
unsigned long events;  // that somebody may have waited for
int memory_bytes;      // that a block has asked for
bool outside;          // whether memory beyond that and the arguments was used
bool several;          // whether several blocks at a time have variables of their own
Range arguments[64];
int argument_count;

void one_block() { several = several || members > 1; }

float4* shared_memory() { return block->memory; }

void yield() {
  if (_setjmp(home->place) == 0) _longjmp(scheduler, 1);
}

// Where one looks for what another does: lets others come to it now and then.
void poll() {
  static unsigned count = 0;
  if (++count % 8 == 0) yield();
}

// Waits while there is this number.
void wait_while(const unsigned& watched, unsigned seen) {
  if (watched != seen) return;
  fiber->watched = &watched;
  fiber->seen = seen;
  yield();
  fiber->watched = nullptr;
}

void pass(Barrier& barrier) {
  barrier.arrived = 0;
  ++barrier.phase;
  ++events;
}

void wait(Barrier& barrier, int members) {
  if (++barrier.arrived == members) {
    pass(barrier);
  } else {
    wait_while(barrier.phase, barrier.phase);
  }
}

Barrier& of_warp() { return block->warps[threadIdx.x / LANES_OF_A_WARP]; }

double exchange(double value, int from) {
  double* const exchanged = block->exchanged[of_warp().phase % 2];
  exchanged[threadIdx.x] = value;
  wait(of_warp(), LANES_OF_A_WARP);
  return exchanged[from];
}

void sync(int number, int count) { wait(block->named[number], count); }

void signal(int number, int count) {
  Barrier& barrier = block->named[number];
  if (++barrier.arrived == count) pass(barrier);
}

bool inside(const void* first, int bytes) {
  const char* const begin = static_cast<const char*>(first);
  for (int i = 0; i < argument_count; ++i)
    if (begin >= arguments[i].begin && begin + bytes <= arguments[i].end) return true;
  outside = true;
  return false;
}

void check_alignment(const void* place, int bytes) {
  outside = outside || reinterpret_cast<unsigned long>(place) % bytes != 0;
}

void look(const float* place, float* seen, int count) {
  poll();
  check_alignment(place, 4 * count);
  if (inside(place, 4 * count)) memcpy(seen, place, 4 * count);
}

// An address in a cluster has the block in its upper byte.
char* pointer(unsigned address) {
  return reinterpret_cast<char*>(blocks[address >> 24].memory) + (address & 0xffffff);
}

// That at an address, or a new one.
Mbarrier& mbarrier(unsigned address) {
  for (Mbarrier& found : blocks[address >> 24].mbarriers)
    if (found.count == 0 || found.place == address) {
      found.place = address;
      return found;
    }
  abort();
}

void send(unsigned there, const float* values, int bytes, unsigned barrier_there) {
  memcpy(pointer(there), values, bytes);
  Mbarrier& found = mbarrier(barrier_there);
  found.bytes -= bytes;
  found.advance();
  ++events;
}

}  // namespace emulator

void __syncthreads() { emulator::wait(emulator::block->all, emulator::threads); }
int __syncthreads_or(int predicate) {
  emulator::block->votes[threadIdx.x] = predicate;
  __syncthreads();
  bool any = false;
  for (int i = 0; i < emulator::threads; ++i) any = any || emulator::block->votes[i];
  __syncthreads();
  return any;
}
void __syncwarp() { emulator::wait(emulator::of_warp(), LANES_OF_A_WARP); }
unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  for (int bits = 1; bits < LANES_OF_A_WARP; bits *= 2) {
    const unsigned other = __shfl_xor_sync(mask, value, bits);
    value = value < other ? other : value;
  }
  return value;
}
unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
int min(int a, int b) { return a < b ? a : b; }
int max(int a, int b) { return a < b ? b : a; }
unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
unsigned atomicMax(unsigned* place, unsigned value) {
  const unsigned before = *place;
  *place = max(before, value);
  return before;
}
long long min(long long a, long long b) { return a < b ? a : b; }
void sincospi(double x, double* sin, double* cos) { sincos(M_PI * x, sin, cos); }
float rsqrtf(float x) { return 1 / sqrtf(x); }
float __fdividef(float a, float b) { return a / b; }
float __fmul_rn(float a, float b) { return a * b; }
float __fsub_rn(float a, float b) { return a - b; }
float __ldg(const float* place) { return emulator::inside(place, 4) ? *place : NAN; }

namespace machine {

float Word::value() const {
  float number;
  memcpy(&number, &bits, 4);
  return number;
}
unsigned Word::tag() const { return bits >> 32; }

void post(Word* word, float value, unsigned tag) {
  if (emulator::inside(word, 8))
    word->bits = (unsigned long long)tag << 32 | __float_as_uint(value);
  ++emulator::events;
}

Word peek(const Word* word) {
  emulator::poll();
  return *word;
}

void raise(unsigned* word, unsigned value) {
  if (emulator::inside(word, 4)) *word = value;
  ++emulator::events;
}

unsigned raised(const unsigned* word) {
  emulator::poll();
  return *word;
}

bool is_missing(float value) { return __float_as_uint(value) == MISSING; }

void publish(float* place, float value) {
  const unsigned bits = is_missing(value) ? 0x7fffffffu : __float_as_uint(value);
  if (emulator::inside(place, 4)) memcpy(place, &bits, 4);
  ++emulator::events;
}

void publish(float* place, const float (&values)[4]) {
  emulator::check_alignment(place, 16);
  for (int i = 0; i < 4; ++i) publish(place + i, values[i]);
}

int kept(int value) { return value; }
const float* kept(const float* array) { return array; }
float inverse(float x) { return 1 / x; }
double inverse(double x) { return 1 / x; }
float inverse_root(float x) { return 1 / sqrtf(x); }

// The unit in the last place of a half of this modulus is 2^-10 of its power of two, and 2^-24 at least.
unsigned short to_half(float x) {
  const unsigned sign = __float_as_uint(x) >> 16 & 0x8000u;
  if (x != x) return 0x7fffu;
  int exponent;
  frexpf(x, &exponent);  // half of the power is below |x|
  if (x == 0 || exponent < -13) exponent = -13;
  const float rounded = rintf(ldexpf(fabsf(x), 11 - exponent));  // in units of 2^(exponent - 11)
  if (!(ldexpf(rounded, exponent - 11) < 65520)) return sign | 0x7c00u;
  // a carry into the next power of two adds to the exponent
  return sign | (unsigned)rounded + (exponent + 13 << 10);
}
float of_half(unsigned short half) {
  const int exponent = half >> 10 & 31, digits = half & 1023;
  const float modulus = exponent == 31 ? (digits ? NAN : INFINITY)
                        : exponent     ? ldexpf(1024 + digits, exponent - 25)
                                       : ldexpf(digits, -24);
  return half >> 15 ? -modulus : modulus;
}

void multiply(const unsigned (&weights)[4], const unsigned (&states)[2], float (&sums)[4]) {
  const int lane = threadIdx.x % LANES_OF_A_WARP;
  auto* const tiles = emulator::block->tiles[emulator::of_warp().phase % 2] + threadIdx.x - lane;
  for (int i = 0; i < 12; ++i)
    tiles[lane][i] = of_half((i < 8 ? weights[i / 2] : states[i / 2 - 4]) >> i % 2 * 16);
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int output = lane / 4 + i / 2 * 8, row = 2 * (lane % 4) + i % 2;
    double sum = sums[i];
    for (int k = 0; k < 16; ++k) {
      const int place = k % 8 / 2, weight = output / 8 + k / 8 * 2, state = 4 + k / 8;
      sum += (double)tiles[output % 8 * 4 + place][2 * weight + k % 2] *
             tiles[row * 4 + place][2 * state + k % 2];
    }
    // towards 0, as tensor cores do
    sums[i] = sum;
    if (fabs(sums[i]) > fabs(sum)) sums[i] = nextafterf(sums[i], 0);
  }
}

unsigned rank_in_cluster() { return emulator::block->rank; }

unsigned address(const void* place) {
  const char* const base = reinterpret_cast<const char*>(emulator::block->memory);
  return static_cast<const char*>(place) - base + (rank_in_cluster() << 24);
}

unsigned address_in(unsigned address, unsigned rank) {
  return (address & 0xffffff) + (rank << 24);
}

void store_if(bool wanted, float* place, float value) {
  if (wanted && emulator::inside(place, 4)) *place = value;
}

void copy_ahead(float* to, const float* from) {
  if (emulator::inside(from, 4)) *to = *from;
}
void copy_ahead_if(bool wanted, float* to, const float* from) {
  if (wanted) copy_ahead(to, from);
}
void copy_four_ahead(float* to, const float* from) {
  emulator::check_alignment(to, 16);
  emulator::check_alignment(from, 16);
  if (emulator::inside(from, 16)) memcpy(to, from, 16);
}
void end_of_copies() {}

void cluster_barrier() {
  emulator::wait(emulator::cluster, emulator::members * emulator::threads);
}

float load(unsigned there) { return *reinterpret_cast<float*>(emulator::pointer(there)); }

void init_barrier(unsigned barrier, int arrivals) {
  emulator::Mbarrier& made = emulator::mbarrier(barrier);
  made.count = made.pending = arrivals;
}
void publish_barriers() {}

void arrive_if(bool arrives, unsigned barrier, int bytes) {
  if (!arrives) return;
  emulator::Mbarrier& found = emulator::mbarrier(barrier);
  found.bytes += bytes;
  --found.pending;
  found.advance();
  ++emulator::events;
}

void wait(unsigned barrier, unsigned parity) {
  const unsigned& phase = emulator::mbarrier(barrier).phase;
  while (phase % 2 == parity) emulator::wait_while(phase, phase);
}

void send(unsigned there, float value, unsigned barrier_there) {
  emulator::send(there, &value, 4, barrier_there);
}

void send(unsigned there, const float (&values)[4], unsigned barrier_there) {
  emulator::send(there, values, 16, barrier_there);
}

}  // namespace machine

namespace emulator {

extern "C" int late_block = -1;  // one that is slower than all others

constexpr long PATIENCE = 1000;  // turns of a block in which nothing happens
void (*kernel)(void**);          // with the arguments of the launch
void** given;

void run_fiber() {
  for (;;) {
    kernel(given);
    fiber->done = true;
    ++events;
    yield();
  }
}

// Fibers begin on stacks of their own; from then on `_longjmp` changes between them, which does not
// ask the system for anything as `swapcontext` does.
void start() {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = home->stack;
  context.uc_stack.ss_size = sizeof(home->stack);
  context.uc_link = nullptr;
  makecontext(&context, run_fiber, 0);
  home->started = true;
  setcontext(&context);
}

// Asks for the top of a stack, which is far away, while another fiber runs.
void fetch(const Home* home) {
  const char* const top = home->stack + sizeof(home->stack);
  for (int bytes = -256; bytes <= 64; bytes += 64) __builtin_prefetch(top + bytes);
}

// Lets a fiber run, after which comes the one `step` threads further.
void run(Block& own, int thread, int step, Home* homes) {
  block = &own;
  fiber = &own.fibers[thread];
  if (fiber->done || (fiber->watched && *fiber->watched == fiber->seen)) return;
  home = homes + thread;
  blockIdx.x = own.number;
  threadIdx.x = thread;
  fetch(home + step);
  if (_setjmp(scheduler) == 0) {
    if (home->started) _longjmp(home->place, 1);
    start();
  }
  block->left -= fiber->done;
}

constexpr long LATE = 100;  // how seldom a block that is late has its turn

// Nobody may read what the block had in shared memory, nor may it have written behind it.
void end(Block& own) {
  char* const memory = reinterpret_cast<char*>(own.memory);
  memset(memory, 0xff, memory_bytes);
  const int behind = min(SHARED_BYTES - memory_bytes, 4096);
  for (int i = 0; i < behind; ++i) outside = outside || memory[memory_bytes + i] != -1;
}

// Whether all of them came to their end.
bool run_cluster(Home* homes) {
  unsigned random = 1;
  long idle = 0, turns_of_late = 0;
  for (int over = 0; over < members;) {
    random = random * 1664525 + 1013904223;
    const int rank = (random >> 16) % members;
    Block& own = blocks[rank];
    if (own.left == 0) continue;
    if (own.number == late_block && idle < PATIENCE && ++turns_of_late % LATE > 0) continue;
    const unsigned long before = events;
    const int step = random >> 31 ? 1 : -1;
    for (int i = step > 0 ? 0 : threads - 1; 0 <= i && i < threads; i += step)
      run(own, i, step, homes + (size_t)rank * threads);
    if (own.left == 0) {
      ++over;
      end(own);
    }
    idle = events == before ? idle + 1 : 0;
    if (idle > PATIENCE * members) return false;
  }
  return true;
}

// Memory that stays for the next launch.
template <class Part>
struct Kept {
  Part* first = nullptr;
  size_t count = 0;

  // Whether it is new, and 0.
  bool demand(size_t wanted) {
    if (wanted <= count) return false;
    leave();
    void* const space = mmap(nullptr, wanted * sizeof(Part), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) abort();
    first = static_cast<Part*>(space);
    count = wanted;
    return true;
  }

  void leave() {
    if (count) munmap(first, count * sizeof(Part));
    count = 0;
  }
};

struct Shared {
  char bytes[SHARED_BYTES];
};

Kept<Home> homes;
Kept<Shared> shared;

constexpr size_t MOST = 4096;  // of more homes, the memory is given back

}  // namespace emulator

// Runs clusters, or teams, one after another, for one network after another. Returns 0, or 1 where
// anything but the memory of the arguments, in `ranges`, and the `memory` of blocks was touched, or 2 where threads wait for
// what does not come, or 3 where a cluster of blocks has `__shared__` variables, which are not
// emulated.
extern "C" int launch(void (*kernel)(void**), int clusters, int networks, int blocks, int threads,
                      int memory, void** arguments, int count, const char** ranges) {
  using namespace emulator;
  outside = several = false;
  emulator::kernel = kernel;
  given = arguments;
  members = blocks;
  emulator::threads = threads;
  memory_bytes = memory;
  argument_count = count;
  for (int i = 0; i < count; ++i) emulator::arguments[i] = {ranges[2 * i], ranges[2 * i + 1]};
  homes.demand((size_t)blocks * threads);
  if (shared.demand(blocks)) memset(shared.first, 0xff, sizeof(Shared) * blocks);
  bool ended = true;
  for (int number = 0; number < networks * clusters && ended; ++number) {
    blockIdx.y = number / clusters;
    // all of it begins with 0; `new` would need the library of C++
    emulator::blocks = static_cast<Block*>(calloc(blocks, sizeof(Block)));
    cluster = {};
    for (int rank = 0; rank < blocks; ++rank) {
      Block& own = emulator::blocks[rank];
      own.number = number % clusters * blocks + rank;
      own.rank = rank;
      own.left = threads;
      own.memory = reinterpret_cast<float4*>(shared.first + rank);
    }
    ended = run_cluster(homes.first);
    free(emulator::blocks);
  }
  // those that wait for ever cannot begin again
  if (!ended || homes.count > MOST) homes.leave();
  if (!ended) shared.leave();
  return !ended ? 2 : several ? 3 : outside ? 1 : 0;
}
