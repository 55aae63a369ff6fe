// What the kernels of recurrences share whose weights need several multiprocessors. A team of
// BLOCKS blocks computes up to ROWS rows of the batch at a time, and each block of it UNITS units:
// a warp has a row, and a lane a unit. sizes.cuh, which teams.py writes, defines these, H, the
// number of all units, and THREADS; BATCH, the numbers that a thread waits for at a time; MEMORY,
// the floats of shared memory for products; PACKED, which steps.cuh explains; and of each product
// OUTPUTS, SPLITS, VECTOR and SHARED, which product.cuh does, and SLICES.
//
// All blocks of all teams run at the same time. They tell each other numbers through global memory,
// or rather through the cache before it.
#pragma once

#include "activations.cuh"
#include "sizes.cuh"

#include "machine.cuh"
#include "product.cuh"
#include "steps.cuh"

static_assert(UNITS <= 32 && THREADS >= 32 * ROWS);
static_assert((BLOCKS - 1) * UNITS < H && H <= BLOCKS * UNITS, "a block has no unit");

// Product number INDEX of a step, of which a block has so many inputs and outputs. The inputs are
// in SLICES parts, each of which other threads multiply; their sums are added up in the end.
template <int INDEX, int INPUTS, int ALL, bool COMPLEX = false>
struct Weights {
  static constexpr int EACH = OUTPUTS[INDEX], PARTS = SLICES[INDEX];
  static constexpr int GROUPS = (ALL + EACH - 1) / EACH;       // that compute a part
  static constexpr int PAIR = COMPLEX ? 2 : 1;
  static constexpr int LENGTH = (INPUTS + PARTS * PAIR - 1) / (PARTS * PAIR) * PAIR;  // of a part
  using Part =
      Product<LENGTH, EACH, SPLITS[INDEX], VECTOR[INDEX], ROWS, SHARED[INDEX], THREADS, COMPLEX>;
  static constexpr int STATES = (ROWS * Part::WIDTH + 3) / 4 * 4;  // floats of the inputs of a part
  static constexpr int FLOATS = PARTS * STATES + Part::SHARED_FLOATS;
  static constexpr int SUMS = (PARTS * ROWS * ALL + 3) / 4 * 4;
  static_assert(PARTS * GROUPS * SPLITS[INDEX] <= THREADS);

  Part weights;
  float* states;  // (PARTS, ROWS, WIDTH)
  int part;

  // entry(output, input) gives the matrix.
  template <class Entry>
  __device__ void init(float* memory, Entry entry) {
    states = memory;
    for (int i = threadIdx.x; i < PARTS * STATES; i += THREADS) states[i] = 0;
    weights.load(memory + PARTS * STATES, [&](int place, int k) {
      const int part = place / (GROUPS * EACH), output = place % (GROUPS * EACH);
      const int input = part * LENGTH + k;
      const bool there = part < PARTS && output < ALL && k < LENGTH && input < INPUTS;
      return there ? entry(output, input) : 0.0f;
    });
    part = min(weights.group / GROUPS, PARTS);
  }

  // The inputs are to be written in between two barriers.
  __device__ void set(int row, int input, float value) const {
    states[input / LENGTH * STATES + row * Part::WIDTH + input % LENGTH] = value;
  }

  // The sums of all parts, (PARTS, ROWS, ALL), in shared memory.
  __device__ void multiply(float* sums) const {
    float values[Part::VALUES];
    weights.multiply(states + min(part, PARTS - 1) * STATES, values, [] {});
    if (part < PARTS && weights.replica() == 0)
#pragma unroll
      for (int i = 0; i < Part::VALUES; ++i) {
        const int sum = weights.owned(i);
        const int output = weights.group % GROUPS * EACH + sum % EACH;
        if (output < ALL) sums[(part * ROWS + sum / EACH) * ALL + output] = values[i];
      }
    __syncthreads();
  }

  // The output at a place of (ROWS, ALL).
  __device__ static float output_at(const float* sums, int place) {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) sum += sums[part * ROWS * ALL + place];
    return sum;
  }

  __device__ static float output(const float* sums, int row, int output) {
    return output_at(sums, row * ALL + output);
  }
};

// What a thread of a team is for.
struct Member {
  int team, rank;   // of the block: its team, and its number in it
  int row, lane;    // among the rows of the team and the units of the block
  int first, unit;  // the first unit of the block, and that of the thread
  bool here;        // there is such a row of a team, and such a unit

  __device__ Member() {
    team = blockIdx.x / BLOCKS;
    rank = blockIdx.x % BLOCKS;
    row = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    first = rank * UNITS;
    unit = first + lane;
    here = row < ROWS && lane < UNITS && unit < H;
  }
};

