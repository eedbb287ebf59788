// What a GEMM kernel with both operands in shared memory is made of, as constants of its policy.
//
// out[m, n] = sum over k of x[m, k] * w[n, k]. Tokens are the M side of the MMA, weights its N
// side.
//
//   step   128 of K: a stage of the ring, and what sums are promoted to f32 after
//   tile   kTokens tokens by kTileN rows of weights: what a CTA computes at a time
//   chunk  kChunkN rows of weights: what one MMA takes of a tile
//   part   a run of the steps of a tile, for one CTA
//
// A policy has
//
//   Output, Number                    format of results, and float or i32: what the MMA sums
//   Mma                               the instruction
//   kKind, kRaster                    rows of x to weights, and the walk through the tiles
//   kTokens, kTileN, kChunkN, kStages sizes
//   kSplits, kCounterBytes            parts of a tile, and where partials begin in the workspace
//   kScaleRows                        rows of weights that share a scale of a step; 0: no scales
//   kHasRowGroups                     tokens have a scale for each step
//   kHasChannel, kHasBias             which arguments are given
#pragma once

#include <humming/gemm/sizes.cuh>
#include <humming_sm90/mbarrier.cuh>
#include <humming_sm90/tma.cuh>
#include <humming_sm90/wgmma.cuh>

namespace humming::sm90 {

inline constexpr int kStepK = kRowBytes;  // operands of 8 bits
inline constexpr int kPanelRows = 64;     // of weights whose codes of a step lie together
inline constexpr int kGroupThreads = 128;
inline constexpr int kConsumers = 2;  // warpgroups that multiply, each 64 tokens of a tile
inline constexpr int kGroupM = 64;
/// Tokens of a tile, unless a policy has fewer.
inline constexpr int kTileM = kConsumers * kGroupM;
inline constexpr int kConsumerWarps = kConsumers * kGroupThreads / 32;
inline constexpr int kThreads = (1 + kConsumers) * kGroupThreads;
/// Registers of a thread that copies, and of one that multiplies: 168 each are what a CTA has.
inline constexpr int kProducerRegisters = 40;
inline constexpr int kConsumerRegisters = 232;
/// Rows of scales, factors and biases are padded to a multiple of this, so that tiles are whole.
inline constexpr int kPaddedN = 256;

/// Arguments of the kernel; named as in humming.engine.arguments.
struct Arguments {
  TensorMap const* x;  // of indexed problems in the order of sorted choices, as its scales are
  i32 const* slots;    // and where the results of these go
  float const* x_scales;
  float const* x_groups;
  TensorMap const* weight;
  float const* scales;
  float const* channel;
  float const* bias;
  void* out;
  u8* workspace;
  i32 m, n, k, experts;
  i32 const* groups;

  __device__ __forceinline__ int steps() const { return (k + kStepK - 1) / kStepK; }
  /// 128s of K, padding included.
  __device__ __forceinline__ int units() const { return (k + kUnitK - 1) / kUnitK; }
  /// Rows of a box of x, of which a tile takes as many as hold its rows; twin of box_rows() in
  /// kernel.py.
  template <GemmKind kKind, int kTokens>
  __device__ __forceinline__ int box_rows() const {
    if (kKind == GemmKind::kDense && m <= kTokens) return (m + 7) / 8 * 8;
    constexpr bool kTogether = kKind == GemmKind::kGroupedContiguous || kKind == GemmKind::kIndexed;
    int const mean = kTogether ? (m + experts - 1) / experts : m;
    return mean <= 16 ? 8 : mean <= 48 ? 16 : mean <= 96 ? 32 : mean <= 192 || kTokens == 64 ? 64 : 128;
  }
  __device__ __forceinline__ int padded_n() const {
    return (n + kPaddedN - 1) / kPaddedN * kPaddedN;
  }
};

template <class P>
struct Plan {
  static_assert(P::kChunkN % 8 == 0 && P::kChunkN <= 256, "Plan: no such MMA");
  static_assert(P::kTileN % P::kChunkN == 0 && kPaddedN % P::kTileN == 0, "Plan: a broken tile");
  static_assert(P::kTokens == kGroupM || P::kTokens == kTileM, "Plan: no share for a warpgroup");
  static_assert(P::kSplits == 1 || P::kKind == GemmKind::kDense, "Plan: parts of tiles of experts");
  static_assert(P::kScaleRows <= 1 || P::kScaleRows % P::kChunkN == 0,
                "Plan: a chunk with several scales of blocks");

