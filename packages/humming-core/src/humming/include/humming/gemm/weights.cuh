// Weights of a panel of 64 rows, from global memory straight into the registers of a warp.
//
// Codes lie in the order in which a lane's registers take them, scales and zero points such that a
// lane gets those of its 8 rows (row 8 * j + lane / 4 is number j) in one load.
#pragma once

#include <humming/gemm/numbers.cuh>
#include <humming/gemm/sizes.cuh>
#include <humming/memory.cuh>
#include <humming/overlap.cuh>

namespace humming {

/// Bytes of a panel that are asked for before anything else. More of them keep memory from what is wanted
/// first: 64 rows took 4 % longer with 32768 where that was measured.
inline constexpr u32 kPrefetch = 8192;

/// A scale, or a float zero point, as f32; exact, NaN included. Of e5m3 normal numbers alone.
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
  } else if constexpr (is_same<Format, E5m3>) {
    return __uint_as_float((bits << 20) + (static_cast<u32>(127 - E5m3::kBias) << 23));
  } else {
    static_assert(is_same<Format, E4m3fn>, "scale_value: scales are f32, f16, bf16, 8-bit floats");
    u32 const magnitude = bits & 0x7f;
    float const value = __uint_as_float(magnitude << 20) * 0x1p120f;
    u32 const sign = (bits & 0x80) << 24;
    return magnitude == 0x7f ? __uint_as_float(0x7fffffffu)
                             : __uint_as_float(__float_as_uint(value) | sign);
  }
}

/// Numbers of `kBytes` bytes of the rows of a lane.
template <int kBytes, int kRows>
struct LaneRows {
  static constexpr int kAll = kBytes * kRows;
  u32 words[kAll < 4 ? 1 : kAll / 4];

