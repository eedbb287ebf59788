// Float and sign-magnitude codes to operands; decoders as integer.cuh describes them.
//
// A float's bits are moved to where the target's format has them. Its exponent field then is too
// small by the difference of the biases, also for subnormals: the number is the value times a
// power of two. For f16 and bf16 one exact fma sets that right; 8-bit operands keep it (kExponent).
#pragma once

#include <humming/decode/halves.cuh>
#include <humming/decode/placements.cuh>

namespace humming {

/// Floats and magnitudes have no zero points.
struct WithoutZeroPoint {
  struct ZeroPoint {};
  static __device__ __forceinline__ ZeroPoint zero_point(u32) { return {}; }
};

using E2m1 = Float<2, 1, 1, Specials::kNone>;

/// Where codes lie; twin of plane_layout() in humming/layouts.py.
template <class Format, class Target>
struct FloatPlanes {
  using type = Planes<Format::kBits, 32 / Target::kBits>;
  static constexpr bool kPlaced = false;
};
template <class Places>
struct Placed {
  using type = PlacedPlanes<Places>;
  static constexpr bool kPlaced = true;
};
template <>
struct FloatPlanes<E2m1, Bf16> : Placed<PlacedForBf16> {};
template <>
struct FloatPlanes<E2m1, F16> : Placed<PlacedForF16> {};
template <>
struct FloatPlanes<E2m1, E4m3fn> : Placed<PlacedForBytes> {};
template <>
struct FloatPlanes<E2m1, E5m2> : Placed<PlacedForBytes> {};

/// Makes NaN and Inf of codes that mean them, in numbers of two halves that the bits were moved to.
template <class Format, class Half>
struct SpecialHalves {
  static constexpr int kGap = Half::kExponent - Format::kExponent;
  static constexpr u32 kAboveExponent = twice(1u << (Half::kMantissa + Format::kExponent));

  /// 3, or 2 if the exponents differ by a bit. Adding the last place (of the mantissa or, where
  /// Inf is, the exponent) carries out of the field for special codes alone.
  static __device__ __forceinline__ u32 fill_exponent(u32 halves) {
    constexpr bool kInf = Format::kSpecials == Specials::kIeee;
    constexpr int kLast = kInf ? Half::kMantissa : Half::kMantissa - Format::kMantissa;
    u32 const carried = halves + twice(1u << kLast);
    if constexpr (kGap == 1) {
      return and_xor(carried, kAboveExponent, halves);
    } else {
      return halves + (carried & kAboveExponent) * ((1u << kGap) - 1);
    }
  }

  /// 6. The sign alone is NaN.
  static __device__ __forceinline__ u32 fill_minus_zero(u32 halves) {
    u32 const special = (kMinusZeros - (halves & ~kMinusZeros)) & halves & kMinusZeros;
    return halves | (special - (special >> 15));
  }

  static __device__ __forceinline__ u32 fill(u32 halves) {
    if constexpr (Format::kSpecials == Specials::kNone) {
      return halves;
    } else if constexpr (Format::kSpecials == Specials::kFnuz) {
      return fill_minus_zero(halves);
    } else {
      return fill_exponent(halves);
    }
  }
};

/// To f16 and bf16, exact, NaN and Inf included. Two fields and an fma: 6.5 for e4m3fn to f16 and 7.5 to
/// bf16; 4.5 of the same without NaN. e5m2 to f16: 1.5. e2m1 as it is placed: 3.75 and 3.
template <class Format, class Half>
struct FloatToHalf : WithoutZeroPoint {
  using Planes = typename FloatPlanes<Format, Half>::type;
  static constexpr int kExponent = 0;
  static constexpr bool kSameExponent = Format::kExponent == Half::kExponent &&
                                        Format::kBias == Half::kBias &&
                                        Format::kSpecials == Half::kSpecials;
  static_assert(kSameExponent || Format::kExponent < Half::kExponent,
                "FloatToHalf: the format has larger exponents than f16; multiply it as bf16");
  /// What moved numbers are too small by, as a power of two.
  static constexpr int kGap = Half::kBias - Format::kBias;

