// The product of a warp: its 64 rows of weights by its tokens, summed over its units of K.
#pragma once

#include <humming/gemm/activations.cuh>
#include <humming/gemm/weights.cuh>

namespace humming {

/// 1 as the number of a slot of a register, in every slot.
template <class Format>
__host__ __device__ constexpr u32 ones() {
  if constexpr (is_half<Format>) {
    return twice(power_of_two<Format>(0));
  } else if constexpr (is_small_float<Format>) {
    return spread(static_cast<u32>(Format::kBias) << Format::kMantissa, 8);
  } else {
    return spread(1, Format::kBits);
  }
}

/// 2^exponent for exponents of normal numbers.
__host__ __device__ constexpr float power_of_two_float(int exponent) {
  float value = 1.0f;
  for (int i = 0; i < exponent; ++i) value *= 2.0f;
  for (int i = 0; i > exponent; --i) value *= 0.5f;
  return value;
}

/// Sums of a warp: sums[tile][token tile] is a fragment of 16 rows by 8 tokens.
template <class P>
struct Totals {
  using S = Sizes<P>;
  struct Floats {
    float c[4];
  };
  using Fragment = Chosen<S::kPromotes, Floats, typename P::Mma::Sums>;

  Fragment sums[P::kWarpTiles][S::kTokenTiles];
};

/// Scales of activations, per group of K: x_groups [rows, groups].
template <class P>
struct TokenScales {
  using S = Sizes<P>;
  static constexpr bool kHas = P::kActivationGroup != 0;
  float const* columns[kHas ? 2 * S::kTokenTiles : 1];

  __device__ __forceinline__ TokenScales(GemmArguments const& args, TileRows const& rows,
                                         int warp_m, int lane) {
    if constexpr (kHas) {
      int const groups = (args.k + P::kActivationGroup - 1) / P::kActivationGroup;
#pragma unroll
      for (int i = 0; i < 2 * S::kTokenTiles; ++i) {
        int const row = warp_m * P::kTokens + i / 2 * 8 + lane % 4 * 2 + i % 2;
        Index const source = source_of<P>(rows, row);
        columns[i] = args.x_groups + (source < 0 ? 0 : source) * groups;
      }
      last_ = groups - 1;
    }
  }

  /// Of token `i` % 2 of token tile `i` / 2, at column k.
  __device__ __forceinline__ float operator()(int i, int k) const {
    if constexpr (kHas) {
      int const group = k / P::kActivationGroup;
      return columns[i][group < last_ ? group : last_];
    } else {
      return 1.0f;
    }
  }

 private:
  int last_;
};

/// The A operands of a tile of a block within an interval: its codes, decoded a step at a time.
template <class P>
struct Decoded {
  using S = Sizes<P>;
  using Decoder = typename S::Decoder;
  Block<P> const& block;
  int const tile;
  typename Decoder::Factors factors[2];

  __device__ __forceinline__ Decoded(Block<P> const& from, int at, int tile)
      : block(from), tile(tile) {
    u32 scales = 0;
    if constexpr (P::kFolds) scales = block.rows.pair(at, tile);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      factors[half] = Decoder::factors(scales, half, block.rows.zero(at, 2 * tile + half));
  }

  __device__ __forceinline__ void step(int step, u32 (&a)[4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
      a[r] = Decoder::unit(block.codes, (tile * S::kSteps + step) * 4 + r, factors[r & 1]);
  }
};

/// Multiplies blocks of weights by halves of stages into sums over all of K: tile after tile within a
/// step. The operands of the next step are requested before this one is multiplied.
template <class P>
struct DirectMultiplier {
  using S = Sizes<P>;
  static constexpr int kSteps = S::kTokenTiles == 1 && S::kSteps > 1 ? 2 : 1;  // at a time
  static constexpr int kParts = S::kSteps / kSteps;
  using X = Operands<P, kSteps>;

  Panel<P> const& panel;
  Totals<P>& totals;
  X operands;

  __device__ __forceinline__ DirectMultiplier(GemmArguments const&, TileRows const& rows,
                                              Panel<P> const& panel, Totals<P>& totals,
                                              WarpPlace<P> const& warp)
      : panel(panel), totals(totals), operands(rows, warp.warp_m, warp.lane) {}

