// Who empties the ring: a warpgroup that multiplies its share of a tile.
//
// A thread holds, of each 8 rows of weights, those at 2 * (lane % 4) and the next, of the tokens at
// 16 * warp + lane / 4 and 8 more: sums 0 and 1 are of the first token, 2 and 3 of the other.
#pragma once

#include <humming_sm90/items.cuh>

namespace humming::sm90 {

/// A thread of a warpgroup that multiplies.
struct Consumer {
  u32 group;  // the same register in all threads, so that descriptors are uniform
  u32 warp;   // of all that multiply
  u32 lane;

  __device__ __forceinline__ Consumer()
      : group(__shfl_sync(0xffffffffu, threadIdx.x / kGroupThreads - 1, 0)),
        warp(threadIdx.x / 32 - kGroupThreads / 32),
        lane(threadIdx.x % 32) {}

  /// Its first row of weights of each 8.
  __device__ __forceinline__ int column() const { return 2 * (lane % 4); }
};

/// What a warpgroup has of a tile: 64 of its tokens and all of its rows of weights, or, where a tile or
/// an expert has no more than 64 tokens, all of these and its share of the weights. Short tiles behind
/// long ones are not shared: that took longer (H200, 256 rows of each of 256 experts: 5014 us, not
/// 4456, all else equal).
template <class P>
struct Share {
  int first;   // of its tokens, within the tile
  int chunk;   // first of its chunks of weights
  int chunks;  // how many: none for the second warpgroup, if the tile is a single one

  __device__ __forceinline__ Share(Tile const& tile, Consumer const& place) {
    constexpr int kAll = Plan<P>::kChunks, kHalf = (kAll + 1) / 2;
    // The same register in all threads, as the number of the warpgroup is.
    int const found = !Plan<P>::kHalves && (tile.count > kGroupM || !tile.alone);
    bool const together = __shfl_sync(0xffffffffu, found, 0) != 0;
    first = together ? place.group * kGroupM : 0;
    chunk = together ? 0 : place.group * kHalf;
    chunks = together ? kAll : place.group == 0 ? kHalf : kAll - kHalf;
  }

  /// A thread's first token within the tile; the other is 8 further.
  __device__ __forceinline__ int row(Consumer const& place) const {
    return first + 16 * (place.warp % 4) + place.lane / 4;
  }
  /// Its first row of weights within the tile.
  __device__ __forceinline__ int column() const { return chunk * P::kChunkN; }
};

/// The sums of a warpgroup's share of a tile.
template <class P>
struct Totals {
  using Number = float;
  static constexpr int kSums = Plan<P>::kOwnChunks * Plan<P>::kChunkSums;
  float c[Plan<P>::kOwnChunks][Plan<P>::kChunkSums];

  /// Four of them, `number` of kSums / 4.
  __device__ __forceinline__ float* four(int number) {
    constexpr int kPerChunk = Plan<P>::kChunkSums / 4;
    return c[number / kPerChunk] + number % kPerChunk * 4;
  }

  /// Sum `i` of the 8 rows of weights number `eight`.
  __device__ __forceinline__ float value(int eight, int i) const {
    constexpr int kEights = P::kChunkN / 8;
    return c[eight / kEights][eight % kEights * 4 + i];
  }
};

/// Says that this warp has read a stage.
template <class P>
__device__ __forceinline__ void release(Shared<P> const& shared, u32 stage, Consumer const& place) {
  __syncwarp();
  if (place.lane == 0) mbarrier_arrive(shared.empty(stage));
}

/// Starts the MMAs of a step for one chunk.
template <class P>
__device__ __forceinline__ void start_chunk(u64 x, u64 weight, int chunk,
                                            typename P::Number (&sums)[Plan<P>::kChunkSums]) {
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
    P::Mma::multiply(sums, x + i * kMmaStep,
                     weight + chunk * P::kChunkN * kRowStep + i * kMmaStep, i > 0);
}

/// A sum of a step as f32. Integers are below 2^22, so they fit under the leading bits of
/// 1.5 * 2^23: an addition of each kind instead of a conversion.
__device__ __forceinline__ float as_float(float sum) { return sum; }
__device__ __forceinline__ float as_float(i32 sum) {
  return __int_as_float(sum + 0x4b400000) - 12582912.0f;
}
static_assert(kStepK * 128 * 128 < 1 << 22, "as_float: a larger sum");

/// The scales of one step that a thread needs. What lies in the ring is read when it is wanted.
template <class P>
class StepScales {
 public:
  __device__ __forceinline__ StepScales() {
    // A 1 that ptxas does not know: with additions in the place of fused ones it keeps the sums of
    // two chunks at a time, for which there are no registers (13.5, sm_90a: 900 bytes of spills).
    asm volatile("mov.f32 %0, 0f3F800000;" : "=f"(one_));
  }

  /// Those of the step in this stage, which is full.
  __device__ __forceinline__ void read(Shared<P> const& shared, u32 stage, Consumer const& place,
                                       Share<P> const& share) {
    if constexpr (P::kHasRowGroups) {
      u32 const from = shared.row_scales(stage) + 4 * share.row(place);
      rows_[0] = load_shared_float(from);
      rows_[1] = load_shared_float(from + 4 * 8);
    }
    if constexpr (kBlocks > 0) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        blocks_[i] = load_shared_float(shared.block_scales(stage) + 4 * i);
    }
    if constexpr (kBlocks > 1) {
      if (share.chunk > 0) blocks_[0] = blocks_[1];
    }
  }