  static constexpr int kChunks = P::kTileN / P::kChunkN;
  static constexpr int kChunkSums = P::kChunkN / 2;  // 64 rows for 128 threads
  /// Both warpgroups multiply all tokens, each half of the rows of weights; and the most chunks that
  /// one of them has.
  static constexpr bool kHalves = P::kTokens == kGroupM;
  static_assert(!kHalves || kChunks == kConsumers, "Plan: tiles of so few tokens are two chunks");
  static constexpr int kOwnChunks = kHalves ? 1 : kChunks;

  static constexpr int kXBytes = P::kTokens * kRowBytes;
  static constexpr int kWeightBytes = P::kTileN * kRowBytes;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kRowScaleBytes = P::kHasRowGroups ? 4 * P::kTokens : 0;
  static constexpr int kScaleBytes = P::kScaleRows == 1 ? 4 * P::kTileN : 0;
  /// Scales of blocks of rows that a tile has for a step.
  static constexpr int kBlockRows = P::kScaleRows > 1 ? P::kScaleRows : kPaddedN;
  static constexpr int kBlocks =
      P::kScaleRows > 1 ? (P::kTileN + kBlockRows - 1) / kBlockRows : 0;
  static constexpr int kBlockScaleBytes = 16;
  static_assert(4 * kBlocks <= kBlockScaleBytes, "Plan: more scales of blocks than there is room for");
  static constexpr bool kGathersScales = P::kHasRowGroups || kBlocks > 0;
  static constexpr bool kIndexed = P::kKind == GemmKind::kIndexed;
  /// Those who say that a stage is full: a thread for weights, another for x, and a warp for scales that
  /// don't lie together.
  static constexpr int kFillers = 2 + 32 * kGathersScales;

  // Shared memory, from a multiple of 1024 on.
  static constexpr int kWarpResultBytes = 16 * kRowBytes;  // 16 rows of 128 bytes of the result
  static constexpr int kResults = P::kStages * kStageBytes;
  static constexpr int kScales = kResults + kConsumerWarps * kWarpResultBytes;
  static constexpr int kRowScales = kScales + P::kStages * kScaleBytes;
  static constexpr int kBlockScales = kRowScales + P::kStages * kRowScaleBytes;
  static constexpr int kFlag = kBlockScales + P::kStages * kBlockScaleBytes;
  static constexpr int kTold = kFlag + (P::kSplits > 1 ? 16 : 0);
  static constexpr int kFull = kTold + 16 * P::kStages;
  static constexpr int kEmpty = kFull + 8 * P::kStages;
  static constexpr int kSharedBytes = kEmpty + 8 * P::kStages;
  static_assert(kSharedBytes <= 232448, "Plan: more shared memory than a CTA can have");
};

/// Where in shared memory things are.
template <class P>
struct Shared {
  using L = Plan<P>;
  u32 base;

  __device__ __forceinline__ u32 x(u32 stage) const { return base + stage * L::kStageBytes; }
  __device__ __forceinline__ u32 weight(u32 stage) const { return x(stage) + L::kXBytes; }
  __device__ __forceinline__ u32 scales(u32 stage) const {
    return base + L::kScales + stage * L::kScaleBytes;
  }
  __device__ __forceinline__ u32 row_scales(u32 stage) const {
    return base + L::kRowScales + stage * L::kRowScaleBytes;
  }
  __device__ __forceinline__ u32 block_scales(u32 stage) const {
    return base + L::kBlockScales + stage * L::kBlockScaleBytes;
  }
  __device__ __forceinline__ u32 result(u32 warp) const {
    return base + L::kResults + warp * L::kWarpResultBytes;
  }
  __device__ __forceinline__ u32 flag() const { return base + L::kFlag; }
  /// Of the item that begins at a stage, if one does.
  __device__ __forceinline__ u32 told(u32 stage) const { return base + L::kTold + 16 * stage; }
  __device__ __forceinline__ u32 full(u32 stage) const { return base + L::kFull + 8 * stage; }
  __device__ __forceinline__ u32 empty(u32 stage) const { return base + L::kEmpty + 8 * stage; }
};

}  // namespace humming::sm90
