// The mainloop of few tokens: weights stream from global memory into registers, as in the skeleton of
// humming/gemm, and are the A operand of wgmma there; activations are its B operand in the ring.
//
// A warpgroup multiplies 64 rows of weights by all tokens of the tile, 16 rows a warp. Teams of
// warpgroups take turns in K, so that one decodes while another's wgmmas run.
#pragma once

#include <humming/gemm/gemm.cuh>
#include <humming_sm90/wgmma.cuh>

namespace humming::sm90 {

/// What the skeleton wants to know of an MMA. `Group` is that of templates/wgmma_group.cu.j2: sums of 8
/// tokens after one another, as fragments.
template <class Group>
struct StreamMma : Group {
  using Sum = typename Group::Number;
  struct Sums {
    Sum c[4];
  };
  static __device__ __forceinline__ float value(Sum sum) { return static_cast<float>(sum); }
};

/// The word of a descriptor of swizzled rows that has their address; sixteens of bytes may be added.
__device__ __forceinline__ u32 rows_word(u32 address) { return (address >> 4 & 0x3fff) | 1u << 16; }

/// The descriptor with such a word. Its other word is a constant, so that adding takes one instruction.
__device__ __forceinline__ u64 swizzled_rows_of(u32 word) {
  u64 descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(word), "n"(1024 / 16 | 1 << 30));
  return descriptor;
}

/// Multiplies blocks by halves of stages; sums are in registers of the tensor cores until `finish`.
/// MMAs are as wide as the tile has rows.
template <class P>
class StreamMultiplier {
  using S = Sizes<P>;
  using Mma = typename P::Mma;
  static constexpr int kSums = 4 * S::kTokenTiles;
  using All = typename Mma::Sum[kSums];
  static constexpr bool kFloatZeros = P::kZero == Zero::kFloat;
  static_assert(P::kActivationGroup == 0, "StreamMultiplier: tokens with scales per group");

 public:
  /// count: rows of the tile.
  __device__ __forceinline__ explicit StreamMultiplier(int count)
      // Of one lane, so that compilers know that it is the same in all.
      : count_(__shfl_sync(0xffffffffu, count, 0)) {}

  /// Sums become 0.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums_[i] = 0;
      if constexpr (S::kPromotes) promoted_[i] = 0;
    }
  }

  /// Waits for the wgmmas under way: then their operands may be written.
  __device__ __forceinline__ void wait() {
    wgmma_wait_group<0>();
    after_wait(sums_);
  }

  /// A block by half `half` of the stage that rows_word() of its address describes.
  __device__ __forceinline__ void operator()(Block<P> const& block, int half, u32 stage) {
    if constexpr (S::kPromotes) {
#pragma unroll
      for (int at = 0; at < S::kSumIntervals; ++at) interval(block, at, half, stage);
    } else {
      wait();
      u32 a[S::kSteps][4];
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step)
        Decoded<P>(block, step / S::kIntervalSteps, 0).step(step, a[step]);
      start(sums_, a, half, 0, stage, true);
    }
  }

  /// The sums, as fragments.
  __device__ __forceinline__ void finish(Totals<P>& totals) {
    wait();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if constexpr (S::kPromotes) {
        totals.sums[0][i / 4].c[i % 4] = promoted_[i];
      } else {
        totals.sums[0][i / 4].c[i % 4] = sums_[i];
      }
    }
  }

 private:
  /// Multiplies steps from `first` on; those of an operand in 128 bytes of a row are 32 bytes apart.
  template <int kSteps>
  __device__ __forceinline__ void start(All& sums, u32 const (&a)[kSteps][4], int half, int first,
                                        u32 stage, bool adds) const {
    int const from = (half * S::kSteps + first) * 32;
    u32 const b = (from / kRowBytes * (S::kTileM * kRowBytes) + from % kRowBytes) / 16;
    Mma::template start<kSteps>(sums, a, swizzled_rows_of(stage + b), adds, count_);
  }

  /// Scales are applied in f32 to the sums of an interval.
  __device__ __forceinline__ void interval(Block<P> const& block, int at, int half, u32 stage) {
    constexpr int kSteps = S::kSumSteps;
    u32 a[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      int const step = at * kSteps + i;
      Decoded<P>(block, step / S::kIntervalSteps, 0).step(step, a[i]);
    }
    start(sums_, a, half, at * kSteps, stage, false);
    wait();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float const sum = Mma::value(sums_[i]);
      if constexpr (S::kScalesSums) {
        promoted_[i] = fmaf(sum, block.rows.scale(at, i % 4 / 2), promoted_[i]);
      } else {
        promoted_[i] += sum;
      }
    }
    if constexpr (kFloatZeros) {
      // Zero points times the sums of x, which ones in the place of weights give.
      constexpr u32 kOnes = ones<typename P::Target>();
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) a[i][r] = kOnes;
      start(sums_, a, half, at * kSteps, stage, false);
      wait();
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float const zero = scale_value<typename P::Scale>(block.rows.zero(at, i % 4 / 2)) *
                           power_of_two_float(-S::Decoder::kExponent);
        promoted_[i] = fmaf(Mma::value(sums_[i]), zero, promoted_[i]);
      }
    }
  }

  int count_;
  All sums_;
  Chosen<S::kPromotes, float[kSums], Nothing> promoted_;
};

