// Who empties the ring: a warpgroup that multiplies a panel of weights by the tokens of a tile.
//
// A thread holds, of each 8 tokens, those at 2 * (lane % 4) and the next, for the rows of weights
// at 16 * warp + lane / 4 and 8 more: sums 0 and 1 are of the first row, 2 and 3 of the other.
#pragma once

#include <humming_sm90/multiply.cuh>
#include <humming_sm90/wide/weights.cuh>

namespace humming::sm90::wide {

/// The sums of a warpgroup's part of a tile; zeros where it has no tokens.
template <class P>
struct Totals {
  using Number = typename Plan<P>::Total;
  static constexpr int kSums = Plan<P>::kChunks * Plan<P>::kChunkSums;
  Number c[Plan<P>::kChunks][Plan<P>::kChunkSums];

  /// Four of them, `number` of kSums / 4: those of 8 tokens.
  __device__ __forceinline__ Number* four(int number) {
    constexpr int kPerChunk = Plan<P>::kChunkSums / 4;
    return c[number / kPerChunk] + number % kPerChunk * 4;
  }

  /// Sum `i` of the 8 tokens number `eight`.
  __device__ __forceinline__ float value(int eight, int i) const {
    constexpr int kEights = Plan<P>::kChunk / 8;
    return float(c[eight / kEights][eight % kEights * 4 + i]);
  }
};

/// What a warpgroup does with the steps of a tile.
template <class P>
class Multiplier {
  using L = Plan<P>;
  using Number = typename L::Number;

 public:
  /// tokens: that the tile has.
  __device__ __forceinline__ Multiplier(Shared<P> const& shared, Consumer const& place, u32 panel,
                                        int tokens, Ring<P::kStages>& ring, Totals<P>& totals)
      : shared_(shared),
        place_(place),
        weights_(shared, panel, place.warp % 4, place.lane),
        tokens_(P::kFits ? tokens : P::kTokens),
        ring_(ring),
        totals_(totals) {}

  /// Sums of all of K stay in the MMA. The weights of a step are decoded while the MMAs of the one
  /// before are under way, into other registers; a stage is released when they are done.
  __device__ __forceinline__ void direct(int steps) {
    if constexpr (P::kFits) clear();
    Operands even, odd;
    for (int step = 0; step < steps; step += 2) {
      direct_step(even, step > 0);
      if (!L::kHalves && step + 1 == steps) break;
      direct_step(odd, true);
    }
    finish();
  }

  /// Sums of an interval are scaled and added to totals before the next. The weights of a step are
  /// decoded while MMAs of the one before are under way.
  __device__ __forceinline__ void promoting(int steps) {
    clear();
    Operands even, odd;
    RowNumbers<P> even_rows = read(even), odd_rows;
    for (int step = 0; step < steps; step += 2) {
      bool const more = step + 2 < steps;
      if constexpr (L::kPairs) {
        promote_pair(even, odd, even_rows, odd_rows, more);
      } else {
        bool const is_pair = L::kHalves || step + 1 < steps;
        promote_step(even, odd, even_rows, odd_rows, is_pair);
        if (is_pair) promote_step(odd, even, odd_rows, even_rows, more);
      }
    }
  }