  /// Adds the sums of a chunk to its totals, scaled.
  __device__ __forceinline__ void promote(Shared<P> const& shared, u32 stage, Consumer const& place,
                                          Share<P> const& share, int chunk,
                                          typename P::Number const (&sums)[Plan<P>::kChunkSums],
                                          float (&totals)[Plan<P>::kChunkSums]) const {
    float rows[2] = {one_, one_};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (P::kHasRowGroups) rows[i] = rows_[i];
      if constexpr (kBlocks > 0) rows[i] *= blocks_[chunk * P::kChunkN / Plan<P>::kBlockRows];
    }
#pragma unroll
    for (int i = 0; i < Plan<P>::kChunkSums; i += 4) {
      float factors[4] = {rows[0], rows[0], rows[1], rows[1]};
      if constexpr (P::kScaleRows == 1) {
        float columns[2];
        int const n =
            share.column() + chunk * P::kChunkN + 2 * i + place.column();
        load_shared_floats(columns, shared.scales(stage) + 4 * n);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          factors[j] = P::kHasRowGroups ? rows[j / 2] * columns[j % 2] : columns[j % 2];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) totals[i + j] += as_float(sums[i + j]) * factors[j];
    }
  }

 private:
  static constexpr int kBlocks = Plan<P>::kBlocks;
  static_assert(kBlocks <= 2 && (kBlocks < 2 || Plan<P>::kChunks == 2),
                "StepScales: other scales where a warpgroup has half of the chunks");

  static __device__ __forceinline__ float load_shared_float(u32 from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
  }
  static __device__ __forceinline__ void load_shared_floats(float (&to)[2], u32 from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(to[0]), "=f"(to[1]) : "r"(from)
                 : "memory");
  }

  float one_, rows_[2], blocks_[kBlocks + 1];
};

/// Multiplies `kCount` chunks of a tile: those of the share. Sums of a step are promoted to f32 before
/// the next. Whole rounds of the ring are unrolled without a branch, so that a descriptor is one
/// addition, and whether the next stage is full is asked before it matters (H200, M = 2048 and N = K =
/// 8192: 199 us; 214 with a branch at each stage). Who has fewer chunks waits for memory anyway.
template <class P, int kCount>
__device__ __forceinline__ void multiply_chunks(int steps, Shared<P> const& shared,
                                                Consumer const& place, Share<P> const& share,
                                                Ring<P::kStages>& ring, Totals<P>& totals) {
  using L = Plan<P>;
  // Scales of rows of weights are read from the stage when sums are promoted.
  constexpr bool kLate = P::kScaleRows == 1;
  // There are no registers for a second loop beside these scales.
  constexpr bool kRounds = !kLate;
  u64 const x = swizzled_rows(shared.x(0) + share.first * kRowBytes);
  u64 const weight = swizzled_rows(shared.weight(0) + share.column() * kRowBytes);
  StepScales<P> scales;
  typename P::Number sums[L::kChunkSums] = {};
  bool ready = false;
  auto const multiply = [&](auto stage, auto next, u32 parity, u32 next_parity) {
    u64 const offset = u64(stage) * (L::kStageBytes / 16);
    if (!ready) mbarrier_wait(shared.full(stage), parity);
#pragma unroll
    for (int chunk = 0; chunk < kCount; ++chunk) {
      wgmma_fence();
      start_chunk<P>(x + offset, weight + offset, chunk, sums);
      wgmma_commit_group();
      if (chunk == 0) scales.read(shared, stage, place, share);
      wgmma_wait_group<0>();
      after_wait(sums);
      if (chunk + 1 == kCount) {
        if (!kLate) release(shared, stage, place);
        ready = mbarrier_test_wait(shared.full(next), next_parity);
      }
      scales.promote(shared, stage, place, share, chunk, sums, totals.c[chunk]);
    }
    if (kCount == 0 || kLate) release(shared, stage, place);
  };
  while (steps > 0) {
    if constexpr (kCount == L::kOwnChunks && !kRounds) {
      for_constants<P::kStages>([&](auto stage) {
        if (ring.stage != stage || steps == 0) return;
        constexpr int kNext = (stage + 1) % P::kStages;
        u32 const parity = ring.parity;
        multiply(stage, Constant<kNext>{}, parity, kNext == 0 ? parity ^ 1 : parity);
        ring.advance();
        --steps;
      });
    } else if (kCount == L::kOwnChunks && ring.stage == 0 && steps >= P::kStages) {
      u32 const parity = ring.parity;
      for_constants<P::kStages>([&](auto stage) {
        constexpr int kNext = (stage + 1) % P::kStages;
        multiply(stage, Constant<kNext>{}, parity, kNext == 0 ? parity ^ 1 : parity);
      });
      ring.parity ^= 1;
      steps -= P::kStages;
    } else {
      Ring<P::kStages> next = ring;
      next.advance();
      multiply(ring.stage, next.stage, ring.parity, next.parity);
      ring = next;
      --steps;
    }
  }
}

/// The sums of a share of a tile. Every step is waited for and released, whatever the share is.
template <class P>
__device__ __forceinline__ void multiply_tile(int steps, Shared<P> const& shared,
                                              Consumer const& place, Share<P> const& share,
                                              Ring<P::kStages>& ring, Totals<P>& totals) {
  constexpr int kAll = Plan<P>::kOwnChunks;
#pragma unroll
  for (int chunk = 0; chunk < kAll; ++chunk)
#pragma unroll
    for (int i = 0; i < Plan<P>::kChunkSums; ++i) totals.c[chunk][i] = 0.0f;
  if (Plan<P>::kHalves || share.chunks == kAll) {
    multiply_chunks<P, kAll>(steps, shared, place, share, ring, totals);
  } else {
    multiply_chunks<P, kAll / 2>(steps, shared, place, share, ring, totals);
  }
}

}  // namespace humming::sm90