  __device__ __forceinline__ void load(u8 const* from) {
    if constexpr (kAll == 2) {
      words[0] = load_16(from);
    } else if constexpr (kAll == 4) {
      words[0] = load_32(from);
    } else if constexpr (kAll == 8) {
      load_64(words, from);
    } else {
#pragma unroll
      for (int i = 0; i < kAll / 4; i += 4) load_128(words + i, from + 4 * i);
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
  static constexpr int kRows = 2 * P::kWarpTiles;  // of a lane
  static constexpr int kScaleBytes = P::Scale::kBits / 8;
  static constexpr int kZeroBytes = kFloatZeros ? kScaleBytes : 1;
  static constexpr int kScaleLoads = kHasScales ? kBlock / S::kWeightInterval : 1;
  static constexpr int kZeroLoads =
      kHasZeros ? kBlock / greatest_common_divisor(kBlock, P::kZeroGroup) : 1;
  /// Words of a lane. Few enough of them are loaded together with the codes, a block ahead.
  static constexpr int kWords = kHasScales * kScaleLoads * ((kRows * kScaleBytes + 3) / 4) +
                                kHasZeros * kZeroLoads * ((kRows * kZeroBytes + 3) / 4);
  static constexpr bool kAhead = kWords <= 12;

  Chosen<kHasScales, LaneRows<kScaleBytes, kRows>, Nothing> scales[kScaleLoads];
  Chosen<kHasZeros, LaneRows<kZeroBytes, kRows>, Nothing> zeros[kZeroLoads];

  /// Of a row of the lane at an interval of the block.
  __device__ __forceinline__ float scale(int at, int row) const {
    return scale_value<typename P::Scale>(scales[at * kScaleLoads / S::kIntervals][row]);
  }
  /// Those of rows 2 * number and 2 * number + 1, as they are stored, each in a half.
  __device__ __forceinline__ u32 pair(int at, int number) const {
    return pair_of<kScaleBytes>(scales[at * kScaleLoads / S::kIntervals].words, number);
  }
  __device__ __forceinline__ u32 zero(int at, int row) const {
    if constexpr (kHasZeros) {
      return zeros[at * kZeroLoads / S::kIntervals][row];
    } else {
      return 0;
    }
  }
};

/// A block, or of a block that warps share the warp's tile: then only the words of tile 0 are used.
template <class P>
struct Block {
  u32 codes[Sizes<P>::Planes::kWords];
  BlockScales<P> rows;
};

/// Where a warp finds the weights of a unit of its panel: made by Panel, moved on by it.
template <class P>
struct UnitPlace {
  int unit;  // its number
  u8 const* codes;
  // Of the groups that the unit begins with.
  u8 const* scales;
  u8 const* zeros;
};

/// Asks for the first codes of a tile's panels from a unit on. Of a dense layer.
template <class P>
__device__ __forceinline__ void prefetch_codes(GemmArguments const& args, int first_n, int unit) {
  constexpr int kBlockBytes = 16 * 32 * Sizes<P>::Planes::kBits, kUnits = kWindow / 2;
  int const panels = (args.n + kBlock - 1) / kBlock, panel = first_n / kBlock + threadIdx.x;
  if (threadIdx.x >= Sizes<P>::kTileN / kBlock || panel >= panels) return;
  int const blocks = 2 * ((args.k + kUnitK - 1) / kUnitK);
  int const window = unit / kUnits * kWindow, left = blocks - window;
  int const length = left < kWindow ? left : kWindow, inside = unit % kUnits * 2;
  Index const block = Index(window) * panels + panel * length + inside;
  u32 const bytes = u32(length - inside) * kBlockBytes;
  prefetch_l2(args.weight + block * kBlockBytes, bytes < kPrefetch ? bytes : kPrefetch);
}

/// Where a warp finds the weights of its panel.
template <class P>
class Panel {
  using S = Sizes<P>;
  using Rows = BlockScales<P>;
  using Place = UnitPlace<P>;
  static constexpr int kBlockBytes = 16 * 32 * S::Planes::kBits;
  static constexpr int kUnits = kWindow / 2;  // of a window
  /// Both blocks of a unit have the same scales and zero points.
  static constexpr bool kRowsPerUnit = P::kGroup % kUnitK == 0 && P::kZeroGroup % kUnitK == 0;

 public:
  __device__ __forceinline__ Panel(GemmArguments const& args, int expert, int first_n,
                                   WarpPlace<P> const& warp)
      : panels_((args.n + kBlock - 1) / kBlock),
        blocks_(2 * ((args.k + kUnitK - 1) / kUnitK)),
        tile_(warp.warp_n * P::kWarpTiles % kTiles),
        apart_(Index(panels_) * kBlock),
        codes_(args.weight + warp.lane * 16),
        scales_(args.scales),
        zeros_(args.zeros) {
    int const panel = first_n / kBlock + warp.warp_n * P::kWarpTiles / kTiles;
    panel_ = panel < panels_ ? panel : panels_ - 1;  // past the end: anything that is there
    // Past the blocks of the other panels; those of the last window may be fewer.
    int const last = (blocks_ - 1) / kWindow * kWindow;
    last_window_ = last / 2;
    jump_ = (panels_ - 1) * kWindow;
    last_jump_ = jump_ - panel_ * (kWindow - (blocks_ - last));
    Index const first = Index(expert) * panels_;
    codes_ += first * blocks_ * kBlockBytes;
    int const row = warp.lane / 4 * 8 + 2 * tile_;
    if constexpr (Rows::kHasScales)
      scales_ += (first * groups<P::kGroup>() * kBlock + row) * Rows::kScaleBytes;
    if constexpr (Rows::kHasZeros)
      zeros_ += (first * groups<P::kZeroGroup>() * kBlock + row) * Rows::kZeroBytes;
  }

  /// Where a unit is.
  __device__ __forceinline__ Place place(int unit) const {
    int const window = unit / kUnits * kWindow, left = blocks_ - window;
    int const length = left < kWindow ? left : kWindow;
    // An expert's blocks are counted in 32 bits: more than 2^31 would be 2^42 bytes and more.
    u32 const block = window * panels_ + panel_ * length + unit % kUnits * 2;
    Place place{unit, codes_ + u64(block) * kBlockBytes, scales_, zeros_};
    if constexpr (Rows::kHasScales)
      place.scales = at<P::kGroup, Rows::kScaleBytes>(scales_, unit * kUnitK);
    if constexpr (Rows::kHasZeros)
      place.zeros = at<P::kZeroGroup, Rows::kZeroBytes>(zeros_, unit * kUnitK);
    return place;
  }

  /// Goes on to a team's next unit. It costs less than to find that anew.
  __device__ __forceinline__ void advance(Place& place) const {
    constexpr int kStep = P::kWarpsK;
    // By warps with 32 tokens and more the short way was 8 % slower where it was measured, though ptxas
    // makes fewer instructions of it.
    constexpr bool kIsShort = kStep <= kUnits && (S::kSharesBlocks || P::kTokens <= 16);
    if constexpr (!kIsShort) {
      place = this->place(place.unit + kStep);
    } else {
      place.unit += kStep;
      bool const enters = place.unit % kUnits < kStep;  // a window
      int const jump = place.unit < last_window_ ? jump_ : last_jump_;
      place.codes += Index(2 * kStep + (enters ? jump : 0)) * kBlockBytes;
      keep(place.codes);
      if constexpr (Rows::kHasScales)
        move<P::kGroup, Rows::kScaleBytes>(place.scales, scales_, place.unit);
      if constexpr (Rows::kHasZeros)
        move<P::kZeroGroup, Rows::kZeroBytes>(place.zeros, zeros_, place.unit);
    }
  }

  /// Requests a half of the unit at a place. `nothing` is 0; what it is computed from arrives before
  /// the request goes out.
  __device__ __forceinline__ void load(Block<P>& block, int half, Place const& place,
                                       u32 nothing) const {
    u8 const* const from = place.codes + half * kBlockBytes + nothing;
    if constexpr (S::kSharesBlocks) {
      load_tile(block.codes, from);
    } else {
#pragma unroll
      for (int i = 0; i < S::Planes::kBits; ++i) load_codes(block.codes + 4 * i, from + 512 * i);
    }
    if constexpr (Rows::kAhead) {
      if (kRowsPerUnit && half == 1) return;
      int const k = place.unit * kUnitK;
      if constexpr (Rows::kHasScales)
        load_numbers<P::kGroup>(block.rows.scales, scales_, place.scales, k, half);
      if constexpr (Rows::kHasZeros)
        load_numbers<P::kZeroGroup>(block.rows.zeros, zeros_, place.zeros, k, half);
    }
  }

  /// Called between the loads of a unit's halves.
  static __device__ __forceinline__ void share_rows(Block<P> const& even, Block<P>& odd) {
    if constexpr (Rows::kAhead && kRowsPerUnit) odd.rows = even.rows;
  }

  /// Requests the scales and zero points of a half of a unit.
  __device__ __forceinline__ void load_rows(Rows& rows, int unit, int half) const {
    int const k = unit * kUnitK;
    if constexpr (Rows::kHasScales)
      load_numbers<P::kGroup>(rows.scales, scales_, at<P::kGroup, Rows::kScaleBytes>(scales_, k), k,
                              half);
    if constexpr (Rows::kHasZeros)
      load_numbers<P::kZeroGroup>(rows.zeros, zeros_,
                                  at<P::kZeroGroup, Rows::kZeroBytes>(zeros_, k), k, half);
  }

 private:
  static __device__ __forceinline__ void load_codes(u32* codes, u8 const* from) {
    if constexpr (P::kWarpsM == 1) {
      load_128_once(codes, from);
    } else {
      load_128(codes, from);
    }
  }

  /// Requests the codes of the warp's tile. A plane of so many bits has as many words of it in each
  /// lane: 16-byte loads of 4 and 8 bits, while other warps want the rest of those of 1 and 2.
  __device__ __forceinline__ void load_tile(u32 (&codes)[S::Planes::kWords], u8 const* from) const {
    constexpr int kBits = S::Planes::kBits;
    u8 const* plane = from;
    int start = 0;  // first word of the plane
    if constexpr (kBits & 8) {
      load_codes(codes, plane + tile_ * 1024);
      load_codes(codes + 4, plane + tile_ * 1024 + 512);
    }
    if constexpr (kBits & 4) {
      load_codes(codes, plane + tile_ * 512);
      plane += 4 * 512, start += 16;
    }
    if constexpr (kBits & 2) {
      load_64(codes + start, plane + tile_ / 2 * 512 + tile_ % 2 * 8);
      plane += 2 * 512, start += 8;
    }
    if constexpr (kBits & 1) codes[start] = load_32(plane + tile_ * 4);
  }

  /// Groups of a row, padding included.
  template <int kGroup>
  __device__ __forceinline__ int groups() const {
    return (blocks_ * kBlock + (kGroup - 1)) / kGroup;
  }

  /// Moves where the numbers of a unit are on to those of the next of a team, which is `unit`.
  template <int kGroup, int kBytes>
  __device__ __forceinline__ void move(u8 const*& place, u8 const* base, int unit) const {
    if constexpr (kUnitK % kGroup == 0) {
      place += apart_ * (P::kWarpsK * (kUnitK / kGroup) * kBytes);
      keep(place);
    } else {
      place = at<kGroup, kBytes>(base, unit * kUnitK);
    }
  }

  /// Those of a half of the unit at column k, whose first group is at `first`: of one group after the
  /// other, or of the group of each interval.
  template <int kGroup, int kBytes, int kRows, int kLoads>
  __device__ __forceinline__ void load_numbers(LaneRows<kBytes, kRows> (&rows)[kLoads],
                                               u8 const* base, u8 const* first, int k,
                                               int half) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      int const inside = half * kBlock + i * (kBlock / kLoads);
      if constexpr (kUnitK % kGroup == 0 || kGroup % kUnitK == 0) {
        rows[i].load(first + apart_ * (inside / kGroup * kBytes));
      } else {
        rows[i].load(at<kGroup, kBytes>(base, k + inside));
      }
    }
  }

  /// The numbers of the group of column k.
  template <int kGroup, int kBytes>
  __device__ __forceinline__ u8 const* at(u8 const* base, int k) const {
    return base + (Index(k / kGroup) * panels_ + panel_) * (kBlock * kBytes);
  }

  int panels_, blocks_, tile_, panel_;
  int last_window_, jump_, last_jump_;  // first unit; blocks from a window to the next, to the last
  Index apart_;  // numbers of a group
  u8 const* codes_;
  u8 const* scales_;
  u8 const* zeros_;
};

}  // namespace humming