  __device__ __forceinline__ void operator()(Block<P>& block, int half, int of_stage, int unit,
                                             u32 stage) const {
    if constexpr (!BlockScales<P>::kAhead)
      panel.load_rows(block.rows, unit, half);
    typename X::Registers x[2];
    operands.load(x[0], of_stage, 0, stage);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part + 1 < kParts)
        operands.load(x[(part + 1) % 2], of_stage, (part + 1) * kSteps, stage);
#pragma unroll
      for (int inside = 0; inside < kSteps; ++inside) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          int const step = part * kSteps + inside;
          u32 a[4];
          Decoded<P>(block, step / S::kIntervalSteps, tile).step(step, a);
#pragma unroll
          for (int t = 0; t < S::kTokenTiles; ++t) {
            u32 b[2];
            X::of(x[part % 2], t, inside, b);
            P::Mma::multiply(totals.sums[tile][t], a, b);
          }
        }
      }
    }
  }
};

/// Multiplies into sums over an interval, to which scales are applied in f32: step after step within
/// a tile, so that only one tile has such sums at a time.
template <class P>
struct PromotingMultiplier {
  using S = Sizes<P>;
  using X = Operands<P, S::kSteps>;
  using Sums = typename P::Mma::Sums;
  static constexpr int kTokenTiles = S::kTokenTiles;
  static constexpr bool kFloatZeros = P::kZero == Zero::kFloat;

  Panel<P> const& panel;
  Totals<P>& totals;
  X operands;
  TokenScales<P> tokens;
  u32 never;  // 0, which compilers don't know

  __device__ __forceinline__ PromotingMultiplier(GemmArguments const& args, TileRows const& rows,
                                                 Panel<P> const& panel, Totals<P>& totals,
                                                 WarpPlace<P> const& warp)
      : panel(panel),
        totals(totals),
        operands(rows, warp.warp_m, warp.lane),
        tokens(args, rows, warp.warp_m, warp.lane),
        never(static_cast<u32>(args.n) >> 31) {}

  __device__ __forceinline__ void operator()(Block<P>& block, int half, int of_stage, int unit,
                                             u32 stage) const {
    int const k = unit * kUnitK + half * kBlock;
    if constexpr (!BlockScales<P>::kAhead) panel.load_rows(block.rows, unit, half);
    typename X::Registers x;
    operands.load(x, of_stage, 0, stage);
#pragma unroll
    for (int at = 0; at < S::kSumIntervals; ++at) interval(block, at, k, x);
  }