/// Two batches of blocks are in registers, one being multiplied while the other arrives: 1 KB a warp
/// of 4-bit codes. As in WarpMainloop, one is requested once the one before it is there.
struct StreamMainloop {
  /// As in WarpMainloop: MXFP4 by FP8 took 17.2, 18.8 and 20.9 us for 1, 32 and 64 tokens with it, 16.8,
  /// 17.9 and 20.1 without; by bf16 17.1 and 23.1 for 16 and 64, and 17.4 and 23.9 (8192 x 8192, H200,
  /// 2026-11-30).
  template <class P>
  static constexpr bool kPrefetches = !(P::kFolds && P::Target::kBits == 8);

  template <class P>
  struct Batch {
    using S = Sizes<P>;
    static constexpr int kBits = S::Planes::kBits;
    static constexpr int kUnits = kBits <= 2 ? 2 : 1;
    Block<P> blocks[kUnits][2];

    /// Requests the units of a team at `place`, which goes on; past the last, that one again.
    __device__ __forceinline__ void load(Panel<P> const& panel, UnitPlace<P>& place, int last,
                                         u32 nothing) {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        panel.load(blocks[i][0], 0, place, nothing);
        panel.load(blocks[i][1], 1, place, nothing);
        if (place.unit < last) panel.advance(place);
      }
    }

    /// What arrives last.
    __device__ __forceinline__ u32 latest() const {
      return blocks[kUnits - 1][1].codes[kBits & 1 ? 4 * (kBits & 14) : kBits & 2 ? 4 * (kBits & 12) + 1 : kBits & 4 ? 3 : 7];
    }
  };

  template <class P, class Meanwhile>
  static __device__ __forceinline__ void multiply(GemmArguments const& args, TileRows const& rows,
                                                  int expert, Panel<P> const& panel, int begin,
                                                  int end, u32 shared, Totals<P>& totals,
                                                  Meanwhile const& meanwhile) {
    using S = Sizes<P>;
    static_assert(S::kRowBytes % kRowBytes == 0, "StreamMainloop: a stage has whole swizzled rows");
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
    u32 const described = rows_word(base);
    TeamRing ring(Source<P>(args, rows, expert, warp.thread), base, first, units);
    StreamMultiplier<P> multiply_half(rows.count);
    u32 const never = static_cast<u32>(args.n) >> 31;  // 0, which compilers don't know
    int const last = first + (units - 1) * P::kWarpsK;
    int stage = 0;
    auto const advance = [&] {
      ring.advance([&] {
        multiply_half.wait();  // who fills the ring overwrites what they read
        fence_proxy_async();
        named_barrier<S::kTeamThreads>(1 + warp.team);
      });
      u32 const x = described + stage * (S::kStageBytes / 16);
      stage = stage + 1 == TeamRing::kStages ? 0 : stage + 1;
      return x;
    };
    int unit = first;
    UnitPlace<P> place = panel.place(first);
    auto const consume = [&](Batch<P>& batch) {
#pragma unroll
      for (int i = 0; i < Batch<P>::kUnits; ++i) {
        if (unit > last) return;
        u32 x = advance();
        Panel<P>::share_rows(batch.blocks[i][0], batch.blocks[i][1]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          Block<P>& block = batch.blocks[i][half];
          if constexpr (!BlockScales<P>::kAhead)
            panel.load_rows(block.rows, unit, half);
          if (P::kStageBlocks == 1 && half == 1) x = advance();
          multiply_half(block, half % P::kStageBlocks, x);
        }
        unit += P::kWarpsK;
      }
    };
    auto const load = [&](Batch<P>& batch, u32 nothing) {
      // Codes that need no decoding are operands themselves.
      if constexpr (is_same<typename P::Weight, typename P::Target>) multiply_half.wait();
      batch.load(panel, place, last, nothing);
    };
    Batch<P> even, odd;
    even.load(panel, place, last, 0);
    __syncwarp();  // ptxas would put off these loads until the ring's copies are under way
    ring.prefetch();
    multiply_half.clear();
    meanwhile();
    while (unit <= last) {
      load(odd, even.latest() & never);
      consume(even);
      if (unit > last) break;
      load(even, odd.latest() & never);
      consume(odd);
    }
    multiply_half.finish(totals);
  }
};

}  // namespace humming::sm90
