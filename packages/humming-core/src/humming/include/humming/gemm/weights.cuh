// Weights of a panel of 64 rows, from global memory straight into the registers of a warp.
//
// Codes lie in the order in which a lane's registers take them, scales and zero points such that a
// lane gets those of its 8 rows (row 8 * j + lane / 4 is number j) in one load.
#pragma once

#include <humming/gemm/numbers.cuh>
#include <humming/gemm/sizes.cuh>
#include <humming/memory.cuh>

namespace humming {

using E8m0 = Float<8, 0, 127, Specials::kNanOnly>;

/// A scale, or a float zero point, as f32; exact, NaN included.
template <class Format>
__device__ __forceinline__ float scale_value(u32 bits) {
  if constexpr (is_same<Format, F32>) {
    return __uint_as_float(bits);
  } else if constexpr (is_same<Format, Bf16>) {
    return __uint_as_float(bits << 16);
  } else if constexpr (is_same<Format, F16>) {
    float value;
    asm("{ .reg .b16 h; mov.b32 {h, _}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(bits));
    return value;
  } else if constexpr (is_same<Format, E8m0>) {
    // 2^-127 is subnormal; the largest code is NaN.
    u32 const normal = bits == 0xff ? 0x7fffffffu : bits << 23;
    return __uint_as_float(bits == 0 ? 0x00400000u : normal);
  } else {
    static_assert(is_same<Format, E4m3fn>, "scale_value: scales are f32, f16, bf16, e8m0 or e4m3");
    u32 const magnitude = bits & 0x7f;
    float const value = __uint_as_float(magnitude << 20) * 0x1p120f;
    u32 const sign = (bits & 0x80) << 24;
    return magnitude == 0x7f ? __uint_as_float(0x7fffffffu)
                             : __uint_as_float(__float_as_uint(value) | sign);
  }
}

/// Numbers of `kBytes` bytes of the 8 rows of a lane.
template <int kBytes>
struct LaneRows {
  u32 words[2 * kBytes];

  __device__ __forceinline__ void load(u8 const* from) {
    if constexpr (kBytes == 1) {
      load_64(words, from);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kBytes; i += 4) load_128(words + i, from + 4 * i);
    }
  }

  /// The bits of number `row`.
  __device__ __forceinline__ u32 operator[](int row) const {
    u32 const word = words[row * kBytes / 4] >> 8 * (row * kBytes % 4);
    return kBytes == 4 ? word : word & ((1u << 8 * (kBytes % 4)) - 1);
  }
};

struct Nothing {};

/// Scales and zero points of a block.
template <class P>
struct BlockScales {
  using S = Sizes<P>;
  static constexpr bool kHasScales = P::kGroup != 0;
  static constexpr bool kHasZeros = P::kZero != Zero::kNone;
  static constexpr bool kFloatZeros = P::kZero == Zero::kFloat;
  static constexpr int kScaleBytes = P::Scale::kBits / 8;
  static constexpr int kZeroBytes = kFloatZeros ? kScaleBytes : 1;
  static constexpr int kScaleLoads = kHasScales ? kBlock / S::kWeightInterval : 1;
  static constexpr int kZeroLoads =
      kHasZeros ? kBlock / greatest_common_divisor(kBlock, P::kZeroGroup) : 1;
  /// Words of a lane. Few enough of them are loaded together with the codes, a block ahead.
  static constexpr int kWords = kHasScales * kScaleLoads * 2 * kScaleBytes +
                                kHasZeros * kZeroLoads * 2 * kZeroBytes;
  static constexpr bool kAhead = kWords <= 12;

  Chosen<kHasScales, LaneRows<kScaleBytes>, Nothing> scales[kScaleLoads];
  Chosen<kHasZeros, LaneRows<kZeroBytes>, Nothing> zeros[kZeroLoads];

