// What the two LSTM kernels share whose statistics join the rows of the batch. A block has UNITS
// units of all rows, so that sums over the rows stay in the block. What all blocks need of each
// other is one array a step: the states, or on the way back the gradients of the gates. It lies in
// global memory, where machine::MISSING stands until a number is written. All blocks run at the
// same time.
//
// A step has two parts. In the first, SPLITS lanes share the product of a row with the weights of
// the block, and groups of so many lanes take ROWS rows each at a time. In the second, PARTS warps
// share a unit, and every lane has ITEMS rows of it. A TEAM of blocks, a cluster, shares the products
// of all its units: each block has some of the rows, so that it reads no others. There, each part has
// warps of its own: those of the second store what they have found and read what they will need
// while those of the first already wait for the other blocks.
//
// sizes.cuh, which batch_layout.py writes for each of the two directions, defines these; H, the
// number of all units, and VECTOR, the states that a lane reads at a time; NORM_X, NORM_H and
// NORM_C, which of the normalisations there are; GIVEN, whether their statistics are given;
// WINDOWED, whether they are those of K > 1 steps; EXTERNAL, whether they have gradients of their
// own; EPS; and PACKED, which steps.cuh explains.
#pragma once

#include "lstm_gates.cuh"
#include "sizes.cuh"

#include "machine.cuh"
#include "steps.cuh"

constexpr int GATES = 4;
constexpr int FEATURES = 2 * GATES + 1;  // of a unit: those of N_x, N_h and N_c
enum First { OF_X = 0, OF_H = GATES, OF_C = 2 * GATES };

constexpr bool IN_TEAM = TEAM > 1;
constexpr int WARPS = THREADS / 32;
constexpr int STRIDE = 32 * PARTS * ITEMS + 4;  // from a product to the next one of a row
constexpr int MEMBERS = 32 * UNITS * PARTS;     // threads of the second part
constexpr int WORKERS = IN_TEAM ? THREADS - MEMBERS : THREADS;  // those of the first, which are last

static_assert(THREADS % 32 == 0 && MEMBERS <= THREADS && WORKERS > 0);

// Barriers of some of the threads, by their numbers.
enum Barrier { OF_MEMBERS = 1, OF_RESULTS };

// Whether a block has units: in a team, the last may have none. Its workers multiply their rows like
// those of all others. But nobody sends it products: since nobody waits for results of it, those of
// a step could come before it has taken the ones before.
__device__ inline bool has_units(int block) { return !IN_TEAM || block * UNITS < H; }

__device__ inline bool is_worker() { return threadIdx.x >= THREADS - WORKERS; }

// All threads that take part in the second part.
__device__ inline void sync_members() {
  if constexpr (IN_TEAM)
    machine::sync<OF_MEMBERS, MEMBERS>();
  else
    __syncthreads();
}

// What a thread is for in the second part of a step.
struct Member {
  int lane, warp, part;
  int slot, unit;  // among the units of the block, and among all
  bool here;       // there is such a unit: all lanes of a warp agree

  __device__ Member() {
    // kept, since a step would wait for the number of its thread again and again
    const int thread = machine::kept(threadIdx.x);
    lane = thread % 32;
    warp = thread / 32;
    part = warp % PARTS;
    slot = warp / PARTS;
    unit = blockIdx.x * UNITS + slot;
    here = slot < UNITS && unit < H;
  }

  __device__ int row(int item) const { return (item * PARTS + part) * 32 + lane; }
  __device__ bool has(int item, int rows) const { return here && row(item) < rows; }
  // A lane with one row also computes one that is not there, which nothing else comes from, rather
  // than branch before the other blocks get what they wait for. Several would take registers.
  __device__ bool computes(int item, int rows) const {
    return ITEMS == 1 ? here : has(item, rows);
  }
};

// Four numbers of a unit at every row of all steps: those of the gates, in an array (rows, GATES H),
// or in one (GATES H, rows), where a warp reads and writes numbers that lie side by side.
template <class Number>
struct Rows {
  Number* array;
  int row, feature;  // how far it is to the next one

