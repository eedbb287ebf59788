// What a GEMM kernel is made of, as constants that follow from its policy.
//
// out[m, n] = sum over k of x[m, k] * w[n, k]. Weights are the A operand of the MMA (16 rows), tokens
// its 8 columns. Terms:
//
//   step    what one MMA takes of K: 32 bytes of a row of x
//   block   64 rows of weights by 64 of K: 128 codes per lane of a warp
//   unit    two blocks along K: what teams take turns in
//   tile    kTileN rows of weights by kTileM tokens: a CTA's part of the result
//   team    the warps of a CTA that multiply the same units. The teams of a CTA take turns in K.
//
// A policy has
//
//   Weight, Target, Activation, Scale, Output   formats: of codes, of decoded weights, of x, ...
//   Accumulator                                 float, i32, or Half for sums in f16
//   Mma, Copy                                   what multiplies, and what fills the ring
//   kZero, kGroup, kZeroGroup, kActivationGroup zero points, and K per scale; 0: none
//   kFolds                                      scales are multiplied into the operand (one more
//                                               rounding) and not into sums of a group
//   kKeepsShortSums                             sums of 8-bit floats do for the result as they are
//   kHasOrder, kHasChannel, kHasBias, kHasRowScales   which arguments are given
//   kKind, kPartition, kRaster                  rows of x to weights; K and tiles to CTAs
//   Function, kInputs                           applied to results: of(x), or of(gate, up), whose rows
//                                               of weights are 8 apart
//   kWarpTiles                                  tiles of 16 rows of a warp: 4, so all of a block, or 1 where
//                                               the warps of a warpgroup share it
//   kWidths                                     1, or into how many steps the tokens of MMAs are cut
//   kWarpsN, kWarpsM, kWarpsK, kTokens          the work of a warp, and how warps share a tile
//   Mainloop                                    what multiplies a tile; see mainloop.cuh
//   kStages, kStageBlocks                       the ring of activations, and K of a stage in blocks
//   kSortsFew                                   by index: whether few choices may come unsorted
//   kCounterBytes                               where partials begin in the workspace
#pragma once

#include <humming/decode/folding.cuh>
#include <humming/functions.cuh>
#include <humming/scheduler.cuh>

