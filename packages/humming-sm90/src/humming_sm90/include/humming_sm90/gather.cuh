// Rows of x that are chosen by index, copied as TMA would lay rows that lie together: 128 bytes of each
// one behind the other, in the 128-byte swizzle. TMA itself copies boxes alone on these devices.
#pragma once

#include <humming_sm90/mbarrier.cuh>
#include <humming_sm90/tma.cuh>
#include <humming_sm90/wgmma.cuh>

namespace humming::sm90 {

/// The choices of an indexed problem, sorted by expert.
struct Choices {
  u8 const* x;
  u32 stride;  // bytes from one row of x to the next, a multiple of 16
  i32 const* slots;
  i32 top_k;

  /// The row of x of choice number `slot`.
  __device__ __forceinline__ u32 source(i32 slot) const { return u32(slot) / u32(top_k); }
};

/// What the warps that copy do: kWarps of them, all threads of which call start(). kRows at most.
/// Each copies four rows at a time, eight lanes one row; its lanes hold where all of its rows are.
template <int kRows, int kWarps>
class RowGather {
  static constexpr int kTurn = 4 * kWarps;  // rows that all warps copy at a time
  static constexpr int kTurns = kRows / kTurn;
  static constexpr int kHeld = (kTurns + 7) / 8;  // sources of a lane
  static constexpr int kBox = 32;                 // rows that are copied or not
  static_assert(kRows % kBox == 0 && kBox % kTurn == 0 && kWarps % 2 == 0,
                "RowGather: no share for each warp, or another swizzle in each turn");

 public:
  /// Those who say that a stage is full.
  static constexpr int kFillers = 32 * kWarps;

  /// Slots [first, first + count), one at least; of rows behind them the last is copied.
  __device__ __forceinline__ RowGather(Choices const& choices, Index first, int count, u32 warp) {
    u32 const lane = threadIdx.x % 32, sixteen = lane % 8, row = 4 * warp + lane / 8;
    // A sixteen's place within 128 bytes is turned by the row's number in eight.
    place_ = row * kRowBytes + (sixteen ^ row % 8) * 16;
    from_ = reinterpret_cast<u64>(choices.x) + 16 * sixteen;
    stride_ = choices.stride;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      int const held = int(i * 8 + lane / 4) * kTurn + int(4 * warp + lane % 4);
      i32 const slot = __ldg(choices.slots + first + (held < count ? held : count - 1));
      sources_[i] = choices.source(slot);
    }
  }

  /// Starts copies of 128 bytes of each of `rows` rows, or a few more, from byte `at` of `row_bytes`
  /// on; what is behind these becomes zero, as what pads rows to whole sixteens is. Then the barrier
  /// gets this thread's arrival.
  __device__ __forceinline__ void start(u32 to, int rows, int at, int row_bytes, u32 full) const {
    u32 const lane = threadIdx.x % 32;
    bool const behind = at + int(lane % 8 * 16) >= row_bytes;
    u64 const from = from_ + at;
    to += place_;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn * kTurn % kBox == 0 && turn * kTurn >= rows) break;
      u32 const source = __shfl_sync(0xffffffffu, sources_[turn / 8], turn % 8 * 4 + lane / 8);
      cp_async_16(to + turn * kTurn * kRowBytes, multiply_add(source, stride_, from), behind);
    }
    cp_async_mbarrier_arrive_noinc(full);
  }

 private:
  /// a * b + c in one instruction: compilers would add in two steps, and again for each row.
  static __device__ __forceinline__ u64 multiply_add(u32 a, u32 b, u64 c) {
    u64 sum;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(sum) : "r"(a), "r"(b), "l"(c));
    return sum;
  }

  u64 from_;
  u32 stride_, place_, sources_[kHeld];
};

}  // namespace humming::sm90
