// Eight quotients to eight codes, and how large numbers are: with instructions for it or without.
#pragma once

#include <humming/quantize/octet.cuh>

namespace humming {

/// cvt.rn.satfinite.e4m3x2.f32
__device__ __forceinline__ u32 to_pair(float low, float high, E4m3fn) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
/// cvt.rn.satfinite.e5m2x2.f32
__device__ __forceinline__ u32 to_pair(float low, float high, E5m2) {
  u16 pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// cvt.rn.f16x2.e4m3x2
__device__ __forceinline__ u32 to_halves(u32 pair, E4m3fn) {
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<u16>(pair)));
  return halves;
}

/// Both as stored_scale<E4m3fn>() gives them, unless they are NaN.
__device__ __forceinline__ void store_scales(float& first, float& second, E4m3fn format) {
  u32 const halves = to_halves(to_pair(first, second, format), format);
  float const least = power_of_2(1 - E4m3fn::kBias - E4m3fn::kMantissa);
  first = fmaxf(f16_to_float(static_cast<u16>(halves)), least);
  second = fmaxf(f16_to_float(static_cast<u16>(halves >> 16)), least);
}

using E2m1 = Float<2, 1, 1, Specials::kNone>;

/// What codes_of() wants the divisors of its quotients multiplied by.
template <class Code>
inline constexpr float kDivisorUnit = is_same<Code, E2m1> ? 2.0f : 1.0f;

/// A quotient of any magnitude is cut to this, or to anything between 2.5 and 3.5: what leads to the
/// largest code.
inline constexpr float kE2m1Cut = 3.25f;

/// The code in the low byte, of any number over kDivisorUnit<E2m1> whose magnitude is below 3.5: the
/// magnitude and the number whose last place is a code's, plus what the exponent lacks below 2^7, so
/// that the low byte has nothing else.
__device__ __forceinline__ u32 e2m1_code(float half) {
  float const begin = fmaxf(__uint_as_float(__float_as_uint(half) & kInfinity), 0.5f);
  return __float_as_uint(__fmaf_rn(begin, (1 << 22) + 2, fabsf(half))) +
         (__float_as_uint(begin) >> 22);
}

/// Codes of at most four bits, of quotients as codes_of() has them, without their signs: each in a
/// nibble of its own, those of integers plus 8.
template <class Code, bool kFits>
__device__ __forceinline__ u32 nibbles_of(float const (&q)[8]) {
  using Of = Codes<Code>;
  u32 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 codes[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float value = q[2 * i + j];
      if constexpr (is_same<Code, E2m1>) {
        codes[j] = e2m1_code(kFits ? value : fminf(fabsf(value), kE2m1Cut));
      } else if constexpr (Of::kTwosComplement) {
        if constexpr (!kFits) value = fmaxf(fminf(value, Of::top()), -Of::top());
        // The bits above the sum's last byte are those of 2^23.
        codes[j] = __float_as_uint(__fadd_rn(value, (1 << 23) + 8));
      } else {
        value = fabsf(value);
        codes[j] = Of::nearest(kFits ? value : fminf(value, Of::top()));
      }
    }
    pairs[i] = codes[0] + (codes[1] << 4);
  }
  u32 const low = __byte_perm(pairs[0], pairs[1], 0x0040);
  return __byte_perm(low, __byte_perm(pairs[2], pairs[3], 0x0040), 0x5410);
}

/// Codes of more bits, likewise; with their signs.
template <class Code, bool kNative, bool kFits, class Numbers>
__device__ __forceinline__ u64 bytes_of(float const (&q)[8], Numbers const& numbers) {
  using Of = Codes<Code>;
  u32 halves[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float const* const four = q + 4 * half;
    if constexpr (kNative && is_small_float<Code>) {
      u32 const low = to_pair(four[0], four[1], Code{}), high = to_pair(four[2], four[3], Code{});
      halves[half] = __byte_perm(low, high, 0x5410);
    } else {
      u32 codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value = Of::kTwosComplement ? four[i] : fabsf(four[i]);
        if constexpr (!kFits) value = fminf(value, Of::top());
        if constexpr (!kFits && Of::kTwosComplement) value = fmaxf(value, -Of::top());
        codes[i] = Of::nearest(value);
      }
      u32 const low = __byte_perm(codes[0], codes[1], 0x0040);
      u32 const bytes = __byte_perm(low, __byte_perm(codes[2], codes[3], 0x0040), 0x5410);
      if constexpr (Code::kBits == 8 && Of::kTwosComplement) {
        halves[half] = bytes;
      } else if constexpr (Of::kTwosComplement) {
        halves[half] = bytes & 0x01010101u * ((1u << Code::kBits) - 1);
      } else {
        halves[half] = bytes | (numbers.signs(half) & 0x80808080u) >> (8 - Code::kBits);
      }
    }
  }
  return halves[0] | u64(halves[1]) << 32;
}

