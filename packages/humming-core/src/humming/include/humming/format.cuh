// Number formats as types; twin of formats/number.py, whose NumberFormat.cxx spells them.
#pragma once

#include <humming/std.cuh>

namespace humming {

enum class Kind { kInteger, kFloat, kMagnitude };

/// Which codes are not finite numbers; see Specials in formats/number.py.
enum class Specials { kNone, kNanOnly, kIeee, kFnuz };

/// What zero points a weight has; see Zero in formats/scheme.py.
enum class Zero { kNone, kInteger, kFloat };

/// Two's complement.
template <int kWidth>
struct Signed {
  static constexpr Kind kKind = Kind::kInteger;
  static constexpr bool kSigned = true;
  static constexpr int kBits = kWidth;
};

template <int kWidth>
struct Unsigned {
  static constexpr Kind kKind = Kind::kInteger;
  static constexpr bool kSigned = false;
  static constexpr int kBits = kWidth;
};

/// Sign and magnitude: e0m3 is Magnitude<3>, of four bits.
template <int kMagnitudeBits>
struct Magnitude {
  static constexpr Kind kKind = Kind::kMagnitude;
  static constexpr bool kSigned = true;
  static constexpr int kBits = kMagnitudeBits + 1;
};

/// Sign, exponent, mantissa.
template <int kExponentWidth, int kMantissaWidth, int kExponentBias, Specials kSpecialCodes>
struct Float {
  static constexpr Kind kKind = Kind::kFloat;
  static constexpr bool kSigned = true;
  static constexpr int kBits = 1 + kExponentWidth + kMantissaWidth;
  static constexpr int kExponent = kExponentWidth;
  static constexpr int kMantissa = kMantissaWidth;
  static constexpr int kBias = kExponentBias;
  static constexpr Specials kSpecials = kSpecialCodes;
};

using E4m3fn = Float<4, 3, 7, Specials::kNanOnly>;
using E5m2 = Float<5, 2, 15, Specials::kIeee>;
using F16 = Float<5, 10, 15, Specials::kIeee>;
using Bf16 = Float<8, 7, 127, Specials::kIeee>;

template <class Format>
inline constexpr bool is_half = is_same<Format, F16> || is_same<Format, Bf16>;
template <class Format>
inline constexpr bool is_small_float = is_same<Format, E4m3fn> || is_same<Format, E5m2>;
template <class Format>
inline constexpr bool is_small_integer = is_same<Format, Signed<8>> || is_same<Format, Signed<4>>;

}  // namespace humming