  // For an item of a step, which begins with row `start`.
  __device__ Number& at(const Member& member, long long start, int item, int i) const {
    return array[(start + member.row(item)) * row + (i * H + member.unit) * (long long)feature];
  }
};

// Members tell the workers of their block that its results of a step are on their way: those of the
// other blocks are about to come, and looking for them before would only be in the way. Warps without
// rows do so too, as the barrier counts all threads.
__device__ inline void tell_workers() {
  if constexpr (IN_TEAM) machine::signal<OF_RESULTS, THREADS>();
}

__device__ inline void wait_for_members() { machine::sync<OF_RESULTS, THREADS>(); }

// The number of rows that a part has, of so many.
__device__ inline int rows_of_part(int part, int rows) {
  int count = 0;
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const int left = rows - (item * PARTS + part) * 32;
    count += left < 0 ? 0 : left < 32 ? left : 32;
  }
  return count;
}

// 1/n to the last digit or almost, and 1 for 1.
__device__ inline float inverse_of(int count) {
  const float n = count, near = machine::inverse(n);
  return fmaf(near, fmaf(-n, near, 1.0f), near);
}

// 1/√(variance + EPS).
__device__ inline float scale_of(float variance) {
  if constexpr (EPS > 1e-30f) return machine::inverse_root(variance + EPS);
  return rsqrtf(variance + EPS);
}

// Adds up the first LEFT values over LANES neighbouring lanes. At every level a lane hands half of
// them over, until it has one, whose sum then is with several lanes. Returns the first that a lane
// ends with; the upper bits of its number tell.
template <int LANES, int LEFT, int COUNT>
__device__ inline int scatter_sums(int lane, float (&values)[COUNT]) {
  if constexpr (LANES == 1) {
    return 0;
  } else if constexpr (LEFT == 1) {
    values[0] += __shfl_xor_sync(~0u, values[0], LANES / 2);
    return scatter_sums<LANES / 2, 1>(lane, values);
  } else {
    constexpr int HALF = LEFT / 2;
    const bool upper = lane & LANES / 2;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
      const float kept = upper ? values[i + HALF] : values[i];
      const float sent = upper ? values[i] : values[i + HALF];
      values[i] = kept + __shfl_xor_sync(~0u, sent, LANES / 2);
    }
    return (upper ? HALF : 0) + scatter_sums<LANES / 2, HALF>(lane, values);
  }
}

// The product of weights with numbers of all blocks. The weights are in shared memory, or if a lane
// has at most REGISTERS of them there.
template <int INPUTS, int OUTPUTS, int WIDTH, int REGISTERS>
struct Product {
  static constexpr int LANES = SPLITS, TURN = ROWS;
  static constexpr int GROUPS = WORKERS / LANES;
  static constexpr int STEP = LANES * WIDTH;
  static constexpr int CHUNKS = (INPUTS + STEP - 1) / STEP;
  static constexpr int FLOATS = CHUNKS * OUTPUTS * STEP;
  static constexpr int SUMS = TURN * OUTPUTS;
  static constexpr int VALUES = SUMS > LANES ? SUMS / LANES : 1;  // that a lane ends with
  static constexpr int REPLICAS = SUMS < LANES ? LANES / SUMS : 1;
  // chunks that are on their way at a time
  static constexpr int SEEN = IN_TEAM ? 48 : 32;  // the most numbers of these
  static constexpr int ROOM = SEEN / (TURN * WIDTH) < 1 ? 1 : SEEN / (TURN * WIDTH);
  static constexpr int AHEAD = ROOM < CHUNKS ? ROOM : CHUNKS;
  static constexpr bool KEPT = AHEAD == CHUNKS && CHUNKS * OUTPUTS * WIDTH <= REGISTERS;

  struct alignas(4 * WIDTH) Vector {
    float at[WIDTH];
  };

