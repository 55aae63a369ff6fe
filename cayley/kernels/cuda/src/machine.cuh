// Instructions that CUDA C++ reaches through inline assembly only.
#pragma once

namespace machine {

// A number that is to stay in a register: the compiler cannot compute it again.
__device__ inline int kept(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The same for an address. To be read by __ldg: the compiler does not know its kind any more.
__device__ inline const float* kept(const float* array) {
  asm volatile("" : "+l"(array));
  return array;
}

__device__ inline unsigned address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Of normal numbers, off by 2 units in the last place at most.
__device__ inline float inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same in double precision: an estimate y of 20 bits times 1 + e + e^2, with e = 1 - x y.
__device__ inline double inverse(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  const double e = fma(-x, y, 1.0);
  return fma(y, fma(e, e, e), y);
}

__device__ inline float inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What the lane has whose number has `bits` at the bits of MASK, and else is that of this one.
template <int MASK>
__device__ inline float from_lane(float value, int bits) {
  float other;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, %3, -1;"
               : "=f"(other)
               : "f"(value), "r"(bits), "n"((31 & ~MASK) << 8 | 31));
  return other;
}

// The nearest half, a number of 11 bits, and the number that a half is.
__device__ inline unsigned short to_half(float x) {
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  return half;
}

__device__ inline float of_half(unsigned short half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
  return x;
}

// Adds to a tile of 16 outputs and 8 rows the product of 16 outputs and 16 inputs with 16 inputs and
// 8 rows. Lane l has pairs of halves, of the inputs 2 (l % 4) and the next, or these plus 8: weights
// of the outputs l / 4 and l / 4 + 8 in turn, first with the former inputs and then with the latter;
// both of row l / 4; and the sums of output l / 4 and rows 2 (l % 4) and the next, then those of
// output l / 4 + 8.
__device__ inline void multiply(const unsigned (&weights)[4], const unsigned (&states)[2],
                                float (&sums)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(states[0]),
        "r"(states[1]));
}

// Without a branch: what is before and after it can be mixed.
__device__ inline void store_if(bool wanted, float* place, float value) {
  asm volatile(
      "{\n .reg .pred p;\n"
      " setp.ne.u32 p, %0, 0;\n"
      " @p st.global.f32 [%1], %2;\n}" ::"r"((unsigned)wanted),
      "l"(place), "f"(value)
      : "memory");
}

// Copies four bytes into shared memory in the background.
__device__ inline void copy_ahead(float* shared, const float* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address(shared)), "l"(global)
               : "memory");
}

// Without a branch, too.
__device__ inline void copy_ahead_if(bool wanted, float* shared, const float* global) {
  asm volatile(
      "{\n .reg .pred p;\n"
      " setp.ne.u32 p, %0, 0;\n"
      " @p cp.async.ca.shared.global [%1], [%2], 4;\n}" ::"r"((unsigned)wanted),
      "r"(address(shared)), "l"(global)
      : "memory");
}

// Copies four numbers, not through the cache of the multiprocessor, which may have older ones.
__device__ inline void copy_four_ahead(float* shared, const float* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(shared)), "l"(global)
               : "memory");
}

__device__ inline void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of copies of this thread but the PENDING last ones.
template <int PENDING>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A number and the tag of what it belongs to, in one word of global memory: another block that sees
// the one sees the other, and nothing has to be said about the order of words.
struct Word {
  unsigned long long bits;

  __device__ float value() const { return __uint_as_float((unsigned)bits); }
  __device__ unsigned tag() const { return bits >> 32; }
};

__device__ inline void post(Word* word, float value, unsigned tag) {
  const unsigned long long bits = (unsigned long long)tag << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(bits) : "memory");
}

__device__ inline Word peek(const Word* word) {
  Word seen;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(seen.bits) : "l"(word) : "memory");
  return seen;
}

// A word that grows. Who reads its new value also sees what all threads of the block wrote before a
// barrier that came before it.
__device__ inline void raise(unsigned* word, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ inline unsigned raised(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// A number in global memory that one block writes once and others wait for. Until it is there, the
// place has the bits MISSING, which no number has that is written.
constexpr unsigned MISSING = 0xffffffffu;

__device__ inline bool is_missing(float value) { return __float_as_uint(value) == MISSING; }

// The bits of a number. A NaN can have many, and gets others where it has those of MISSING.
__device__ inline unsigned published(float value) {
  return is_missing(value) ? 0x7fffffffu : __float_as_uint(value);
}

__device__ inline void publish(float* place, float value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place), "r"(published(value))
               : "memory");
}

__device__ inline void publish(float* place, const float (&values)[4]) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(place),
               "r"(published(values[0])), "r"(published(values[1])), "r"(published(values[2])),
               "r"(published(values[3]))
               : "memory");
}

// COUNT of them, one beside another, each of which may be missing. They come from the cache that
// all blocks share, not from that of the multiprocessor, which may have older ones.
template <int COUNT>
__device__ inline void look(const float* place, float (&seen)[COUNT]) {
  static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4);
  if constexpr (COUNT == 4)
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(seen[0]), "=f"(seen[1]), "=f"(seen[2]), "=f"(seen[3])
                 : "l"(place)
                 : "memory");
  else if constexpr (COUNT == 2)
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];"
                 : "=f"(seen[0]), "=f"(seen[1])
                 : "l"(place)
                 : "memory");
  else
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(seen[0]) : "l"(place) : "memory");
}

__device__ inline unsigned rank_in_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address that a shared variable of this block has in another block of the cluster.
__device__ inline unsigned address_in(unsigned shared, unsigned rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}

// What lies at such an address.
__device__ inline float load(unsigned there) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
  return value;
}

__device__ inline void init_barrier(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Without a branch, too.
__device__ inline void arrive_if(bool arrives, unsigned barrier, int bytes) {
  asm volatile(
      "{\n .reg .pred p;\n"
      " setp.ne.u32 p, %0, 0;\n"
      " @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %2;\n}" ::"r"((unsigned)arrives),
      "r"(barrier), "r"(bytes)
      : "memory");
}

__device__ inline void wait(unsigned barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n .reg .pred p;\n"
        " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        " selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

// A barrier for COUNT threads of a block; that of all its threads has number 0. All who wait do so
// here, in one place of the program.
template <int NUMBER, int COUNT>
__device__ inline void sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(COUNT) : "memory");
}

// Arrives there and goes on, while the others wait for it.
template <int NUMBER, int COUNT>
__device__ inline void signal() {
  asm volatile("bar.arrive %0, %1;" ::"n"(NUMBER), "n"(COUNT) : "memory");
}

// Stores into a block of the cluster and tells the barrier there.
__device__ inline void send(unsigned there, float value, unsigned barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
      "r"(__float_as_int(value)), "r"(barrier_there)
      : "memory");
}

__device__ inline void send(unsigned there, const float (&values)[4], unsigned barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 "
      "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
      "r"(__float_as_int(values[0])), "r"(__float_as_int(values[1])),
      "r"(__float_as_int(values[2])), "r"(__float_as_int(values[3])), "r"(barrier_there)
      : "memory");
}

}  // namespace machine
