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
/// Each copies four rows at a time, eight lanes one row. Where rows are lies in shared memory: a lane
/// has no registers for it, and one load brings it for several copies, so that none waits for another.
template <int kRows, int kWarps>
class RowGather {
  static constexpr int kTurn = 4 * kWarps;  // rows that all warps copy at a time
  static constexpr int kTurns = kRows / kTurn;
  static constexpr int kBatch = kTurns % 4 == 0 ? 4 : 2;  // turns whose rows are looked up together
  static_assert(kRows % (kTurn * kBatch) == 0 && kWarps % 2 == 0,
                "RowGather: no share for each warp, or another swizzle in each turn");

 public:
  /// Shared memory of all warps: [warp][row of four][turn], each a distance from x in sixteens.
  static constexpr int kSharedBytes = 4 * kRows;

  __device__ __forceinline__ RowGather(Choices const& choices, u32 shared, u32 warp)
      : choices_(choices) {
    u32 const lane = threadIdx.x % 32, sixteen = lane % 8, row = 4 * warp + lane / 8;
    // A sixteen's place within 128 bytes is turned by the row's number in eight.
    place_ = row * kRowBytes + (sixteen ^ row % 8) * 16;
    from_ = reinterpret_cast<u64>(choices.x) + 16 * sixteen;
    distances_ = shared + 4 * kTurns * row;
  }

  /// Looks up where rows are: slots [first, first + count), one at least; of rows behind them the last.
  __device__ __forceinline__ void look_up(Index first, int count) const {
    u32 const lane = threadIdx.x % 32;
    __syncwarp();  // all lanes have read those of the tile before
#pragma unroll 1
    for (int turn = lane % 8; turn < kTurns; turn += 8) {
      int const row = turn * kTurn + place_ / kRowBytes;
      i32 const slot = __ldg(choices_.slots + first + (row < count ? row : count - 1));
      u32 const distance = choices_.source(slot) * (choices_.stride / 16);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(distances_ + 4 * turn), "r"(distance) : "memory");
    }
    __syncwarp();
  }

  /// Starts copies of 128 bytes of each of `rows` rows, or a few more, from byte `at` of `row_bytes`
  /// on; what is behind these becomes zero, as what pads rows to whole sixteens is. Then the barrier
  /// gets this thread's arrival.
  __device__ __forceinline__ void start(u32 to, int rows, int at, int row_bytes, u32 full) const {
    bool const behind = at + int(threadIdx.x % 8 * 16) >= row_bytes;
    u64 const from = from_ + at;
    to += place_;
#pragma unroll
    for (int first = 0; first < kTurns; first += kBatch) {
      if (first * kTurn >= rows) break;
      u32 distances[kBatch];
      load_shared_words(distances, distances_ + 4 * first);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (i == 0 || (first + i) * kTurn < rows)
          cp_async_16(to + (first + i) * kTurn * kRowBytes, from + u64(distances[i]) * 16, behind);
    }
    cp_async_mbarrier_arrive_noinc(full);
  }

  /// Those who say that a stage is full.
  static constexpr int kFillers = 32 * kWarps;

 private:
  static __device__ __forceinline__ void load_shared_words(u32 (&to)[4], u32 from) {
    load_shared_128(to, from);
  }
  static __device__ __forceinline__ void load_shared_words(u32 (&to)[2], u32 from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from)
                 : "memory");
  }

  Choices const& choices_;
  u64 from_;
  u32 place_, distances_;
};

}  // namespace humming::sm90