 private:
  __device__ __forceinline__ void interval(Block<P> const& block, int at, int k,
                                           typename X::Registers const& x) const {
    float factors[2 * kTokenTiles];
#pragma unroll
    for (int i = 0; i < 2 * kTokenTiles; ++i) factors[i] = tokens(i, k + at * S::kInterval);
    Sums x_sums[kFloatZeros ? kTokenTiles : 1];
    if constexpr (kFloatZeros) sum_x(at, x, x_sums);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Sums sums[kTokenTiles] = {};
#pragma unroll
      for (int index = 0; index < S::kSumSteps; ++index) {
        int const step = at * S::kSumSteps + index;
        u32 a[4];
        Decoded<P>(block, step / S::kIntervalSteps, tile).step(step, a);
        // A tile waits for the sums of the one before the last, so that no more than two tiles have
        // sums of an interval at a time: the compiler would mix all, and run out of registers.
        constexpr bool kMany = kTokenTiles > 1 || S::kSumIntervals > 1;
        if (kMany && index == 0 && at * kTiles + tile >= 2)
          a[0] |= bits_of(totals.sums[(tile + 2) % kTiles][0].c[0]) & never;
        multiply_all(sums, a, x, step);
      }
      promote(block, at, tile, sums, x_sums, factors);
    }
  }

  static __device__ __forceinline__ void multiply_all(Sums (&sums)[kTokenTiles], u32 const (&a)[4],
                                                      typename X::Registers const& x, int step) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      u32 b[2];
      X::of(x, t, step, b);
      P::Mma::multiply(sums[t], a, b);
    }
  }

  /// Sums of x itself over the interval, for float zero points; the same in every row.
  static __device__ __forceinline__ void sum_x(int at, typename X::Registers const& x,
                                               Sums (&sums)[kTokenTiles]) {
    constexpr u32 kOnes = ones<typename P::Target>();
    u32 const a[4] = {kOnes, kOnes, kOnes, kOnes};
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) sums[t] = {};
#pragma unroll
    for (int step = 0; step < S::kSumSteps; ++step)
      multiply_all(sums, a, x, at * S::kSumSteps + step);
  }

  __device__ __forceinline__ void promote(Block<P> const& block, int at, int tile,
                                          Sums const (&sums)[kTokenTiles], Sums const* x_sums,
                                          float const (&factors)[2 * kTokenTiles]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = 2 * tile + i / 2;
      float scale = 1.0f, zero = 0.0f;
      if constexpr (S::kScalesSums) scale = block.rows.scale(at, row);
      if constexpr (kFloatZeros)
        zero = scale_value<typename P::Scale>(block.rows.zero(at, row)) *
               power_of_two_float(-S::Decoder::kExponent);
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        float& total = totals.sums[tile][t].c[i];
        float const sum = P::Mma::value(sums[t], i);
        if constexpr (P::kActivationGroup != 0) {
          float const factor = factors[2 * t + i % 2];
          total = fmaf(sum, scale * factor, total);
          if constexpr (kFloatZeros) total = fmaf(P::Mma::value(x_sums[t], i), zero * factor, total);
        } else {
          total = S::kScalesSums ? fmaf(sum, scale, total) : sum + total;
          if constexpr (kFloatZeros) total = fmaf(P::Mma::value(x_sums[t], i), zero, total);
        }
      }
    }
  }
};

/// Of the units up to `end`, how many a team has from `first` on.
template <class P>
__device__ __forceinline__ int units_of_team(int first, int end) {
  return first < end ? (end - first + P::kWarpsK - 1) / P::kWarpsK : 0;
}

/// Sums the units [begin, end) of K that are its team's.
///
/// Two blocks of weights are in registers, one being multiplied while the other arrives. ptxas waits for
/// all of the loads of a loop at once, so that a wait for a block is one for what was requested after it
/// as well. Where a CTA has one tile, a block is requested once the one before it has arrived; or, of few
/// bits, both blocks of a unit once those of the one before are there, so that as much is under way. With
/// experts it has one tile after the other, and only every second block is: one wait less in each unit,
/// with twice as much under way (256 x (7168 x 2048), int4 by 8 tokens, by index: 126 us, not 138).
/// It is the mainloop of warps that multiply whole blocks, by MMAs of a warp.
struct WarpMainloop {
  /// Whether a tile's first codes are asked for before anything else. Where that was measured, MXFP4 took
  /// 16.6 and not 15.8 us with it (8192 x 8192 by 1 and 8 tokens); int4 and NVFP4 took as long as without,
  /// and in a chain of layers 0.1 us less.
  template <class P>
  static constexpr bool kPrefetches = !(P::kFolds && P::kGroup == 32);