// SIZE numbers that the blocks of a team tell each other, again and again. In every exchange each
// of them is posted once, or not at all and not waited for. A block posts after all its threads have what they want of the exchange
// before: so when it has got something of an exchange from every block, the last but one is over
// for all of them, and its words can be used again.
template <int WORDS>
struct Board {
  static constexpr int SIZE = WORDS;

  machine::Word* words;  // (2, SIZE)
  unsigned number = 1;   // of the exchange: words are 0 at first

  __device__ Board(machine::Word* all, int team) : words(all + team * 2LL * SIZE) {}

  __device__ machine::Word* now() const { return words + number % 2 * SIZE; }

  __device__ void post(int place, float value) const {
    machine::post(now() + place, value, number);
  }

  // COUNT words, of which wanted(i) says whether they are to be waited for.
  template <int COUNT, class Place, class Wanted>
  __device__ void collect(float (&values)[COUNT], Place place, Wanted wanted) const {
    machine::Word seen[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      if (wanted(i)) seen[i] = machine::peek(place(i));
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        if (wanted(i) && seen[i].tag() != number) {
          seen[i] = machine::peek(place(i));
          missing = true;
        }
    } while (missing);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) values[i] = seen[i].value();
  }

  __device__ void advance() { ++number; }
};

// A number of every unit and row, which all blocks get: the inputs of a product.
struct Gather : Board<ROWS * H> {
  using Board::Board;

  __device__ void post(const Member& member, int rows, float value) const {
    if (member.here && member.row < rows) Board::post(member.row * H + member.unit, value);
  }

  // They do not come at once: there is time for something else after they have been posted.
  template <class Inputs>
  __device__ void collect(int rows, const Inputs& inputs) {
    constexpr int TURNS = (H + THREADS - 1) / THREADS;
    constexpr int AT_ONCE = TURNS * ROWS < BATCH ? TURNS : ROWS < BATCH ? BATCH / ROWS : 1;
    const machine::Word* const words = now();
#pragma unroll 1
    for (int first = threadIdx.x; first < H; first += AT_ONCE * THREADS) {
      float values[AT_ONCE * ROWS];
      Board::collect(
          values, [&](int i) { return words + first + i / ROWS * THREADS + i % ROWS * H; },
          [&](int i) { return i % ROWS < rows && first + i / ROWS * THREADS < H; });
#pragma unroll
      for (int turn = 0; turn < AT_ONCE; ++turn) {
        const int input = first + turn * THREADS;
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
          if (row < rows && input < H) inputs.set(row, input, values[turn * ROWS + row]);
      }
    }
    advance();
    __syncthreads();
  }
};

// A number of every unit and row that is a sum over all blocks: the block of the unit gets it.
struct Reduce : Board<BLOCKS * ROWS * H> {
  static constexpr int PARTS = THREADS / (32 * ROWS);  // threads that share the blocks of a sum
  static constexpr int EACH = (BLOCKS + PARTS - 1) / PARTS;
  static constexpr int COUNT = EACH < BATCH ? EACH : BATCH;
  static constexpr int FLOATS = PARTS * ROWS * 32;

  using Board::Board;

  // Parts of it are the outputs of a product, in shared memory.
  template <class Outputs>
  __device__ void post(const Member& member, int rows, const float* sums) const {
    const int first = member.rank * ROWS * H;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows * H; i += THREADS)
      Board::post(first + i, Outputs::output_at(sums, i));
  }

  // The sum of the thread, in an order that does not vary. The memory is for FLOATS others.
  __device__ float collect(const Member& member, int rows, float* memory) {
    const int row = threadIdx.x / 32 % ROWS, part = threadIdx.x / (32 * ROWS);
    const bool counts = part < PARTS && row < rows && member.lane < UNITS && member.unit < H;
    const machine::Word* const words = now() + row * H + member.unit;
    float sum = 0;
#pragma unroll 1
    for (int first = part * EACH; first < (part + 1) * EACH; first += COUNT) {
      float values[COUNT];
      const auto wanted = [&](int i) {
        return counts && first + i < min((part + 1) * EACH, BLOCKS);
      };
      Board::collect(
          values, [&](int i) { return words + (first + i) * (long long)(ROWS * H); }, wanted);
#pragma unroll
      for (int i = 0; i < COUNT; ++i)
        if (wanted(i)) sum += values[i];
    }
    advance();
    if constexpr (PARTS == 1) {
      __syncthreads();
      return sum;
    }
    if (part < PARTS) memory[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) sum += memory[i * 32 * ROWS + threadIdx.x % (32 * ROWS)];
    return sum;
  }
};
