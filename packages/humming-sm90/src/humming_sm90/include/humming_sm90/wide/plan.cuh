// What a GEMM kernel for many tokens with decoded weights is made of, as constants of its policy.
//
// out[m, n] = sum over k of x[m, k] * w[n, k]. Weights are the M side of the MMA and come from
// registers, where they are decoded; tokens are its N side and lie in shared memory.
//
//   step      128 bytes of K: a stage of the ring, one or two blocks of weights
//   tile      two panels of 64 rows of weights by kTokens tokens: what a CTA computes at a time
//   chunk     tokens that one MMA takes of a tile: kTokens of Mma, or as few as do
//   interval  K that is multiplied before scales are applied, within 128
//   part      a run of the steps of a tile, for one CTA
//
// A policy has
//
//   Weight, Target, Scale, Output     formats: of codes, of decoded weights and x, of scales, ...
//   Mma                               MMAs of a chunk: templates/wgmma_group.cu.j2
//   kKind, kRaster                    rows of x to weights, and the walk through the tiles
//   kTileN, kTokens, kStages          sizes
//   kFits                             of a tile with few rows fewer tokens are copied and multiplied
//   kSplits, kCounterBytes            parts of a tile, and where partials begin in the workspace
//   kProducerRegisters, kConsumerRegisters   of a thread that copies, and of one that multiplies
//   kZero, kGroup, kZeroGroup         zero points, and K per scale; 0: none
//   kFolds                            scales are multiplied into the operand (one more rounding)
//                                     and not into the sums of an interval
//   kPromotesAll                      sums of 128 of K are added in f32 without need of scales
//   kHasRowScales, kHasChannel, kHasBias   which arguments are given
//   Function, kInputs                 applied to results: see humming/gemm/sizes.cuh
#pragma once

#include <humming/gemm/mainloop.cuh>
#include <humming_sm90/items.cuh>

namespace humming::sm90::wide {

inline constexpr int kPanels = kConsumers;
inline constexpr int kStepMmas = kMmas;
static_assert(kBlock == kGroupM, "a block is a warpgroup's");

/// Arguments of the kernel; named as in humming.engine.arguments.
struct Arguments {
  TensorMap const* x;  // of indexed problems in the order of sorted choices, as its scales are
  i32 const* slots;    // and where the results of these go
  float const* x_scales;
  u8 const* weight;
  u8 const* scales;
  u8 const* zeros;
  float const* channel;
  float const* bias;
  void* out;
  u8* workspace;
  i32 m, n, k, experts;
  i32 const* groups;

  /// Panels of rows that there are.
  __device__ __forceinline__ int panels() const { return (n + kBlock - 1) / kBlock; }
  /// 128s of K, padding included.
  __device__ __forceinline__ int units() const { return (k + kUnitK - 1) / kUnitK; }
};

template <class P>
struct Plan {
  using Decoder = typename decltype(choose_operands<P>())::type;
  using Planes = typename Decoder::Planes;
  static constexpr int kChunk = P::Mma::kTokens;
  static constexpr bool kHalves = is_half<typename P::Target>;
  static_assert(kHalves || P::Target::kBits == 8, "Plan: operands of 16 or 8 bits");
  static_assert(P::kTileN == kPanels * kBlock, "Plan: a warpgroup multiplies one panel");
  static_assert(P::kTokens % kChunk == 0 && kChunk % 16 == 0, "Plan: a broken tile");
  static_assert(P::kSplits == 1 || P::kTokens <= 128, "Plan: parts of tiles that are too large");

  static constexpr int kStepBlocks = 16 / P::Target::kBits;
  static constexpr int kStepK = kStepBlocks * kBlock;
  static constexpr int kMmaK = kStepK / kStepMmas;
  static constexpr int kBlockMmas = kBlock / kMmaK;

  static constexpr int kChunks = P::kTokens / kChunk;
  static constexpr int kChunkSums = kChunk / 2;  // 64 rows for 128 threads
  /// Rows of a copy of x; twin of WideTuning.box. A thread starts some nine copies per microsecond
  /// (H200), which is about a step: more than two for x would keep the tensor cores waiting.
  static constexpr int kBox = P::kFits ? P::kTokens / 2 : P::kTokens;
  static_assert(kBox % 8 == 0, "Plan: a copy that ends within a pattern of swizzled rows");

  // Scales and zero points: bytes of one, and how many of a row a step has.
  static constexpr bool kFloatZeros = P::kZero == Zero::kFloat;
  static constexpr int kScaleBytes = P::kGroup != 0 ? P::Scale::kBits / 8 : 0;
  static constexpr int kZeroBytes =
      P::kZero == Zero::kNone ? 0 : kFloatZeros ? P::Scale::kBits / 8 : 1;
  static constexpr int kScaleInterval = greatest_common_divisor(kStepK, P::kGroup);
  static constexpr int kZeroInterval = greatest_common_divisor(kStepK, P::kZeroGroup);
  static constexpr int kScales = kStepK / kScaleInterval;
  static constexpr int kZeros = kStepK / kZeroInterval;