  /// `meanwhile` is called once, where weights are waited for if registers allow it.
  template <class P, class Meanwhile>
  static __device__ __forceinline__ void multiply(GemmArguments const& args, TileRows const& rows,
                                                  int expert, Panel<P> const& panel, int begin,
                                                  int end, u32 shared, Totals<P>& totals,
                                                  Meanwhile const& meanwhile) {
    using S = Sizes<P>;
    WarpPlace<P> const warp;
    int const first = begin + warp.team;
    int const units = units_of_team<P>(first, end);
    if (units == 0) {
      totals = {};
      meanwhile();
      return;
    }
    using TeamRing = Ring<P, P::Copy::kAsync && !P::kHasOrder>;
    u32 const base = shared + warp.team * (TeamRing::kStages * S::kStageBytes);
    TeamRing ring(Source<P>(args, rows, expert, warp.thread), base, first, units);
    using Multiplier = Chosen<S::kPromotes, PromotingMultiplier<P>, DirectMultiplier<P>>;
    Multiplier const multiply_half(args, rows, panel, totals, warp);
    constexpr bool kOneTile = P::kKind == GemmKind::kDense;
    // Scales and zero points of short groups leave no registers for it: then it comes last.
    constexpr bool kCrowded = sizeof(Block<P>) > 4 * 64;
    u32 const never = static_cast<u32>(args.n) >> 31;  // 0, which compilers don't know
    int stage = 0;
    auto const advance = [&] {
      ring.advance([&] {
        if constexpr (S::kTeamThreads == 32) {
          __syncwarp();
        } else {
          named_barrier<S::kTeamThreads>(1 + warp.team);
        }
      });
      u32 const x = base + stage * S::kStageBytes;
      stage = stage + 1 == TeamRing::kStages ? 0 : stage + 1;
      return x;
    };
    auto const start = [&] {
      __syncwarp();  // ptxas would put off these loads until the ring's copies are under way
      ring.prefetch();
      totals = {};  // not earlier: memory is waiting for its requests
      if constexpr (!kCrowded) meanwhile();
    };
    UnitPlace<P> place = panel.place(first);
    if constexpr (kOneTile && P::kTokens == kUnitTokens && S::Planes::kBits <= kUnitBits) {
      by_units<P>(panel, place, units, never, start, advance, multiply_half);
    } else {
      by_blocks<P, kOneTile>(panel, place, units, never, start, advance, multiply_half);
    }
    if constexpr (kCrowded) meanwhile();
  }

 private:
  /// Codes of no more bits are requested by units, where a CTA has one tile: of so many tokens of a warp,
  /// since more have no registers left. Candidates of the backend count with it.
  static constexpr int kUnitTokens = 8, kUnitBits = 3;

  /// A word of a block that arrives with the last of its codes.
  template <class P>
  static __device__ __forceinline__ u32 last_of(Block<P> const& block) {
    return block.codes[Sizes<P>::Planes::kWords - 1];
  }

  template <class P, bool kOneTile, class Start, class Advance, class Multiplier>
  static __device__ __forceinline__ void by_blocks(Panel<P> const& panel, UnitPlace<P>& place,
                                                   int units, u32 never, Start const& start,
                                                   Advance const& advance,
                                                   Multiplier const& multiply_half) {
    Block<P> even, odd;
    int unit = place.unit;
    panel.load(even, 0, place, 0);
    start();
    for (int i = 0; i < units; ++i, unit += P::kWarpsK) {
      u32 x = advance();
      panel.share_rows(even, odd);
      panel.load(odd, 1, place, last_of(even) & never);
      multiply_half(even, 0, 0, unit, x);
      if constexpr (P::kStageBlocks == 1) x = advance();
      if (i + 1 < units) {
        panel.advance(place);
        panel.load(even, 0, place, kOneTile ? last_of(odd) & never : 0u);
      }
      multiply_half(odd, 1, P::kStageBlocks - 1, unit, x);
    }
  }

  template <class P, class Start, class Advance, class Multiplier>
  static __device__ __forceinline__ void by_units(Panel<P> const& panel, UnitPlace<P>& place,
                                                  int units, u32 never, Start const& start,
                                                  Advance const& advance,
                                                  Multiplier const& multiply_half) {
    using Unit = Block<P>[2];
    Unit even, odd;
    int unit = place.unit;
    auto const load = [&](Unit& to, u32 nothing) {
      panel.load(to[0], 0, place, nothing);
      panel.load(to[1], 1, place, nothing);
    };
    auto const consume = [&](Unit& blocks, Unit& next) {
      u32 x = advance();
      if (--units > 0) {
        panel.advance(place);
        load(next, last_of(blocks[1]) & never);
      }
      __syncwarp();  // ptxas would put off these loads until half of the block is multiplied
      panel.share_rows(blocks[0], blocks[1]);
      multiply_half(blocks[0], 0, 0, unit, x);
      if constexpr (P::kStageBlocks == 1) x = advance();
      multiply_half(blocks[1], 1, P::kStageBlocks - 1, unit, x);
      unit += P::kWarpsK;
    };
    load(even, 0);
    start();
    while (true) {
      consume(even, odd);
      if (units == 0) return;
      consume(odd, even);
      if (units == 0) return;
    }
  }
};

}  // namespace humming
