// The weights of a warp, from a stage to operands: its 16 rows by 64 of K.
//
// A warp of a warpgroup has the rows of one tile of a block (16 of 64), and of each plane only its
// words. Decoders get them as those of the first tile.
#pragma once

#include <humming_sm90/wide/plan.cuh>

namespace humming::sm90::wide {

/// ld.shared.u16
__device__ __forceinline__ u32 load_shared_16(u32 from) {
  u32 value;
  asm volatile("{ .reg .b16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }" : "=r"(value)
               : "r"(from)
               : "memory");
  return value;
}

/// ld.shared.u32
__device__ __forceinline__ u32 load_shared_32(u32 from) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}

/// ld.shared.v2.u32
__device__ __forceinline__ void load_shared_64(u32* to, u32 from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from)
               : "memory");
}

/// Two numbers of `kBytes` bytes that lie together: those of a lane's rows.
template <int kBytes>
struct RowPair {
  u32 words[kBytes == 4 ? 2 : 1];

  __device__ __forceinline__ void load(u32 from) {
    if constexpr (kBytes == 1) {
      words[0] = load_shared_16(from);
    } else if constexpr (kBytes == 2) {
      words[0] = load_shared_32(from);
    } else {
      load_shared_64(words, from);
    }
  }

  /// The bits of the number of row lane / 4, or of 8 more.
  __device__ __forceinline__ u32 operator[](int half) const {
    if constexpr (kBytes == 4) {
      return words[half];
    } else {
      constexpr int kBits = 8 * kBytes;
      return words[0] >> half * kBits & ((1u << kBits) - 1);
    }
  }
};

struct NoPair {
  __device__ __forceinline__ u32 operator[](int) const { return 0; }
};

/// Scales and zero points of a lane's two rows in one step.
template <class P>
struct RowNumbers {
  using L = Plan<P>;
  Chosen<(L::kScaleBytes > 0), RowPair<L::kScaleBytes>, NoPair> scales[L::kScales];
  Chosen<(L::kZeroBytes > 0), RowPair<L::kZeroBytes>, NoPair> zeros[L::kZeros];

  /// Of one of the rows, for the MMA number `mma` of the step.
  __device__ __forceinline__ float scale(int mma, int half) const {
    return scale_value<typename P::Scale>(scales[mma * L::kMmaK / L::kScaleInterval][half]);
  }
  /// Those of both, as they are stored, each in a half.
  __device__ __forceinline__ u32 pair(int mma) const {
    return pair_of<L::kScaleBytes>(scales[mma * L::kMmaK / L::kScaleInterval].words, 0);
  }
  __device__ __forceinline__ u32 zero(int mma, int half) const {
    return zeros[mma * L::kMmaK / L::kZeroInterval][half];
  }
  /// A float zero point as what sums of x are multiplied by.
  __device__ __forceinline__ float float_zero(int mma, int half) const {
    return scale_value<typename P::Scale>(zero(mma, half)) *
           power_of_two_float(-L::Decoder::kExponent);
  }
};

/// The operands of a warp for one step.
using Operands = u32[kStepMmas][4];

/// Ties the operands of an MMA to what comes before: they are written when the next instruction
/// starts.
__device__ __forceinline__ void written(u32 (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

/// What a lane has of a step before it is decoded.
template <class P>
struct RawWeights {
  u32 words[Plan<P>::kStepBlocks][Plan<P>::Planes::kWords];
  RowNumbers<P> rows;
};

/// Reads what a warp needs of a panel of a stage.
template <class P>
class WarpWeights {
  using L = Plan<P>;
  using Planes = typename L::Planes;
  using Decoder = typename L::Decoder;

 public:
  /// panel: 0 or 1 of the stage; tile: 0 to 3 of the panel.
  __device__ __forceinline__ WarpWeights(Shared<P> const& shared, u32 panel, u32 tile, u32 lane)
      : codes_(shared.codes(0) + panel * L::kCodeBytes + lane * 16), tile_(tile) {
    u32 const number = panel * kBlock + lane / 4 * 8 + 2 * tile;
    scales_ = shared.scales(0) + number * L::kScaleBytes;
    zeros_ = shared.zeros(0) + number * L::kZeroBytes;
    // Else ptxas comes to them again from the thread's number in every step.
    asm volatile("" : "+r"(codes_), "+r"(scales_), "+r"(zeros_));
  }

  /// Of the step in `stage`, which is full.
  __device__ __forceinline__ void load(u32 stage, RawWeights<P>& raw) const {
    u32 const offset = stage * (kPanels * L::kPanelBytes);
#pragma unroll
    for (int block = 0; block < L::kStepBlocks; ++block) {
      u32 const from = codes_ + offset + block * L::kBlockBytes;
      load_plane<8, 0>(raw.words[block], from);
      load_plane<4, (Planes::kBits & 8)>(raw.words[block], from);
      load_plane<2, (Planes::kBits & 12)>(raw.words[block], from);
      load_plane<1, (Planes::kBits & 14)>(raw.words[block], from);
    }
    load_rows(raw.rows, offset);
  }

  /// The operands of an MMA of the step.
  static __device__ __forceinline__ void decode(RawWeights<P> const& raw, int mma, u32 (&a)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      u32 scales = 0;
      if constexpr (P::kFolds) scales = raw.rows.pair(mma);
      auto const factors = Decoder::factors(scales, r & 1, raw.rows.zero(mma, r & 1));
      a[r] = Decoder::unit(raw.words[mma / L::kBlockMmas], mma % L::kBlockMmas * 4 + r, factors);
    }
    written(a);
  }

 private:
  /// The words of this tile of the plane of kPlane bits from bit kStart of the codes on.
  template <int kPlane, int kStart>
  __device__ __forceinline__ void load_plane(u32 (&words)[Planes::kWords], u32 codes) const {
    if constexpr ((Planes::kBits & kPlane) != 0) {
      u32 const word = tile_ * kPlane;
      u32 const from = codes + kStart * 512 + word / 4 * 512 + word % 4 * 4;
      u32* const to = words + 4 * kStart;
      if constexpr (kPlane == 1) {
        to[0] = load_shared_32(from);
      } else if constexpr (kPlane == 2) {
        load_shared_64(to, from);
      } else {
#pragma unroll
        for (int i = 0; i < kPlane; i += 4) load_shared_128(to + i, from + i * 128);
      }
    }
  }

  __device__ __forceinline__ void load_rows(RowNumbers<P>& rows, u32 offset) const {
    if constexpr (L::kScaleBytes > 0) {
#pragma unroll
      for (int i = 0; i < L::kScales; ++i)
        rows.scales[i].load(scales_ + offset + i * (kPanels * L::kPanelScaleBytes));
    }
    if constexpr (L::kZeroBytes > 0) {
#pragma unroll
      for (int i = 0; i < L::kZeros; ++i)
        rows.zeros[i].load(zeros_ + offset + i * (kPanels * L::kPanelZeroBytes));
    }
  }

  u32 codes_, tile_, scales_, zeros_;
};

}  // namespace humming::sm90::wide