  /// Of `row` (0 to 7 of the lane) at `interval` of the block.
  __device__ __forceinline__ float scale(int at, int row) const {
    return scale_value<typename P::Scale>(scales[at * kScaleLoads / S::kIntervals][row]);
  }
  __device__ __forceinline__ u32 zero(int at, int row) const {
    if constexpr (kHasZeros) {
      return zeros[at * kZeroLoads / S::kIntervals][row];
    } else {
      return 0;
    }
  }
};

template <class P>
struct Block {
  u32 codes[Sizes<P>::Planes::kWords];
  BlockScales<P> rows;
};

/// Where a warp finds the weights of its panel.
template <class P>
class Panel {
  using S = Sizes<P>;
  using Rows = BlockScales<P>;
  static constexpr int kBlockBytes = 16 * 32 * S::Planes::kBits;
  /// Both blocks of a unit have the same scales and zero points.
  static constexpr bool kRowsPerUnit = P::kGroup % kUnitK == 0 && P::kZeroGroup % kUnitK == 0;

 public:
  __device__ __forceinline__ Panel(GemmArguments const& args, int expert, int panel, int lane)
      : panels_((args.n + kBlock - 1) / kBlock),
        blocks_(2 * ((args.k + kUnitK - 1) / kUnitK)),
        panel_(panel < panels_ ? panel : panels_ - 1),  // past the end: anything that is there
        codes_(args.weight + lane * 16),
        scales_(args.scales),
        zeros_(args.zeros) {
    Index const first = Index(expert) * panels_;
    codes_ += first * blocks_ * kBlockBytes;
    int const row = lane / 4 * 8;
    if constexpr (Rows::kHasScales)
      scales_ += (first * groups<P::kGroup>() * kBlock + row) * Rows::kScaleBytes;
    if constexpr (Rows::kHasZeros)
      zeros_ += (first * groups<P::kZeroGroup>() * kBlock + row) * Rows::kZeroBytes;
  }

  /// Where the codes of a unit are.
  __device__ __forceinline__ u8 const* unit(int number) const {
    constexpr int kUnits = kWindow / 2;
    int const window = number / kUnits * kWindow, left = blocks_ - window;
    int const length = left < kWindow ? left : kWindow;
    int const inside = panel_ * length + number % kUnits * 2;
    return codes_ + (Index(window) * panels_ + inside) * kBlockBytes;
  }

  /// Requests a half of a unit whose codes are at `from`. `nothing` is 0; what it is computed
  /// from arrives before the request goes out.
  __device__ __forceinline__ void load(Block<P>& block, int half, u8 const* from, int unit,
                                       u32 nothing) const {
    from += half * kBlockBytes + nothing;
#pragma unroll
    for (int i = 0; i < S::Planes::kBits; ++i) {
      if constexpr (P::kWarpsM == 1) {
        load_128_once(block.codes + 4 * i, from + 512 * i);
      } else {
        load_128(block.codes + 4 * i, from + 512 * i);
      }
    }
    if (Rows::kAhead && !(kRowsPerUnit && half == 1))
      load_rows(block.rows, unit * kUnitK + half * kBlock);
  }

  /// Called between the loads of a unit's halves.
  static __device__ __forceinline__ void share_rows(Block<P> const& even, Block<P>& odd) {
    if constexpr (Rows::kAhead && kRowsPerUnit) odd.rows = even.rows;
  }

  /// Requests the scales and zero points of the block at column k.
  __device__ __forceinline__ void load_rows(Rows& rows, int k) const {
    if constexpr (Rows::kHasScales) {
#pragma unroll
      for (int i = 0; i < Rows::kScaleLoads; ++i)
        rows.scales[i].load(at<P::kGroup, Rows::kScaleBytes>(
            scales_, k + i * (kBlock / Rows::kScaleLoads)));
    }
    if constexpr (Rows::kHasZeros) {
#pragma unroll
      for (int i = 0; i < Rows::kZeroLoads; ++i)
        rows.zeros[i].load(at<P::kZeroGroup, Rows::kZeroBytes>(
            zeros_, k + i * (kBlock / Rows::kZeroLoads)));
    }
  }

 private:
  /// Groups of a row, padding included.
  template <int kGroup>
  __device__ __forceinline__ int groups() const {
    return (blocks_ * kBlock + (kGroup - 1)) / kGroup;
  }

  /// The numbers of the group of column k.
  template <int kGroup, int kBytes>
  __device__ __forceinline__ u8 const* at(u8 const* base, int k) const {
    return base + (Index(k / kGroup) * panels_ + panel_) * (kBlock * kBytes);
  }

  int panels_, blocks_, panel_;
  u8 const* codes_;
  u8 const* scales_;
  u8 const* zeros_;
};

}  // namespace humming