namespace humming {

enum class GemmKind { kDense, kIndexed, kGroupedContiguous, kGroupedMasked };

struct GemmArguments {
  u8 const* x;
  i64 x_stride;  // bytes
  float const* x_scales;
  float const* x_groups;
  i32 const* order;
  u8 const* weight;
  u8 const* scales;
  u8 const* zeros;
  float const* channel;
  float const* bias;
  void* out;
  u8* workspace;
  i32 m, n, k, experts, top_k;
  i32 const* groups;
  i32 const* slots;
  i32 const* row_tiles;
  i32 id_words;  // 0: as align_rows() sorted; else of each id, and groups are ids [m], which FewChoices sorts
};

__host__ __device__ constexpr int greatest_common_divisor(int a, int b) {
  while (b != 0) {
    int const rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

inline constexpr int kBlock = 64;
inline constexpr int kUnitK = 2 * kBlock;
inline constexpr int kTiles = 4;  // of 16 rows in a block
inline constexpr int kWindow = 32;  // blocks along K that lie together for all panels of rows

/// A Decoder as a FoldingDecoder that ignores scales.
template <class Plain>
struct WithoutScales : Plain {
  using Factors = typename Plain::ZeroPoint;
  static __device__ __forceinline__ Factors factors(u32, int, u32 zero) {
    return Plain::zero_point(zero);
  }
};

template <class P>
__host__ __device__ constexpr auto choose_operands() {
  using Weight = typename P::Weight;
  using Target = typename P::Target;
  if constexpr (P::kFolds) {
    return Type<FoldingDecoder<Weight, Target, P::kZero, typename P::Scale>>{};
  } else {
    return Type<WithoutScales<Decoder<Weight, Target, P::kZero>>>{};
  }
}

template <class P>
struct Sizes {
  using Decoder = typename decltype(choose_operands<P>())::type;
  using Planes = typename Decoder::Planes;

  static constexpr int kTeamWarps = P::kWarpsN * P::kWarpsM;
  static constexpr int kTeamThreads = 32 * kTeamWarps;
  static constexpr int kThreads = kTeamThreads * P::kWarpsK;
  static_assert(P::kWarpTiles == 1 || P::kWarpTiles == kTiles, "Sizes: 1 or 4 tiles per warp");
  static constexpr bool kSharesBlocks = P::kWarpTiles == 1;
  static constexpr int kWarpRows = 16 * P::kWarpTiles;
  static constexpr int kTileN = kWarpRows * P::kWarpsN;
  static_assert(kTileN % kBlock == 0, "Sizes: a tile has whole blocks");
  static constexpr int kTileResults = kTileN / P::kInputs;  // of a token
  static constexpr int kTileM = P::kTokens * P::kWarpsM;
  static constexpr int kTokenTiles = P::kTokens / 8;

  static constexpr int kCodes = 32 / P::Target::kBits;  // of a register
  static constexpr int kStepK = 8 * kCodes;
  static constexpr int kSteps = kBlock / kStepK;
  static_assert(P::Activation::kBits == P::Target::kBits, "Sizes: operands of different widths");

  static constexpr int kStageK = kBlock * P::kStageBlocks;
  static_assert(P::kStageBlocks == 1 || P::kStageBlocks == 2, "Sizes: a stage has 1 or 2 blocks");
  static constexpr int kRowBytes = kStageK * P::Activation::kBits / 8;
  static constexpr int kStageBytes = kTileM * kRowBytes;

  /// K that is multiplied before scales are applied, within a block.
  static constexpr int kWeightInterval = greatest_common_divisor(kBlock, P::kGroup);
  static constexpr int kInterval = greatest_common_divisor(kWeightInterval, P::kActivationGroup);
  static constexpr int kIntervals = kBlock / kInterval;
  static constexpr int kIntervalSteps = kInterval / kStepK;
  static_assert(kInterval % kStepK == 0, "Sizes: a scale group that is no multiple of an MMA's K");

  /// Sums of 8-bit floats and in f16 are short of bits: add them up in f32, block by block.
  static constexpr bool kShortSums =
      (is_small_float<typename P::Target> && !P::kKeepsShortSums) ||
      !(is_same<typename P::Accumulator, float> || is_same<typename P::Accumulator, i32>);
  static constexpr bool kScalesSums = P::kGroup != 0 && !P::kFolds;
  static constexpr bool kPromotes =
      kShortSums || kScalesSums || P::kActivationGroup != 0 || P::kZero == Zero::kFloat;
  static_assert(!P::kFolds ||
                    (P::kGroup != 0 && P::kActivationGroup == 0 && P::kZero != Zero::kFloat),
                "Sizes: only scales go into operands, and nothing else may have to do with groups");
  /// Intervals of a block whose sums are promoted: all of it is one if scales are in the operands.
  static constexpr int kSumIntervals = P::kFolds ? 1 : kIntervals;
  static constexpr int kSumSteps = kSteps / kSumIntervals;
  /// What teams and CTAs add up: exact for integers, unless scales came before.
  using Number = Chosen<!kPromotes && is_same<typename P::Accumulator, i32>, i32, float>;

  /// Fragments of 4 numbers that the lanes of a team hold.
  static constexpr int kFragments = kTeamWarps * P::kWarpTiles * kTokenTiles * 32;
  static constexpr int kFragmentBytes = 16 * kFragments;

  // Shared memory: what is kept for a whole tile, then one region for the rings, the sums of teams
  // and the result, one after the other.
  static constexpr int kOutBytes = P::Output::kBits / 8;
  static constexpr int kOutRowBytes = kTileN * kOutBytes + 16;  // so that rows differ in banks
  static constexpr int kFlagBytes = 16;
  static constexpr int kToldBytes = 48;
  /// With experts twice what is told of an item, and the rows of x and of results of its tile. Dense kernels
  /// use the flag alone, but were measured and chosen with room for one tile's rows.
  static constexpr int kTableBytes =
      P::kKind == GemmKind::kDense ? kFlagBytes + 8 * kTileM
                                   : kFlagBytes + 2 * (kToldBytes + 8 * kTileM);
  static constexpr int kAlignment = kSharesBlocks ? 1024 : 128;  // of rings, as their readers want it
  static constexpr int kRegion = (kTableBytes + kAlignment - 1) / kAlignment * kAlignment;
  static constexpr int kRingBytes = P::kWarpsK * P::kStages * kStageBytes;
  static constexpr int kTeamsBytes = P::kWarpsK == 1 ? 0 : P::kWarpsK * kFragmentBytes;
  static constexpr int kResultBytes = kTileM * kOutRowBytes;
  static constexpr int kSharedBytes =
      kRegion + int(larger(larger(kRingBytes, kTeamsBytes), kResultBytes));
};

/// A warp's place in its CTA.
template <class P>
struct WarpPlace {
  int lane, team, warp_n, warp_m, thread;  // thread: of the team

  __device__ __forceinline__ WarpPlace() {
    using S = Sizes<P>;
    int warp = threadIdx.x / 32;
    // Matrix descriptors depend on it: so the compiler knows that it is the same in all lanes.
    if constexpr (S::kSharesBlocks) warp = __shfl_sync(0xffffffffu, warp, 0);
    lane = threadIdx.x % 32;
    team = warp / S::kTeamWarps;
    thread = threadIdx.x % S::kTeamThreads;
    warp_n = warp % S::kTeamWarps % P::kWarpsN;
    warp_m = warp % S::kTeamWarps / P::kWarpsN;
  }
};

}  // namespace humming