  static constexpr bool kPromotes =
      (P::kGroup != 0 && !P::kFolds) || kFloatZeros || P::kPromotesAll;
  static constexpr int kInterval = greatest_common_divisor(
      greatest_common_divisor(kUnitK, P::kFolds ? 0 : P::kGroup), kFloatZeros ? P::kZeroGroup : 0);
  static constexpr bool kPairs = kInterval > kStepK;
  static constexpr int kIntervals = kPairs ? 1 : kStepK / kInterval;  // of a step, or of two
  static constexpr int kMmas = kInterval / kMmaK;  // of an interval
  /// Rows of tiles are a multiple of: of what is multiplied at a time, if that can be left out.
  static constexpr int kEven = P::kFits ? P::Mma::kGrain : 0;
  static_assert(kInterval % kMmaK == 0, "Plan: a scale group that is no multiple of an MMA's K");
  static_assert(!P::kFolds || (P::kGroup != 0 && !kFloatZeros),
                "Plan: only scales go into operands, and nothing else may need f32");
  using Number = typename P::Mma::Number;
  using Total = Chosen<kPromotes, float, Number>;

  // Bytes of a stage: x, and of each panel its codes, scales and zero points.
  static constexpr int kXBytes = P::kTokens * kRowBytes;
  static constexpr int kBlockBytes = 16 * 32 * Planes::kBits;
  static constexpr int kCodeBytes = kStepBlocks * kBlockBytes;
  static constexpr int kPanelScaleBytes = kBlock * kScaleBytes;  // of one interval
  static constexpr int kPanelZeroBytes = kBlock * kZeroBytes;
  static constexpr int kPanelBytes =
      kCodeBytes + kScales * kPanelScaleBytes + kZeros * kPanelZeroBytes;

  static constexpr bool kIndexed = P::kKind == GemmKind::kIndexed;
  static constexpr bool kHasRows = kPanelBytes > kCodeBytes;  // scales or zero points
  /// Who says that a stage is full: a thread of x, one of the codes of each panel, and a warp of scales
  /// and zero points.
  static constexpr int kFillers = 1 + kPanels + (kHasRows ? 32 : 0);

  // Shared memory, from a multiple of 1024 on.
  /// Of a warpgroup: so much of the result at a time, and as f32 no more than all of it.
  static constexpr int kResultBytes = P::kTokens < 32 ? P::kTokens * kBlock * 4 : 8192;
  static constexpr int kResults = P::kStages * kXBytes;
  static constexpr int kWeights = kResults + kPanels * kResultBytes;
  static constexpr int kPlaces = kWeights + P::kStages * kPanels * kPanelBytes;
  /// Of a warpgroup: a factor of each row of a tile, then where it goes if rows are chosen by index.
  static constexpr int kFactorBytes = (P::kHasRowScales ? 4 : 0) * P::kTokens;
  static constexpr int kPlaceBytes = kFactorBytes + (kIndexed ? 4 : 0) * P::kTokens;
  static constexpr int kFlag = kPlaces + kPanels * kPlaceBytes;
  static constexpr int kTold = kFlag + 16;
  static constexpr int kFull = kTold + 16 * P::kStages;
  static constexpr int kEmpty = kFull + 8 * P::kStages;
  static constexpr int kSharedBytes = kEmpty + 8 * P::kStages;
  static_assert(kSharedBytes <= 232448, "Plan: more shared memory than a CTA can have");
};

template <class P>
using Items = ItemsOf<P, Arguments, P::kTokens, Plan<P>::kEven, kUnitK / Plan<P>::kStepK>;

/// Where in shared memory things are.
template <class P>
struct Shared {
  using L = Plan<P>;
  u32 base;

  __device__ __forceinline__ u32 x(u32 stage) const { return base + stage * L::kXBytes; }
  /// Codes of both panels, then their scales of each interval, then their zero points.
  __device__ __forceinline__ u32 codes(u32 stage) const {
    return base + L::kWeights + stage * (kPanels * L::kPanelBytes);
  }
  __device__ __forceinline__ u32 scales(u32 stage) const {
    return codes(stage) + kPanels * L::kCodeBytes;
  }
  __device__ __forceinline__ u32 zeros(u32 stage) const {
    return scales(stage) + kPanels * L::kScales * L::kPanelScaleBytes;
  }
  __device__ __forceinline__ u32 result(u32 group) const {
    return base + L::kResults + group * L::kResultBytes;
  }
  /// Of each row of a tile the factor, then of each the row of the result, for a warpgroup.
  __device__ __forceinline__ u32 places(u32 group) const {
    return base + L::kPlaces + group * L::kPlaceBytes;
  }
  /// Of the item that begins at a stage, if one does.
  __device__ __forceinline__ u32 told(u32 stage) const { return base + L::kTold + 16 * stage; }
  __device__ __forceinline__ u32 flag() const { return base + L::kFlag; }
  __device__ __forceinline__ u32 full(u32 stage) const { return base + L::kFull + 8 * stage; }
  __device__ __forceinline__ u32 empty(u32 stage) const { return base + L::kEmpty + 8 * stage; }
};

/// The panels of a tile: the last tile may have only one.
struct PanelPair {
  int first, count;

  __device__ __forceinline__ PanelPair(Arguments const& args, Tile const& tile)
      : first(kPanels * tile.column),
        count(args.panels() - first < kPanels ? args.panels() - first : kPanels) {}
};

}  // namespace humming::sm90::wide
