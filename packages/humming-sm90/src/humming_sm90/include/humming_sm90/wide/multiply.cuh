// Who empties the ring: a warpgroup that multiplies a panel of weights by the tokens of a tile.
//
// A thread holds, of each 8 tokens, those at 2 * (lane % 4) and the next, for the rows of weights
// at 16 * warp + lane / 4 and 8 more: sums 0 and 1 are of the first row, 2 and 3 of the other.
#pragma once

#include <humming_sm90/multiply.cuh>
#include <humming_sm90/wide/weights.cuh>

namespace humming::sm90::wide {

/// The sums of a warpgroup's part of a tile.
template <class P>
struct Totals {
  typename Plan<P>::Total c[Plan<P>::kChunks][Plan<P>::kChunkSums];

  /// Sum `i` of the 8 tokens number `eight`.
  __device__ __forceinline__ float value(int eight, int i) const {
    constexpr int kEights = P::kChunk / 8;
    return float(c[eight / kEights][eight % kEights * 4 + i]);
  }
};

/// What a warpgroup does with the steps of a tile.
template <class P>
class Multiplier {
  using L = Plan<P>;
  using Number = typename L::Number;

 public:
  __device__ __forceinline__ Multiplier(Shared<P> const& shared, Consumer const& place, u32 panel,
                                        Ring<P::kStages>& ring, Totals<P>& totals)
      : shared_(shared),
        place_(place),
        weights_(shared, panel, place.warp % 4, place.lane),
        ring_(ring),
        totals_(totals) {}

  /// Sums of all of K stay in the MMA. The weights of a step are decoded while the MMAs of the one
  /// before are under way, into other registers; a stage is released when they are done.
  __device__ __forceinline__ void direct(int steps) {
    Operands even, odd;
    int const pairs = L::kHalves ? steps : steps / 2 * 2;
    for (int step = 0; step < pairs; step += 2) {
      direct_step(even, step > 0);
      direct_step(odd, true);
    }
    if (pairs < steps) {
      // Where paths meet with MMAs under way, ptxas may make all of them wait for one another.
      wgmma_wait_group<0>();
      after_wait(totals_.c[0]);
      direct_step(even, pairs > 0);
    }
    finish();
  }

  /// Sums of an interval are scaled and added to totals before the next. The weights of a step are
  /// decoded while MMAs of the one before are under way.
  __device__ __forceinline__ void promoting(int steps) {
#pragma unroll
    for (int chunk = 0; chunk < L::kChunks; ++chunk)
#pragma unroll
      for (int i = 0; i < L::kChunkSums; ++i) totals_.c[chunk][i] = 0.0f;
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

  /// Starts MMA number `mma` of a step for a chunk.
  static __device__ __forceinline__ void start(Number (&sums)[L::kChunkSums], u32 const (&a)[4],
                                               u64 x, int chunk, int mma, u32 adds) {
    P::Mma::multiply(sums, a, x + chunk * (P::kChunk * kRowStep) + mma * kMmaStep, adds);
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
    wgmma_fence();
#pragma unroll
    for (int mma = 0; mma < kStepMmas; ++mma)
      start(totals_.c[0], a[mma], x, 0, mma, adds || mma > 0);
    wgmma_commit_group();
    wgmma_wait_group<1>();
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

  /// Starts MMAs of a step, `first` and those that follow.
  static __device__ __forceinline__ void start_some(Sums& sums, XSums& x_sums, Operands const& a,
                                                    u64 x, int chunk, int first, int count,
                                                    bool adds) {
    constexpr u32 kOnes = ones<typename P::Target>();
    u32 const one[4] = {kOnes, kOnes, kOnes, kOnes};
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      start(sums, a[first + i], x, chunk, first + i, adds || i > 0);
      if constexpr (L::kFloatZeros) start(x_sums, one, x, chunk, first + i, adds || i > 0);
    }
    wgmma_commit_group();
  }

  /// Waits for the sums of an interval.
  static __device__ __forceinline__ void wait(Sums& sums, XSums& x_sums) {
    wgmma_wait_group<0>();
    after_wait(sums);
    if constexpr (L::kFloatZeros) after_wait(x_sums);
  }

  /// Intervals of a step, or a part of it.
  __device__ __forceinline__ void promote_step(Operands const& a, Operands& next,
                                               RowNumbers<P> const& rows, RowNumbers<P>& next_rows,
                                               bool more) {
    u32 stage;
    u64 const x = begin(stage);
#pragma unroll
    for (int chunk = 0; chunk < L::kChunks; ++chunk)
#pragma unroll
      for (int interval = 0; interval < L::kIntervals; ++interval) {
        bool const last = chunk == L::kChunks - 1 && interval == L::kIntervals - 1;
        Sums sums;
        XSums x_sums;
        start_some(sums, x_sums, a, x, chunk, interval * L::kMmas, L::kMmas, false);
        if (last && more) next_rows = read(next);
        wait(sums, x_sums);
        if (last) release(stage);
        promote(totals_.c[chunk], sums, x_sums, rows, interval * L::kMmas);
      }
  }

  /// An interval of two steps. The second is decoded behind the first MMAs of the first; the first
  /// of the next pair when the last MMAs of this one are done.
  __device__ __forceinline__ void promote_pair(Operands& first, Operands& second,
                                               RowNumbers<P>& first_rows,
                                               RowNumbers<P>& second_rows, bool more) {
    u32 stages[2];
    u64 x[2];
    x[0] = begin(stages[0]);
#pragma unroll
    for (int chunk = 0; chunk < L::kChunks; ++chunk) {
      bool const last = chunk == L::kChunks - 1;
      Sums sums;
      XSums x_sums;
      start_some(sums, x_sums, first, x[0], chunk, 0, kStepMmas, false);
      if (chunk == 0) {
        second_rows = read(second);
        x[1] = begin(stages[1]);
      }
      start_some(sums, x_sums, second, x[1], chunk, 0, kStepMmas, true);
      if (last) {
        wgmma_wait_group<1>();
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
  Ring<P::kStages>& ring_;
  Totals<P>& totals_;
  u32 before_ = 0;  // the stage whose MMAs are under way
};

}  // namespace humming::sm90::wide