 private:
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int chunk = 0; chunk < L::kChunks; ++chunk)
#pragma unroll
      for (int i = 0; i < L::kChunkSums; ++i) totals_.c[chunk][i] = 0;
  }

  /// Waits for the stage that the ring is at.
  __device__ __forceinline__ void load(RawWeights<P>& raw) const {
    mbarrier_wait(shared_.full(ring_.stage), ring_.parity);
    weights_.load(ring_.stage, raw);
  }

  /// Waits for the stage that the ring is at, and decodes all its weights.
  __device__ __forceinline__ RowNumbers<P> read(Operands& a) const {
    RawWeights<P> raw;
    load(raw);
#pragma unroll
    for (int mma = 0; mma < kStepMmas; ++mma) weights_.decode(raw, mma, a[mma]);
    return raw.rows;
  }

  /// Says that this warp has read a stage, if it has.
  __device__ __forceinline__ void release(u32 stage, bool has_read = true) const {
    __syncwarp();
    if (has_read && place_.lane == 0) mbarrier_arrive(shared_.empty(stage));
  }

  /// Waits for all MMAs of a tile.
  __device__ __forceinline__ void finish() {
    wgmma_wait_group<0>();
    release(before_);
#pragma unroll
    for (int chunk = 0; chunk < L::kChunks; ++chunk) after_wait(totals_.c[chunk]);
  }

  __device__ __forceinline__ void direct_step(Operands& a, bool adds) {
    u32 const stage = ring_.stage;
    read(a);
    u64 const x = swizzled_rows(shared_.x(stage));
#pragma unroll
    for (int chunk = 0; chunk < L::kChunks; ++chunk) {
      int const tokens = tokens_ - chunk * L::kChunk;
      if (has(chunk)) {
        P::Mma::template start<kStepMmas>(totals_.c[chunk], a, x + chunk * (L::kChunk * kRowStep),
                                          adds, tokens);
      } else {
        wgmma_commit_group();  // a group without MMAs: as many as are waited for
      }
    }
    wgmma_wait_group<L::kChunks>();
    release(before_, adds);
    before_ = stage;
    ring_.advance();
  }

  /// The descriptor of x of the step that the ring is at, which goes on.
  __device__ __forceinline__ u64 begin(u32& stage) {
    stage = ring_.stage;
    ring_.advance();
    return swizzled_rows(shared_.x(stage));
  }

  /// Sums of an interval: of weights times x, and of x itself, which are the same in all rows.
  using Sums = Number[L::kChunkSums];
  using XSums = Number[L::kFloatZeros ? L::kChunkSums : 1];

  /// Groups of MMAs that start_some() starts for a whole step.
  static constexpr int kGroups = L::kFloatZeros ? 2 * kStepMmas : 1;

  /// Starts kCount MMAs of a step for a chunk, from number `first` on.
  template <int kCount>
  __device__ __forceinline__ void start_some(Sums& sums, XSums& x_sums, Operands const& a, u64 x,
                                             int chunk, int first, bool adds) const {
    u64 const from = x + chunk * (L::kChunk * kRowStep) + first * kMmaStep;
    int const tokens = tokens_ - chunk * L::kChunk;
    if constexpr (L::kFloatZeros) {
      // By turns: groups of several would want more registers for operands at a time.
      constexpr u32 kOnes = ones<typename P::Target>();
      u32 const one[1][4] = {{kOnes, kOnes, kOnes, kOnes}};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        u64 const of_mma = from + i * kMmaStep;
        P::Mma::template start<1>(sums, a + first + i, of_mma, adds || i > 0, tokens);
        P::Mma::template start<1>(x_sums, one, of_mma, adds || i > 0, tokens);
      }
    } else {
      P::Mma::template start<kCount>(sums, a + first, from, adds, tokens);
    }
  }

  /// Waits for the sums of an interval.
  static __device__ __forceinline__ void wait(Sums& sums, XSums& x_sums) {
    wgmma_wait_group<0>();
    after_wait(sums);
    if constexpr (L::kFloatZeros) after_wait(x_sums);
  }

  /// Whether the tile has tokens of this chunk; it always has some of the first.
  __device__ __forceinline__ bool has(int chunk) const {
    return !P::kFits || chunk == 0 || chunk * L::kChunk < tokens_;
  }

  /// Intervals of a step, or a part of it. The first chunk, which is always there, comes last: behind
  /// its MMAs the next step is decoded.
  __device__ __forceinline__ void promote_step(Operands const& a, Operands& next,
                                               RowNumbers<P> const& rows, RowNumbers<P>& next_rows,
                                               bool more) {
    u32 stage;
    u64 const x = begin(stage);
#pragma unroll
    for (int chunk = L::kChunks - 1; chunk >= 0; --chunk) {
      if (!has(chunk)) continue;
#pragma unroll
      for (int interval = 0; interval < L::kIntervals; ++interval) {
        bool const last = chunk == 0 && interval == L::kIntervals - 1;
        Sums sums;
        XSums x_sums;
        start_some<L::kMmas>(sums, x_sums, a, x, chunk, interval * L::kMmas, false);
        if (last && more) next_rows = read(next);
        wait(sums, x_sums);
        if (last) release(stage);
        promote(totals_.c[chunk], sums, x_sums, rows, interval * L::kMmas);
      }
    }
  }

  /// An interval of two steps. The second is decoded behind the first MMAs of the first; the first
  /// of the next pair when the last MMAs of this one are done.
  __device__ __forceinline__ void promote_pair(Operands& first, Operands& second,
                                               RowNumbers<P>& first_rows,
                                               RowNumbers<P>& second_rows, bool more) {
    if constexpr (L::kChunks > 1) {
      if (has(1)) return promote_chunks<L::kChunks>(first, second, first_rows, second_rows, more);
    }
    promote_chunks<1>(first, second, first_rows, second_rows, more);
  }

  /// Of so many chunks at most. If there are several, the first two surely are there: one is the
  /// first here, the other the last.
  template <int kChunks>
  __device__ __forceinline__ void promote_chunks(Operands& first, Operands& second,
                                                 RowNumbers<P>& first_rows,
                                                 RowNumbers<P>& second_rows, bool more) {
    u32 stages[2];
    u64 x[2];
    x[0] = begin(stages[0]);
#pragma unroll
    for (int turn = 0; turn < kChunks; ++turn) {
      int const chunk = turn == 0 ? 0 : kChunks - turn;
      bool const last = turn == kChunks - 1;
      if (chunk > 1 && !has(chunk)) continue;
      Sums sums;
      XSums x_sums;
      start_some<kStepMmas>(sums, x_sums, first, x[0], chunk, 0, false);
      if (chunk == 0) {
        second_rows = read(second);
        x[1] = begin(stages[1]);
      }
      start_some<kStepMmas>(sums, x_sums, second, x[1], chunk, 0, true);
      if (last) {
        wgmma_wait_group<kGroups>();
        release(stages[0]);
        if (more) first_rows = read(first);
      }
      wait(sums, x_sums);
      if (last) release(stages[1]);
      promote(totals_.c[chunk], sums, x_sums, second_rows, 0);
    }
  }

  /// Adds sums to totals, scaled with the numbers of MMA number `mma`.
  static __device__ __forceinline__ void promote(float (&totals)[L::kChunkSums], Sums const& sums,
                                                 XSums const& x_sums, RowNumbers<P> const& rows,
                                                 int mma) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float scale = 1.0f, zero = 0.0f;
      if constexpr (P::kGroup != 0 && !P::kFolds) scale = rows.scale(mma, half);
      if constexpr (L::kFloatZeros) zero = rows.float_zero(mma, half);
#pragma unroll
      for (int i = 2 * half; i < L::kChunkSums; i += 4)
#pragma unroll
        for (int j = i; j < i + 2; ++j) {
          totals[j] = fmaf(float(sums[j]), scale, totals[j]);
          if constexpr (L::kFloatZeros) totals[j] = fmaf(float(x_sums[j]), zero, totals[j]);
        }
    }
  }

  Shared<P> const& shared_;
  Consumer const& place_;
  WarpWeights<P> weights_;
  int const tokens_;
  Ring<P::kStages>& ring_;
  Totals<P>& totals_;
  u32 before_ = 0;  // the stage whose MMAs are under way
};

}  // namespace humming::sm90::wide