  const Vector* weights;  // (CHUNKS, OUTPUTS, LANES)
  Vector kept[KEPT ? CHUNKS : 1][KEPT ? OUTPUTS : 1];

  // entry(output, input) gives the matrix.
  template <class Entry>
  __device__ void init(float* memory, Entry entry) {
    weights = reinterpret_cast<const Vector*>(memory);
#pragma unroll 1
    for (int i = threadIdx.x; i < FLOATS; i += THREADS) {
      const int input = i / (OUTPUTS * STEP) * STEP + i % STEP;
      memory[i] = input < INPUTS ? entry(i / STEP % OUTPUTS, input) : 0.0f;
    }
    if constexpr (KEPT) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < CHUNKS * OUTPUTS; ++i)
        kept[i / OUTPUTS][i % OUTPUTS] = weights[i * LANES + threadIdx.x % LANES];
    }
  }

  // Of the rows of an array (·, INPUTS) from one to another, each to be taken by
  // deliver(output, row, product); what is missing is waited for, if any can be.
  template <bool WAITS, class Deliver>
  __device__ void multiply(const float* array, int begin, int rows, Deliver deliver) const {
    const int split = threadIdx.x % LANES, group = (threadIdx.x - (THREADS - WORKERS)) / LANES;
#pragma unroll 1
    for (int base = begin + group; base - group < rows; base += GROUPS * TURN) {
      float sums[SUMS] = {};
      const float* const own_row = array + ((long long)base * INPUTS + split * WIDTH);
#pragma unroll 1
      for (int first = 0; first < CHUNKS; first += AHEAD) {
        Vector seen[AHEAD][TURN] = {};
        const auto place = [&](int i, int r) {
          return own_row + (r * GROUPS * INPUTS + (first + i) * LANES * WIDTH);
        };
        const auto wanted = [&](int i, int r) {
          return base + r * GROUPS < rows && ((first + i) * LANES + split) * WIDTH < INPUTS;
        };
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
#pragma unroll
          for (int r = 0; r < TURN; ++r)
            if (wanted(i, r)) {
              if constexpr (WAITS)
                machine::look(place(i, r), seen[i][r].at);
              else
                // which may begin anywhere
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) seen[i][r].at[e] = place(i, r)[e];
            }
        bool missing = WAITS;
        while (missing) {
          missing = false;
#pragma unroll
          for (int i = 0; i < AHEAD; ++i)
#pragma unroll
            for (int r = 0; r < TURN; ++r) {
              bool any = false;
#pragma unroll
              for (int e = 0; e < WIDTH; ++e)
                any = any || machine::is_missing(seen[i][r].at[e]);
              if (any) machine::look(place(i, r), seen[i][r].at);
              missing = missing || any;
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
          if (first + i < CHUNKS)
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) {
              const Vector weight =
                  KEPT ? kept[KEPT ? i : 0][KEPT ? o : 0]
                       : weights[((first + i) * OUTPUTS + o) * LANES + split];
#pragma unroll
              for (int r = 0; r < TURN; ++r)
#pragma unroll
                for (int e = 0; e < WIDTH; ++e)
                  sums[r * OUTPUTS + o] =
                      fmaf(weight.at[e], seen[i][r].at[e], sums[r * OUTPUTS + o]);
            }
      }
      const int own = scatter_sums<LANES, SUMS>(split, sums);
      if (split % REPLICAS == 0)
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
          const int row = base + (own + i) / OUTPUTS * GROUPS;
          if (row < rows) deliver((own + i) % OUTPUTS, row, sums[i]);
        }
    }
  }
};

// The products of a step, (OUTPUTS, STRIDE), between its two parts. A team has two places for them,
// in turns: who writes the next but one has seen the results of this one. Each place has a barrier,
// at which the bytes of all products arrive.
template <int OUTPUTS>
struct Products {
  static constexpr int FLOATS = IN_TEAM ? 2 * OUTPUTS * STRIDE + 4 : OUTPUTS * STRIDE;

