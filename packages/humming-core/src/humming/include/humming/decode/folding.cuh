// FoldingDecoder<Format, Target, zero, Scale>: codes to operands that are multiplied by their scale.
//
// bf16: a decoder's last instruction is an fma with a power of two. The scale goes into that factor, so
// that folding costs nothing per register, and a product is rounded once. An integer zero point times a
// scale would be rounded too, which no later rounding makes good: it is taken off first, and the scale
// costs an instruction.
//
// e4m3fn: e2m1 times powers of two from 2^-5 to 2^6 is exact. They go into the table that decodes.
//
// A decoder has what Decoder has, but for zero points
//
//   Factors                       what a scale, and a zero point, are turned into
//   factors(scales, half, zero)   does so; `scales` has those of two rows, as they are stored, in its
//                                 halves, and `half` says which
//   unit(words, i, factors)       the register of unit i of a lane's group
#pragma once

#include <humming/decode/decoder.cuh>

namespace humming {

/// Numbers are the values times scale times 2^-kFoldExponent. So factors are finite for scales up to
/// 2^24, and products have all 8 bits of bf16 for scales down to 2^-64. Backends fold no others, and of
/// e8m0 and e4m3fn no NaN and nothing negative.
inline constexpr int kFoldExponent = 32;

using E8m0 = Float<8, 0, 127, Specials::kNanOnly>;
/// All that is finite and positive in e4m3fn is a normal number of it; so it is what scales of e4m3fn
/// become that are folded into floats. Kernels take no others of it: what has code 0 has codes of 0.
using E5m3 = Float<5, 3, 15, Specials::kNanOnly>;

/// Two numbers of `kBytes` bytes that lie together, each in a half of a register.
template <int kBytes>
__device__ __forceinline__ u32 pair_of(u32 const* words, int number) {
  static_assert(kBytes <= 2, "pair_of: halves have 16 bits");
  if constexpr (kBytes == 2) {
    return words[number];
  } else {
    return prmt(words[number / 2], 0, number % 2 == 0 ? 0x4140 : 0x4342);
  }
}

/// 2^exponent, times each half of `numbers`.
__device__ __forceinline__ u32 scaled_power(int exponent, u32 numbers) {
  return fma_bf16x2(numbers, twice(power_of_two<Bf16>(exponent)), kMinusZeros);
}

/// One half of a register, in both halves. Instructions on halves take it from there themselves, where
/// it is written like this.
__device__ __forceinline__ u32 both_halves(u32 pair, int half) {
  u32 made;
  if (half == 0) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
        : "=r"(made)
        : "r"(pair));
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
        : "=r"(made)
        : "r"(pair));
  }
  return made;
}

/// Two scales as bf16. 1 for e8m0, 2 for e4m3fn.
template <class Scale>
__device__ __forceinline__ u32 scale_pair(u32 halves) {
  if constexpr (is_same<Scale, Bf16>) {
    return halves;
  } else {
    u32 const moved = halves << (Bf16::kMantissa - Scale::kMantissa);
    if constexpr (is_same<Scale, E8m0>) {
      return moved;
    } else {
      static_assert(is_same<Scale, E4m3fn>, "scale_pair: scales that bf16 has");
      return scaled_power(Bf16::kBias - E4m3fn::kBias, moved);
    }
  }
}

/// Decodes, then multiplies.
template <class Decoder, class Scale>
struct FoldingInTwoSteps {
  using Planes = typename Decoder::Planes;
  static constexpr int kExponent = Decoder::kExponent;

  struct Factors {
    typename Decoder::ZeroPoint zero;
    u32 scales;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, int half, u32 zero) {
    return {Decoder::zero_point(zero), both_halves(scale_pair<Scale>(scales), half)};
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    return fma_bf16x2(Decoder::unit(words, index, factors.zero), factors.scales, kMinusZeros);
  }
};

/// As IntegerToBf16, with an offset that is a power of two.
template <class Format, class Scale>
struct FoldingInteger {
  using Plain = IntegerToBf16<Format, Zero::kNone>;
  using Planes = typename Plain::Planes;
  using Low = typename Plain::Low;
  using Code = typename Plain::Code;
  static constexpr int kExponent = kFoldExponent;

