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

/// value * 2^exponent
__device__ constexpr double scaled(double value, int exponent) {
  for (; exponent > 0; --exponent) value *= 2;
  for (; exponent < 0; ++exponent) value /= 2;
  return value;
}

/// What NumberFormat.max, .nan_code and .encode() say of one format.
template <class Format, Kind = Format::kKind>
struct Codes;

template <class Format>
struct Codes<Format, Kind::kInteger> {
  static constexpr bool kTwosComplement = true;
  static constexpr u32 kNan = 0;
  static constexpr double kTopValue = (1 << (Format::kBits - 1)) - 1;

  static __device__ __forceinline__ float top() { return kTopValue; }
  /// The code in the low bits, of a number that is at most top(); other bits are anything.
  static __device__ __forceinline__ u32 nearest(float value) {
    return __float_as_uint(__fadd_rn(value, 1.5f * (1 << 23)));
  }
};

template <class Format>
struct Codes<Format, Kind::kMagnitude> {
  static constexpr bool kTwosComplement = false;
  static constexpr u32 kNan = 0;
  static constexpr double kTopValue = (1 << (Format::kBits - 1)) - 1;

  static __device__ __forceinline__ float top() { return kTopValue; }
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
  static constexpr double kTopValue =
      scaled((1 << kMantissa) + (kTop & ((1u << kMantissa) - 1)),
             int(kTop >> kMantissa) - Format::kBias - kMantissa);

  static __device__ __forceinline__ float top() { return kTopValue; }
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

/// rcp.approx.ftz.f32: one unit in the last place off at most.
__device__ __forceinline__ float rcp_approx(float value) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
  return inverse;
}

/// Whether 2^-kExponent <= value < 2^kExponent.
template <int kExponent>
__device__ __forceinline__ bool is_within(float value) {
  constexpr u32 kLeast = u32(127 - kExponent) << 23, kRange = u32(2 * kExponent) << 23;
  return __float_as_uint(value) - kLeast < kRange;
}

/// x / d for codes, where is_usual() says so of both: 1 / d as the sum of two numbers.
///
/// kNarrow: x has at most 11 significant bits, and the quotient's relative error is below 2^-43
/// before it is rounded to f32. No x / d lies that near to the middle between a tie of codes and
/// its neighbour in f32, unless d is just below a power of two; test_quantize_division.py looks at
/// all of them. So codes are as if the quotient had been rounded correctly. Any other x takes a
/// correction, after which it is (Markstein 1990). kSigned: zeros need their signs.
template <bool kNarrow, bool kSigned>
struct Reciprocal {
  float high, low, divisor;

  __device__ __forceinline__ explicit Reciprocal(float d) : divisor(d) {
    high = kNarrow ? rcp_approx(d) : __frcp_rn(d);
    // Below 1 / d: were `low` negative, -0 would become 0.
    if constexpr (kNarrow && kSigned) high = __uint_as_float(__float_as_uint(high) - 1);
    low = __fmul_rn(__fmaf_rn(-d, high, 1.0f), high);
  }

  static __device__ __forceinline__ bool is_usual(float d) {
    return is_within<60>(d) && is_usual_significand(d);
  }
  static __device__ __forceinline__ bool is_usual_significand(float d) {
    return !kNarrow || (~__float_as_uint(d) & 0x007fffffu) != 0;
  }
  /// Of the bits of the largest magnitude that is divided: neither NaN nor anything that overflows.
  static __device__ __forceinline__ bool is_usual_peak(u32 bits) {
    return bits < u32(127 + 64) << 23;
  }

  __device__ __forceinline__ float quotient(float x) const {
    float const q = __fmaf_rn(x, high, __fmul_rn(x, low));
    if constexpr (kNarrow) return q;
    float const corrected = __fmaf_rn(__fmaf_rn(-q, divisor, x), high, q);
    return kSigned ? copysignf(corrected, x) : corrected;
  }
};

/// x / d where d is a power of two: exact, but for what is next to nothing.
struct PowerReciprocal {
  float inverse, divisor;

  __device__ __forceinline__ explicit PowerReciprocal(float d)
      : inverse(__uint_as_float(0x7f000000u - __float_as_uint(d))), divisor(d) {}

  static __device__ __forceinline__ bool is_usual(float d) { return is_within<60>(d); }
  static __device__ __forceinline__ bool is_usual_significand(float) { return true; }
  static __device__ __forceinline__ bool is_usual_peak(u32 bits) {
    return Reciprocal<false, false>::is_usual_peak(bits);
  }
  __device__ __forceinline__ float quotient(float x) const { return __fmul_rn(x, inverse); }
};

/// 1 / top for Codes<Code>::top(), as two numbers that are constants: the largest code is a small
/// integer times a power of two, so that x / top is rounded correctly for every x of f32.
template <class Code>
__device__ __forceinline__ float divided_by_top(float x) {
  constexpr double kTop = Codes<Code>::kTopValue;
  constexpr float kHigh = static_cast<float>(1.0 / kTop);
  constexpr float kLow = static_cast<float>((1.0 - kHigh * kTop) / kTop);
  return __fmaf_rn(x, kHigh, __fmul_rn(x, kLow));
}

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
