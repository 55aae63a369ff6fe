// What the two LSTM kernels share whose weights need several multiprocessors: sums over the units
// of all blocks of a team.
#pragma once

#include "team.cuh"

constexpr int ROW_THREADS = 32;
constexpr int GATES = 4;  // of a thread: all those of its unit

#include "lstm_unit.cuh"

// The sums of two values over a warp, to every lane.
__device__ inline Pair sum_pair(float first, float second) {
  const float sum = sum_two(first, second), other = __shfl_xor_sync(~0u, sum, 1);
  return threadIdx.x % 2 ? Pair{other, sum} : Pair{sum, other};
}

// Two numbers of every row and block, which all blocks get. A row waits for no other: where it does
// not take part in an exchange, it does so in no block.
struct Totals : Board<2 * ROWS * BLOCKS> {
  static constexpr int TURNS = (BLOCKS + 31) / 32;  // in which every lane of a warp has a block

  using Board::Board;

  __device__ static int block(int turn) { return 32 * turn + threadIdx.x % 32; }

  // The pairs of the blocks that this lane has, zeros where there is none. meanwhile() is something
  // else to do while they are on their way.
  template <class Meanwhile>
  __device__ void exchange(const Member& member, const Pair& own, Pair (&pairs)[TURNS],
                           Meanwhile meanwhile) {
    const int row = 2 * member.row * BLOCKS;
    if (member.lane < 2)
      post(row + 2 * member.rank + member.lane, member.lane == 0 ? own.first : own.second);
    meanwhile();
    const machine::Word* const words = now() + row;
    float numbers[2 * TURNS];
    const auto wanted = [](int i) { return block(i / 2) < BLOCKS; };
    collect(numbers, [&](int i) { return words + 2 * block(i / 2) + i % 2; }, wanted);
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn)
      pairs[turn] = wanted(2 * turn) ? Pair{numbers[2 * turn], numbers[2 * turn + 1]} : Pair{0, 0};
    advance();
  }
};