/// Codes of the quotients q (over kDivisorUnit<Code>), finite, of numbers with the signs of
/// `numbers`: in bytes or, if they are that narrow, in nibbles.
///
/// kNative: the device converts to formats of eight bits. kFits: no quotient is further beyond the
/// largest code than roundings of f32 carry it or, of E2m1, than kE2m1Cut.
template <class Code, bool kNative, bool kFits, class Numbers>
__device__ __forceinline__ u64 codes_of(float const (&q)[8], Numbers const& numbers) {
  if constexpr (Code::kBits > 4) {
    return bytes_of<Code, kNative, kFits>(q, numbers);
  } else if constexpr (Codes<Code>::kTwosComplement) {
    u32 const codes = nibbles_of<Code, kFits>(q) ^ 0x88888888u;
    return codes & 0x11111111u * ((1u << Code::kBits) - 1);
  } else {
    return numbers.template with_signs<Code::kBits>(nibbles_of<Code, kFits>(q));
  }
}

// -- magnitudes --------------------------------------------------------------------------------

/// max.NaN.xorsign.abs.bf16x2
__device__ __forceinline__ u32 larger_pair(u32 a, u32 b, Bf16) {
  u32 found;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}
/// max.NaN.xorsign.abs.f16x2
__device__ __forceinline__ u32 larger_pair(u32 a, u32 b, F16) {
  u32 found;
  asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}

/// Largest magnitudes: bits of f32, above kInfinity if there is a NaN.
template <class Source, bool kNative>
struct Peak {
  static constexpr bool kPairs = false;

  static __device__ __forceinline__ u32 of(Octet<Source> const& numbers) { return numbers.peak(); }
  static __device__ __forceinline__ u32 larger(u32 a, u32 b) { return max(a, b); }
  static __device__ __forceinline__ u32 bits(u32 peak) { return peak; }
};

/// Largest magnitudes of the even and of the odd numbers, of any sign: two in a register.
template <class Source>
struct PairPeak {
  static constexpr bool kPairs = true;

  static __device__ __forceinline__ u32 larger(u32 a, u32 b) {
    return larger_pair(a, b, Source{});
  }
  static __device__ __forceinline__ u32 of(Octet<Source> const& numbers) {
    return larger(larger(numbers.words[0], numbers.words[1]),
                  larger(numbers.words[2], numbers.words[3]));
  }
  /// Of the number in the low half, or in the high one.
  static __device__ __forceinline__ u32 half_bits(u32 pair, int half) {
    return magnitude_bits(Elements<Source>::value(static_cast<u16>(pair >> 16 * half)));
  }
  static __device__ __forceinline__ u32 bits(u32 pair) {
    return max(half_bits(pair, 0), half_bits(pair, 1));
  }
  /// The larger of the halves of each: a pair of the two.
  static __device__ __forceinline__ u32 joined(u32 first, u32 second) {
    return larger(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
  }
};
template <>
struct Peak<Bf16, true> : PairPeak<Bf16> {};
template <>
struct Peak<F16, true> : PairPeak<F16> {};

/// The largest of what `kLanes` neighbouring lanes have, for each of them.
template <int kLanes, class Peak>
__device__ __forceinline__ u32 neighbours_max(u32 value) {
  if constexpr ((kLanes & (kLanes - 1)) == 0) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      value = Peak::larger(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
  } else {
    int const lane = threadIdx.x % 32, place = lane % kLanes;
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      u32 const other = __shfl_down_sync(~0u, value, distance);
      if (place + distance < kLanes) value = Peak::larger(value, other);
    }
    return __shfl_sync(~0u, value, lane - place);
  }
}

/// redux.sync.max.u32, of all lanes.
__device__ __forceinline__ u32 redux_max(u32 value) {
  u32 largest;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(largest) : "r"(value));
  return largest;
}

}  // namespace humming