  /// The bits where the target's format has them.
  static __device__ __forceinline__ u32 moved(const u32 (&words)[Planes::kWords], int index) {
    constexpr int kSign = Planes::kBits - 1;
    constexpr int kTo = Half::kMantissa - Format::kMantissa;
    if constexpr (FloatPlanes<Format, Half>::kPlaced) {
      static_assert(Planes::Placement::kMagnitudeAt == kTo, "FloatToHalf: placed for another");
      return Planes::form(words, index);
    } else {
      u32 const body = Planes::field(words, index, {0, kSign, kTo}, 0);
      u32 const whole = Planes::field(words, index, {kSign, kSign + 1, 15}, body);
      return SpecialHalves<Format, Half>::fill(whole);
    }
  }

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const WithoutZeroPoint::ZeroPoint&) {
    if constexpr (kSameExponent) {
      return Planes::field(words, index, {0, Planes::kBits, Half::kMantissa - Format::kMantissa}, 0);
    } else {
      constexpr u32 kScale = twice(power_of_two<Half>(kGap));
      return Halves<Half>::fma(moved(words, index), kScale, kMinusZeros);
    }
  }
};

/// e0mN to f16 and bf16: the magnitude as an integer is, then the sign. Two fields and an fma.
template <class Format, class Half>
struct MagnitudeToHalf : WithoutZeroPoint {
  using Planes = humming::Planes<Format::kBits, 2>;
  static constexpr int kExponent = 0;

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const WithoutZeroPoint::ZeroPoint&) {
    constexpr int kSign = Planes::kBits - 1;
    constexpr u32 kMagic = power_of_two<Half>(Half::kMantissa);
    constexpr u32 kOne = power_of_two<Half>(0);
    u32 const number = Planes::field(words, index, {0, kSign, 0}, twice(kMagic));
    u32 const size = Halves<Half>::fma(number, twice(kOne), twice(kMagic | 0x8000u));
    return Planes::field(words, index, {kSign, kSign + 1, 15}, size);
  }
};

/// What e4m3 and e5m2 have of other formats: those with fewer exponents, and magnitudes that lie
/// where codes ascend evenly.
template <class Format, class Target, Kind kKind = Format::kKind>
struct PlaceInSmallFloat {
  static constexpr bool kSame = is_same<Format, Target>;
  static constexpr bool kMoreExponents =
      Format::kExponent < Target::kExponent ||
      (Format::kExponent == Target::kExponent && Target::kSpecials == Specials::kNanOnly &&
       Format::kMantissa < Target::kMantissa);
  static constexpr bool kHolds =
      kSame || (Format::kMantissa <= Target::kMantissa && kMoreExponents &&
                Format::kSpecials == Specials::kNone);
  static constexpr int kTo = Target::kMantissa - Format::kMantissa;
  static constexpr int kExponent = Target::kBias - Format::kBias;
};

template <class Format, class Target>
struct PlaceInSmallFloat<Format, Target, Kind::kMagnitude> {
  static constexpr bool kSame = false;
  static constexpr bool kHolds = Format::kBits - 1 <= Target::kMantissa + 1;
  static constexpr int kTo = 0;
  static constexpr int kExponent = Target::kBias - 1 + Target::kMantissa;
};