  struct Factors {
    u32 factor[Low::kPlaces], addend;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, int half, u32) {
    u32 const pair = scale_pair<Scale>(scales);
    Factors made;
#pragma unroll
    for (int place = 0; place < Low::kPlaces; ++place) {
      int const exponent = 133 - kFoldExponent - Low::to(place);
      made.factor[place] = both_halves(scaled_power(exponent, pair), half);
    }
    u32 const offset = scaled_power(Planes::kBits - 1 - kFoldExponent, pair) ^ kMinusZeros;
    made.addend = both_halves(offset, half);
    return made;
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    int const place = Low::place(index), to = Low::to(place);
    u32 const number = Planes::field(words, index, {0, Planes::kBits, to}, twice(Code::kFlip << to));
    return fma_bf16x2(number, factors.factor[place], factors.addend);
  }
};

/// As FloatToHalf. For two rows a factor costs 1 or 2 with scales of e8m0 and e5m3: exponents are added.
/// What has scale code 0, a power of two then, has codes of 0.
template <class Format, class Scale>
struct FoldingFloat {
  using Plain = FloatToHalf<Format, Bf16>;
  using Planes = typename Plain::Planes;
  static constexpr int kExponent = kFoldExponent;

  struct Factors {
    u32 factor;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, int half, u32) {
    constexpr int kPower = Plain::kGap - kFoldExponent;
    if constexpr (is_same<Scale, E8m0> || is_same<Scale, E5m3>) {
      constexpr u32 kAdded = static_cast<u32>(Bf16::kBias - Scale::kBias + kPower) << Bf16::kMantissa;
      u32 const moved = scales << (Bf16::kMantissa - Scale::kMantissa);
      return {both_halves(moved + twice(kAdded), half)};
    } else {
      return {both_halves(scaled_power(kPower, scale_pair<Scale>(scales)), half)};
    }
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    return fma_bf16x2(Plain::moved(words, index), factors.factor, kMinusZeros);
  }
};

/// e2m1 times 2^-5 to 2^6, as e4m3fn: none of these numbers is subnormal, so that a table for a scale is
/// one for 2^-127, and multiples of the scale's code in the exponents. 3 for a table, then as many as
/// FloatToSmallFloat takes. What has another scale is padding, whose codes are 0 and stay so.
template <class Scale>
struct FoldingToE4m3 {
  using Planes = typename FloatPlanes<E2m1, E4m3fn>::type;
  static constexpr int kExponent = 0;

  struct Factors {
    u32 low, high;
  };

  static __device__ __forceinline__ Factors factors(u32 scales, int half, u32) {
    static_assert(is_same<Scale, E8m0>, "FoldingDecoder: e4m3fn takes powers of two");
    // 1.5, 1, 0.5, 0; 6, 4, 3, 2.
    constexpr u32 kLow = 0x3c383000u, kHigh = 0x4c484440u;
    constexpr u32 kStepLow = 0x08080800u, kStepHigh = 0x08080808u;
    u32 const scale = half == 0 ? scales & 0xffff : scales >> 16;
    return {kLow - E8m0::kBias * kStepLow + scale * kStepLow,
            kHigh - E8m0::kBias * kStepHigh + scale * kStepHigh};
  }
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const Factors& factors) {
    constexpr int kPerWord = Planes::kPerWord;
    return Planes::Placement::look_up(words[index / kPerWord], index % kPerWord, factors.low,
                                      factors.high);
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

template <class Format, class Target, Zero kZero, class Scale>
__host__ __device__ constexpr auto choose_folding_decoder() {
  using Plain = Decoder<Format, Target, kZero>;
  if constexpr (is_same<Format, E2m1> && is_same<Target, E4m3fn>) {
    return Type<FoldingToE4m3<Scale>>{};
  } else {
    static_assert(is_same<Target, Bf16>, "FoldingDecoder: f16 lacks the exponents for it");
    if constexpr (Format::kKind == Kind::kInteger && kZero == Zero::kNone) {
      return Type<FoldingInteger<Format, Scale>>{};
    } else if constexpr (is_small_exponent<Format>()) {
      return Type<FoldingFloat<Format, Scale>>{};
    } else {
      return Type<FoldingInTwoSteps<Plain, Scale>>{};
    }
  }
}

/// What turns codes of `Format` into `Target` and multiplies them by their scale.
template <class Format, class Target, Zero kZero = Zero::kNone, class Scale = Bf16>
using FoldingDecoder =
    typename decltype(choose_folding_decoder<Format, Target, kZero, Scale>())::type;

}  // namespace humming