  float* memory;
  const float* current;  // those that a member reads
  int step = 0;          // of the next ones

  __device__ explicit Products(float* memory) : memory(memory), current(memory) {}

  // By all threads, before a barrier of the block.
  __device__ void init() const {
    if constexpr (IN_TEAM) {
      // racecheck takes the place of a barrier from all threads that come by, so that it has to be
      // the same for one warp, and the others branch
      if (threadIdx.x < 32) {
        const unsigned first = barrier(0);
        if (threadIdx.x == 0)
          for (int i = 0; i < 2; ++i) machine::init_barrier(first + 8 * i, 1);
        __syncwarp();
      }
      machine::publish_barriers();
      machine::cluster_barrier();
    }
  }

  __device__ float at(int output, int row) const { return current[output * STRIDE + row]; }

  // By workers: from the rows of a step to its products.
  template <bool WAITS, class Product>
  __device__ void compute(const Product& product, const float* array, int rows) {
    if constexpr (IN_TEAM) {
      const int member = blockIdx.x % TEAM, team = blockIdx.x - member;
      const unsigned first = machine::rank_in_cluster() - member;
      const unsigned to = machine::address(place()), told = barrier(step % 2);
      const int share = (rows + TEAM - 1) / TEAM, begin = member * share;
      const int end = begin + share < rows ? begin + share : rows;
      product.template multiply<WAITS>(array, begin, end, [&](int output, int row, float value) {
        if (!has_units(team + output / OUTPUTS)) return;
        const unsigned rank = first + output / OUTPUTS;
        machine::send(
            machine::address_in(to + 4 * (output % OUTPUTS * STRIDE + row), rank), value,
            machine::address_in(told, rank));
      });
      ++step;
    } else {
      product.template multiply<WAITS>(array, 0, rows, [&](int output, int row, float value) {
        memory[output * STRIDE + row] = value;
      });
      __syncthreads();
    }
  }

  // By members: the next ones, of so many rows.
  __device__ void take(int rows) {
    if constexpr (IN_TEAM) {
      machine::arrive_if(threadIdx.x == 0, barrier(step % 2), 4 * OUTPUTS * rows);
      machine::wait(barrier(step % 2), step / 2 % 2);
      current = place();
      ++step;
    }
  }

 private:
  __device__ float* place() const { return memory + step % 2 * OUTPUTS * STRIDE; }
  __device__ unsigned barrier(int number) const {
    return machine::address(memory + 2 * OUTPUTS * STRIDE + 2 * number);
  }
};

// Sums over the rows of a unit, to all its threads. All members take part.
struct RowSums {
  static constexpr int WIDTH = 3 * GATES;
  static constexpr int FLOATS = 2 * WARPS * WIDTH;

  float* memory;  // (2, WARPS, WIDTH), in turns: a barrier lies between two of them
  int turn = 0;

  __device__ float* now() const { return memory + turn * WARPS * WIDTH; }