/// To e4m3 and e5m2, up to 2^-kExponent. Two fields, or 3.5 by a table for e2m1; none for the format
/// itself.
template <class Format, class Target>
struct FloatToSmallFloat : WithoutZeroPoint {
  using Planes = typename FloatPlanes<Format, Target>::type;
  using Place = PlaceInSmallFloat<Format, Target>;
  static_assert(Place::kHolds,
                "FloatToSmallFloat: the operand's format does not have every value; use another");
  static constexpr int kExponent = Place::kExponent;

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const WithoutZeroPoint::ZeroPoint&) {
    constexpr int kSign = Planes::kBits - 1;
    if constexpr (Place::kSame) {
      return Planes::field(words, index, {0, 8, 0}, 0);
    } else if constexpr (FloatPlanes<Format, Target>::kPlaced) {
      u32 const low = 0x03020100u << Place::kTo, high = 0x07060504u << Place::kTo;
      constexpr int kPerWord = Planes::kPerWord;
      return Planes::Placement::look_up(words[index / kPerWord], index % kPerWord, low, high);
    } else {
      u32 const body = Planes::field(words, index, {0, kSign, Place::kTo}, 0);
      return Planes::field(words, index, {kSign, kSign + 1, 7}, body);
    }
  }
};

/// Formats whose magnitudes are their codes without sign, times a power of two: e0mN and e1mN.
template <class Format>
struct EvenMagnitude {
  static constexpr bool kHolds = false;
};
template <int kBits>
struct EvenMagnitude<Magnitude<kBits>> {
  static constexpr bool kHolds = true;
  static constexpr int kExponent = 0;
};
template <int kMantissa, int kBias>
struct EvenMagnitude<Float<1, kMantissa, kBias, Specials::kNone>> {
  static constexpr bool kHolds = true;
  static constexpr int kExponent = 1 - kBias - kMantissa;
};

/// e0mN and e1mN to s8 and s4, up to 2^-kExponent: sign and magnitude to two's complement. Two
/// fields and 4.
template <class Format, class Target>
struct MagnitudeToInteger : WithoutZeroPoint {
  using Planes = humming::Planes<Format::kBits, 32 / Target::kBits>;
  static constexpr int kExponent = EvenMagnitude<Format>::kExponent;

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const WithoutZeroPoint::ZeroPoint&) {
    constexpr int kSign = Planes::kBits - 1;
    constexpr u32 kTop = spread(1u << (Target::kBits - 1), Target::kBits);
    u32 const sign = Planes::field(words, index, {kSign, kSign + 1, kSign}, 0);
    u32 const ones = sign - (sign >> kSign);  // the magnitude's bits where negative
    u32 const size = Planes::field(words, index, {0, kSign, 0}, ones);
    return (size + kTop - ones) ^ kTop;  // the top bits keep slots from borrowing
  }
};

/// e2mN to s8, up to 2^-kExponent: as f16, then into the last bits of a sum, from which a PRMT
/// takes the bytes. Twice two fields and an fma, and 1: 10.5 for e2m1.
template <class Format>
struct FloatToInteger8 : WithoutZeroPoint {
  using Planes = humming::Planes<Format::kBits, 4>;
  static_assert(Format::kExponent == 2 && Format::kMantissa <= 4 &&
                    Format::kSpecials == Specials::kNone,
                "FloatToInteger8: s8 does not have every value; use another operand format");
  static constexpr int kExponent = 1 - Format::kBias - Format::kMantissa;

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const WithoutZeroPoint::ZeroPoint&) {
    return __byte_perm(integers(words, index, 0), integers(words, index, 1), 0x6240);
  }

 private:
  /// Elements kPart and kPart + 2, each in the low byte of a half.
  static __device__ __forceinline__ u32 integers(const u32 (&words)[Planes::kWords], int index,
                                                 int part) {
    constexpr int kSign = Planes::kBits - 1;
    constexpr int kTo = F16::kMantissa - Format::kMantissa;
    // The moved number is the value times 2^(kBias - 15). f16 has no power of two that makes it
    // the integer, so the sum's last place is that of 2^15 times it.
    constexpr int kPlace = 1 - Format::kMantissa;
    constexpr u32 kMagic = power_of_two<F16>(F16::kMantissa + kPlace) | 0x200u;
    u32 const body = Planes::field(words, index, {0, kSign, kTo, 16, part}, 0);
    u32 const moved = Planes::field(words, index, {kSign, kSign + 1, 15, 16, part}, body);
    return fma_f16x2(moved, twice(power_of_two<F16>(15)), twice(kMagic));
  }
};

}  // namespace humming
