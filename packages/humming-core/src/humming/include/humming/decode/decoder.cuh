// Decoder<Format, Target, zero>: from the codes of a weight to the operand of an MMA.
#pragma once

#include <humming/decode/floating.cuh>
#include <humming/decode/integer.cuh>

namespace humming {

template <class Format, class Target, Zero kZero>
__host__ __device__ constexpr auto choose_integer_decoder() {
  if constexpr (is_same<Target, Bf16>) {
    return Type<IntegerToBf16<Format, kZero>>{};
  } else if constexpr (is_half<Target>) {
    return Type<IntegerToF16<Format, kZero>>{};
  } else if constexpr (is_small_float<Target>) {
    return Type<IntegerToSmallFloat<Format, Target, kZero>>{};
  } else {
    return Type<IntegerToInteger<Format, Target, kZero>>{};
  }
}

template <class Format, class Target>
__host__ __device__ constexpr auto choose_float_decoder() {
  if constexpr (is_half<Target> && Format::kKind == Kind::kMagnitude) {
    return Type<MagnitudeToHalf<Format, Target>>{};
  } else if constexpr (is_half<Target>) {
    return Type<FloatToHalf<Format, Target>>{};
  } else if constexpr (is_small_float<Target>) {
    return Type<FloatToSmallFloat<Format, Target>>{};
  } else if constexpr (EvenMagnitude<Format>::kHolds) {
    return Type<MagnitudeToInteger<Format, Target>>{};
  } else {
    static_assert(is_same<Target, Signed<8>>, "Decoder: no integer of 4 bits has every value");
    return Type<FloatToInteger8<Format>>{};
  }
}

template <class Format, class Target, Zero kZero>
__host__ __device__ constexpr auto choose_decoder() {
  static_assert(is_half<Target> || is_small_float<Target> || is_small_integer<Target>,
                "Decoder: operands are f16, bf16, e4m3fn, e5m2, s8 or s4");
  static_assert(Format::kBits <= (is_half<Target> ? 8 : Target::kBits),
                "Decoder: codes wider than the operand");
  if constexpr (Format::kKind == Kind::kInteger) {
    return choose_integer_decoder<Format, Target, kZero>();
  } else {
    static_assert(kZero == Zero::kNone, "Decoder: only integer codes have zero points");
    return choose_float_decoder<Format, Target>();
  }
}

/// What turns codes of `Format` into `Target`; integer.cuh says what it has. A combination that
/// would not be exact does not compile, with a sentence.
///
///   using Weight = Decoder<Unsigned<4>, F16, Zero::kInteger>;
///   Weight::ZeroPoint const zero = Weight::zero_point(stored);
///   u32 const operand = Weight::unit(words, 5, zero);
template <class Format, class Target, Zero kZero = Zero::kNone>
using Decoder = typename decltype(choose_decoder<Format, Target, kZero>())::type;

}  // namespace humming