  // The numbers of a part of the unit; four at a time are read as fast as one.
  template <int COUNT>
  __device__ void read(const Member& member, int part, float (&numbers)[COUNT]) const {
    const float* const other = now() + (member.slot * PARTS + part) * WIDTH;
    if constexpr (COUNT % 4 == 0) {
#pragma unroll
      for (int i = 0; i < COUNT; i += 4) {
        const float4 four = reinterpret_cast<const float4*>(other)[i / 4];
        numbers[i] = four.x;
        numbers[i + 1] = four.y;
        numbers[i + 2] = four.z;
        numbers[i + 3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < COUNT; ++i) numbers[i] = other[i];
    }
  }

  // Leaves the sums of all rows in the place of the values.
  template <int COUNT>
  __device__ void sum(const Member& member, float (&values)[COUNT]) {
    constexpr int EACH = 32 / COUNT;
    if (member.here) scatter_sums<32, COUNT>(member.lane, values);
    const float own = values[0];
    if constexpr (PARTS == 1) {
      if (member.here)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = __shfl_sync(~0u, own, i * EACH);
    } else {
      if (member.here && member.lane % EACH == 0)
        now()[member.warp * WIDTH + member.lane / EACH] = own;
      sync_members();
      if (member.here) {
        read(member, 0, values);
#pragma unroll
        for (int part = 1; part < PARTS; ++part) {
          float other[COUNT];
          read(member, part, other);
#pragma unroll
          for (int i = 0; i < COUNT; ++i) values[i] += other[i];
        }
      }
      turn ^= 1;
    }
  }

  // Mean and variance of each of VALUES features, of the first rows. The values are those less one
  // of them, so that a large mean does not hide a small variance.
  template <int VALUES>
  __device__ void moments(const Member& member, const float (&a)[ITEMS][VALUES], int rows,
                          float (&m)[VALUES], float (&v)[VALUES]) {
    float total[2 * VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      total[i] = member.has(0, rows) ? a[0][i] : 0.0f;
      total[VALUES + i] = total[i] * total[i];
#pragma unroll
      for (int item = 1; item < ITEMS; ++item) {
        const float d = member.has(item, rows) ? a[item][i] : 0.0f;
        total[i] += d;
        total[VALUES + i] = fmaf(d, d, total[VALUES + i]);
      }
    }
    sum(member, total);
    const float share = __fdividef(1, rows);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      m[i] = share * total[i];
      v[i] = fmaf(share, total[VALUES + i], -m[i] * m[i]);
    }
  }

  // The same of any values, of which each warp only knows its own.
  template <int VALUES>
  __device__ void moments_of_any(const Member& member, const float (&a)[ITEMS][VALUES], int rows,
                                 float (&m)[VALUES], float (&v)[VALUES]) {
    // by a shift to the first of those
    constexpr int COUNT = 2 * VALUES, EACH = 32 / COUNT;
    float shift[VALUES], sums[COUNT];
    if (member.here) {
#pragma unroll
      for (int i = 0; i < VALUES; ++i) {
        const float own = member.has(0, rows) ? a[0][i] : 0.0f;
        shift[i] = __shfl_sync(~0u, own, 0);
        sums[i] = member.has(0, rows) ? own - shift[i] : 0.0f;
        sums[VALUES + i] = sums[i] * sums[i];
#pragma unroll
        for (int item = 1; item < ITEMS; ++item) {
          const float d = member.has(item, rows) ? a[item][i] - shift[i] : 0.0f;
          sums[i] += d;
          sums[VALUES + i] = fmaf(d, d, sums[VALUES + i]);
        }
      }
      scatter_sums<32, COUNT>(member.lane, sums);
    }
    float first[VALUES], second[VALUES];
    if constexpr (PARTS == 1) {
      const float own = sums[0];
      if (member.here)
#pragma unroll
        for (int i = 0; i < VALUES; ++i) {
          first[i] = __shfl_sync(~0u, own, i * EACH);
          second[i] = __shfl_sync(~0u, own, (VALUES + i) * EACH);
        }
    } else {
      float* const mine = now() + member.warp * WIDTH;
      if (member.here) {
        if (member.lane % EACH == 0) mine[member.lane / EACH] = sums[0];
        if (member.lane == 0)
#pragma unroll
          for (int i = 0; i < VALUES; ++i) mine[COUNT + i] = shift[i];
      }
      sync_members();
      if (member.here)
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          float other[COUNT + VALUES];
          read(member, part, other);
          const float n = rows_of_part(part, rows);
#pragma unroll
          for (int i = 0; i < VALUES; ++i) {
            if (part == 0) {
              first[i] = other[i];
              second[i] = other[VALUES + i];
              shift[i] = other[COUNT + i];
            } else {
              // from the shift of this part to that of the first
              const float by = other[COUNT + i] - shift[i], moved = fmaf(n, by, other[i]);
              first[i] += moved;
              second[i] += fmaf(by, other[i] + moved, other[VALUES + i]);
            }
          }
        }
      turn ^= 1;
    }
    if (!member.here) return;
    const float share = __fdividef(1, rows);
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
      const float offset = share * first[i];
      m[i] = shift[i] + offset;
      v[i] = fmaf(share, second[i], -offset * offset);
    }
  }
};

