// FoldingDecoder<Format, Target, zero>: codes to bf16 operands that are multiplied by their scale.
//
// A decoder's last instruction is an fma with a power of two. The scale goes into that factor, so that
// folding costs nothing per register, and a product is rounded once, to bf16. An integer zero point
// times a scale would be rounded too, which no later rounding makes good: it is taken off first, and
// the scale costs an instruction.
#pragma once

#include <humming/decode/decoder.cuh>

namespace humming {

/// Numbers are the values times scale times 2^-kFoldExponent. So factors are finite for scales up to
/// 2^24, and products have all 8 bits of bf16 for scales down to 2^-64. Backends fold no others.
inline constexpr int kFoldExponent = 32;

/// 2^exponent in both halves, times `scales`.
__device__ __forceinline__ u32 scaled_power(int exponent, u32 scales) {
  return fma_bf16x2(scales, twice(power_of_two<Bf16>(exponent)), kMinusZeros);
}

/// Decodes, then multiplies.
template <class Decoder>
struct FoldingInTwoSteps {
  using Planes = typename Decoder::Planes;
  static constexpr int kExponent = Decoder::kExponent;

  struct Factors {
    typename Decoder::ZeroPoint zero;
    u32 scales;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, u32 zero) {
    return {Decoder::zero_point(zero), scales};
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    return fma_bf16x2(Decoder::unit(words, index, factors.zero), factors.scales, kMinusZeros);
  }
};

/// As IntegerToBf16, with an offset that is a power of two.
template <class Format>
struct FoldingInteger {
  using Plain = IntegerToBf16<Format, Zero::kNone>;
  using Planes = typename Plain::Planes;
  using Code = typename Plain::Code;
  static constexpr int kExponent = kFoldExponent;
  static constexpr int kPlaces = Plain::kRun < Plain::kPerWord ? Plain::kRun : Plain::kPerWord;

  struct Factors {
    u32 factor[kPlaces], addend;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, u32) {
    Factors made;
#pragma unroll
    for (int place = 0; place < kPlaces; ++place)
      made.factor[place] = scaled_power(133 - kFoldExponent - Plain::kPlane * place, scales);
    made.addend = scaled_power(Planes::kBits - 1 - kFoldExponent, scales) ^ kMinusZeros;
    return made;
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    int const place = index % Plain::kPerWord % Plain::kRun, to = Plain::kPlane * place;
    u32 const number = Planes::field(words, index, {0, Planes::kBits, to}, twice(Code::kFlip << to));
    return fma_bf16x2(number, factors.factor[place], factors.addend);
  }
};

/// As FloatToHalf.
template <class Format>
struct FoldingFloat {
  using Plain = FloatToHalf<Format, Bf16>;
  using Planes = typename Plain::Planes;
  static constexpr int kExponent = kFoldExponent;

  struct Factors {
    u32 factor;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, u32) {
    return {scaled_power(Plain::kGap - kFoldExponent, scales)};
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    return fma_bf16x2(Plain::moved(words, index), factors.factor, kMinusZeros);
  }
};

/// Whether it is a float whose smallest number is no less than 2^-9 or so: with more exponents, codes
/// take the range that is meant for scales.
template <class Format>
__host__ __device__ constexpr bool is_small_exponent() {
  if constexpr (Format::kKind == Kind::kFloat) {
    return Format::kExponent <= 4;
  } else {
    return false;
  }
}

template <class Format, class Target, Zero kZero>
__host__ __device__ constexpr auto choose_folding_decoder() {
  static_assert(is_same<Target, Bf16>, "FoldingDecoder: f16 lacks the exponents for it");
  using Plain = Decoder<Format, Target, kZero>;
  if constexpr (Format::kKind == Kind::kInteger && kZero == Zero::kNone) {
    return Type<FoldingInteger<Format>>{};
  } else if constexpr (is_small_exponent<Format>()) {
    return Type<FoldingFloat<Format>>{};
  } else {
    return Type<FoldingInTwoSteps<Plain>>{};
  }
}

/// What turns codes of `Format` into bf16 and multiplies them by their scale. As Decoder, but
///
///   Factors                   what a scale, and a zero point, are turned into
///   factors(scales, zero)     does so; the scale is in both halves
///   unit(words, i, factors)   the register of unit i of a lane's group
template <class Format, class Target, Zero kZero = Zero::kNone>
using FoldingDecoder = typename decltype(choose_folding_decoder<Format, Target, kZero>())::type;

}  // namespace humming
