// Who empties the ring: a warpgroup that multiplies 64 tokens by the weights of a tile.
//
// A thread holds, of each 8 rows of weights, those at 2 * (lane % 4) and the next, of the tokens at
// 16 * warp + lane / 4 and 8 more: sums 0 and 1 are of the first token, 2 and 3 of the other.
#pragma once

#include <humming_sm90/tiles.cuh>

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

  /// Its first token within the tile; the other is 8 further.
  __device__ __forceinline__ int row() const { return 16 * warp + lane / 4; }
  /// Its first row of weights of each 8.
  __device__ __forceinline__ int column() const { return 2 * (lane % 4); }
};

/// The sums of a warpgroup's part of a tile.
template <class P>
struct Totals {
  float c[Plan<P>::kChunks][Plan<P>::kChunkSums];

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
__device__ __forceinline__ void start_chunk(u64 x, u64 weight, int chunk, bool adds,
                                            typename P::Number (&sums)[Plan<P>::kChunkSums]) {
#pragma unroll
  for (int i = 0; i < kMmas; ++i)
    P::Mma::multiply(sums, x + i * kMmaStep,
                     weight + chunk * P::kChunkN * kRowStep + i * kMmaStep, adds || i > 0);
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
  __device__ __forceinline__ void read(Shared<P> const& shared, u32 stage, Consumer const& place) {
    if constexpr (P::kHasRowGroups) {
      u32 const from = shared.row_scales(stage) + 4 * place.row();
      rows_[0] = load_shared_float(from);
      rows_[1] = load_shared_float(from + 4 * 8);
    }
    if constexpr (kBlocks > 0) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        blocks_[i] = load_shared_float(shared.block_scales(stage) + 4 * i);
    }
  }

  /// Adds the sums of a chunk to its totals, scaled.
  __device__ __forceinline__ void promote(Shared<P> const& shared, u32 stage, Consumer const& place,
                                          int chunk,
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
        int const n = chunk * P::kChunkN + 2 * i + place.column();
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

/// Sums of a step are promoted to f32 before the next. Stages are constants in the unrolled loop,
/// so that a descriptor is one addition: that was worth 13 % where it was measured.
template <class P>
__device__ __forceinline__ void multiply_tile(Arguments const& args, Shared<P> const& shared,
                                                   Consumer const& place, Ring<P::kStages>& ring, Totals<P>& totals) {
  using L = Plan<P>;
  u64 const x = swizzled_rows(shared.x(0) + place.group * kGroupM * kRowBytes);
  u64 const weight = swizzled_rows(shared.weight(0));
  StepScales<P> scales;
  typename P::Number sums[L::kChunkSums] = {};
#pragma unroll
  for (int chunk = 0; chunk < L::kChunks; ++chunk)
#pragma unroll
    for (int i = 0; i < L::kChunkSums; ++i) totals.c[chunk][i] = 0.0f;

  int left = args.steps();
  while (left > 0) {
    for_constants<P::kStages>([&](auto stage) {
      if (ring.stage != stage || left == 0) return;
      constexpr u64 kStage = u64(stage) * (L::kStageBytes / 16);
      mbarrier_wait(shared.full(stage), ring.parity);
#pragma unroll
      for (int chunk = 0; chunk < L::kChunks; ++chunk) {
        wgmma_fence();
        start_chunk<P>(x + kStage, weight + kStage, chunk, false, sums);
        wgmma_commit_group();
        if (chunk == 0) scales.read(shared, stage, place);
        wgmma_wait_group<0>();
        after_wait(sums);
        // Scales of rows of weights are still to be read from the stage.
        constexpr bool kLate = P::kScaleRows == 1;
        bool const last = chunk == L::kChunks - 1;
        if (last && !kLate) release(shared, stage, place);
        scales.promote(shared, stage, place, chunk, sums, totals.c[chunk]);
        if (last && kLate) release(shared, stage, place);
      }
      ring.advance();
      --left;
    });
  }
}

}  // namespace humming::sm90