// That of COUNT values which belongs to a lane: 32 / COUNT lanes have the same.
template <int COUNT>
__device__ inline float own_of(const Member& member, const float (&values)[COUNT]) {
  float own = values[0];
#pragma unroll
  for (int i = 1; i < COUNT; ++i)
    if (member.lane / (32 / COUNT) == i) own = values[i];
  return own;
}

// What a normalisation got; null what it did not. Given are a mean and a variance of every step and
// feature, for each of so many rows.
struct Site {
  const float *gamma, *beta, *reference, *given;
  int rows;
};

// The parameters of the normalisations, in shared memory: registers are for other things.
constexpr int PARAMETERS = 3 * FEATURES * UNITS;

// Those of VALUES features of a unit, of which the first of all is FIRST.
template <int FIRST, int VALUES>
struct Parameters {
  static constexpr int WIDTH = VALUES * H;  // the features of all units

  const float* own;  // (FEATURES, 3)
  const float* given;
  int unit, rows;

  __device__ Parameters(float* memory, const Site& site, const Member& member)
      : own(memory + (member.here ? 3 * FEATURES * member.slot : 0)),
        given(site.given),
        unit(member.unit),
        rows(site.rows) {
    if (member.here && member.part == 0 && member.lane < VALUES) {
      float* const mine = memory + 3 * (FEATURES * member.slot + FIRST + member.lane);
      mine[0] = site.gamma ? site.gamma[at(member.lane)] : 0.0f;
      mine[1] = site.beta ? site.beta[at(member.lane)] : 0.0f;
      mine[2] = site.reference ? site.reference[at(member.lane)] : 0.0f;
    }
  }

  __device__ int at(int i) const { return i * H + unit; }
  __device__ float gamma(int i) const { return own[3 * (FIRST + i)]; }
  __device__ float beta(int i) const { return own[3 * (FIRST + i) + 1]; }
  __device__ float reference(int i) const { return own[3 * (FIRST + i) + 2]; }
  __device__ float apply(int i, float z) const { return fmaf(gamma(i), z, beta(i)); }

  // Mean and scale that are given to a row at step t of T.
  __device__ void read(int i, int t, int T, int row, float& mean, float& scale) const {
    const long long place = ((long long)t * rows + (rows > 1 ? row : 0)) * WIDTH + at(i);
    mean = given[place];
    scale = scale_of(given[(long long)T * rows * WIDTH + place]);
  }
};

// Three numbers of every feature of a unit for each of the K - 1 steps before or after one, which
// the first warp of the unit keeps and adds up.
struct Window {
  float* steps;   // (FEATURES, length, 3)
  float* totals;  // (FEATURES, 4)
  int length;

  __device__ Window(float* memory, const Member& member, int K) {
    length = K - 1;
    steps = memory + (member.here ? member.slot : 0) * FEATURES * (3 * length + 4);
    totals = steps + FEATURES * 3 * length;
    if (WINDOWED && member.here && member.part == 0)
#pragma unroll 1
      for (int i = member.lane; i < FEATURES * (3 * length + 4); i += 32) steps[i] = 0;
    __syncwarp();
  }

  __device__ static bool mine(const Member& member) { return member.here && member.part == 0; }

  __device__ const float* total(int feature) const { return totals + 4 * feature; }

  // To be called by the first warp alone, after a barrier since the last use of the totals.
  __device__ void put(int feature, int t, float first, float second, float third) {
    if (threadIdx.x % 32 == 0) {
      float* const entry = steps + 3 * (feature * length + t % length);
      entry[0] = first;
      entry[1] = second;
      entry[2] = third;
    }
  }
};
