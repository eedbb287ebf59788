// Numbers divided by a scale and rounded to codes, bit for bit as humming/activations.py says.
#pragma once

#include <humming/chunks.cuh>

namespace humming {

using E8m0 = Float<8, 0, 127, Specials::kNanOnly>;

inline constexpr u32 kInfinity = 0x7f800000u;  // bits of f32; the magnitude of a NaN is larger

__device__ __forceinline__ u32 magnitude_bits(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

/// 2^exponent, of a normal number.
__device__ __forceinline__ float power_of_2(int exponent) {
  return __uint_as_float(static_cast<u32>(exponent + 127) << 23);
}

/// What NumberFormat.max, .nan_code and .encode() say of one format.
template <class Format, Kind = Format::kKind>
struct Codes;

template <class Format>
struct Codes<Format, Kind::kInteger> {
  static constexpr bool kTwosComplement = true;
  static constexpr u32 kNan = 0;

  static __device__ __forceinline__ float top() { return (1 << (Format::kBits - 1)) - 1; }
  /// The code in the low bits, of a number that is at most top(); other bits are anything.
  static __device__ __forceinline__ u32 nearest(float value) {
    return __float_as_uint(__fadd_rn(value, 1.5f * (1 << 23)));
  }
};

template <class Format>
struct Codes<Format, Kind::kMagnitude> {
  static constexpr bool kTwosComplement = false;
  static constexpr u32 kNan = 0;

  static __device__ __forceinline__ float top() { return (1 << (Format::kBits - 1)) - 1; }
  /// The code in the low byte, of a magnitude up to top().
  static __device__ __forceinline__ u32 nearest(float value) {
    return __float_as_uint(__fadd_rn(value, 1 << 23));
  }
};

template <class Format>
struct Codes<Format, Kind::kFloat> {
  static constexpr bool kTwosComplement = false;
  static constexpr int kExponent = Format::kExponent, kMantissa = Format::kMantissa;
  static constexpr u32 kOnes = (1u << (kExponent + kMantissa)) - 1;
  static constexpr u32 kNan = Format::kSpecials == Specials::kNone ? 0 : kOnes;
  static constexpr u32 kTop = Format::kSpecials == Specials::kNone      ? kOnes
                              : Format::kSpecials == Specials::kNanOnly ? kOnes - 1
                                                                        : kOnes - (1u << kMantissa);
  static_assert(kMantissa > 0 && Format::kSpecials != Specials::kFnuz, "as Python refuses");

  static __device__ __forceinline__ float top() {
    return __uint_as_float((kTop << (23 - kMantissa)) + (u32(127 - Format::kBias) << 23));
  }
  /// The power of two at which a magnitude's binade begins; subnormal numbers share the smallest.
  static __device__ __forceinline__ float binade(float value) {
    float const begin = __uint_as_float(__float_as_uint(value) & kInfinity);
    return fmaxf(begin, power_of_2(1 - Format::kBias));
  }
  /// Adds the number whose last place is the format's last place in this binade: the sum ends in
  /// the multiple of that, rounded to nearest even.
  static __device__ __forceinline__ float sum(float value, float begin) {
    return __fmaf_rn(begin, power_of_2(23 - kMantissa), value);
  }
  /// The code in the low byte, of a magnitude up to top().
  static __device__ __forceinline__ u32 nearest(float value) {
    float const begin = binade(value);
    u32 const before = __float_as_uint(begin) >> (23 - kMantissa);
    return __float_as_uint(sum(value, begin)) + before - (u32(128 - Format::kBias) << kMantissa);
  }
  /// The number that this code means.
  static __device__ __forceinline__ float rounded(float value) {
    float const begin = binade(value);
    return __fmaf_rn(begin, -power_of_2(23 - kMantissa), sum(value, begin));
  }
};

// -- scales ------------------------------------------------------------------------------------

/// What a scale, zero or positive, is once it is stored: decode(encode_scale()).
template <class Format>
__device__ __forceinline__ float stored_scale(float scale) {
  if (magnitude_bits(scale) > kInfinity) return scale;
  if constexpr (is_same<Format, E8m0>) {
    u32 const bits = __float_as_uint(scale);
    if (bits >= kInfinity) return __uint_as_float(0x7fc00000u);
    if (bits == 0) return 1.0f;
    if (bits <= 0x00400000u) return __uint_as_float(0x00400000u);  // 2^-127, the smallest
    if (bits >= 0x7f000000u) return power_of_2(127);
    return __uint_as_float((bits + 0x007fffffu) & kInfinity);
  } else if constexpr (is_same<Format, F32>) {
    float const finite = fminf(scale, __uint_as_float(kInfinity - 1));
    return finite == 0.0f ? power_of_2(-126) : finite;
  } else if constexpr (is_same<Format, Bf16>) {
    float const finite = fminf(scale, __uint_as_float(0x7f7f0000u));
    float const near = __uint_as_float(u32(round_to_bf16(finite)) << 16);
    return near == 0.0f ? power_of_2(-126) : near;
  } else if constexpr (is_same<Format, F16>) {
    float const near = f16_to_float(round_to_f16(fminf(scale, 65504.0f)));
    return near == 0.0f ? power_of_2(-14) : near;
  } else {
    using Of = Codes<Format>;
    float const least = power_of_2(1 - Format::kBias - Format::kMantissa);
    return fmaxf(Of::rounded(fminf(scale, Of::top())), least);
  }
}

// -- division ----------------------------------------------------------------------------------

/// x / d rounded to nearest, where d is positive and finite and codes of the quotient are wanted.
///
/// Both are multiplied by a power of two that brings d to the middle of f32's range. Then five
/// multiplications with the correctly rounded reciprocal give the quotient correctly rounded
/// (Markstein 1990), except where it is so small that its code is zero either way; and what is
/// larger than `limit` has the largest code, so it counts as `limit`.
template <class Format>
struct Divisor {
  float factor, limit, divisor, inverse;

  __device__ __forceinline__ explicit Divisor(float d) {
    int const exponent = 254 - int(__float_as_uint(d) >> 23);
    factor = __uint_as_float(u32(max(1, min(exponent, 253))) << 23);
    divisor = __fmul_rn(d, factor);
    limit = __fmul_rn(Codes<Format>::top(), divisor);
    inverse = __frcp_rn(divisor);
  }

  __device__ __forceinline__ float quotient(float x) const {
    float q = __fmul_rn(x, inverse);
    q = __fmaf_rn(__fmaf_rn(-q, divisor, x), inverse, q);
    return __fmaf_rn(__fmaf_rn(-q, divisor, x), inverse, q);
  }

  /// Code of x / d in the low byte, without the sign unless in two's complement; x is no NaN.
  __device__ __forceinline__ u32 code(float x) const {
    if constexpr (Codes<Format>::kTwosComplement) {
      float const scaled = __fmul_rn(x, factor);
      return Codes<Format>::nearest(quotient(fmaxf(fminf(scaled, limit), -limit)));
    } else {
      float const scaled = __fmul_rn(fabsf(x), factor);
      return Codes<Format>::nearest(quotient(fminf(scaled, limit)));
    }
  }
};

/// Code of x / d, whatever both are.
template <class Format>
__device__ __forceinline__ u32 code_of_any(float x, float d) {
  using Of = Codes<Format>;
  constexpr u32 kMask = (1u << Format::kBits) - 1;
  float const q = __fdiv_rn(x, d), top = Of::top();
  if (magnitude_bits(q) > kInfinity) return Of::kNan;
  if constexpr (Of::kTwosComplement) {
    return Of::nearest(fmaxf(fminf(q, top), -top)) & kMask;
  } else {
    u32 const sign = __float_as_uint(q) >> 31 << (Format::kBits - 1);
    return (Of::nearest(fminf(fabsf(q), top)) & (kMask >> 1)) | sign;
  }
}

}  // namespace humming
