// Numbers to and from float, one at a time, without any instruction that some architecture lacks.
#pragma once

#include <humming/format.cuh>
#include <humming/std.cuh>

namespace fake {

using humming::u16, humming::u32, humming::u8;

inline __device__ float of_bits(u32 bits) { return __uint_as_float(bits); }

inline __device__ float half_to_float(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

inline __device__ float e4m3_to_float(u8 code) {
  int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return of_bits(0x7fc00000);
  float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return code & 128 ? -size : size;
}

/// Element `k` of a row of activations.
template <class Format>
__device__ float load(u8 const* row, int k) {
  if constexpr (humming::is_same<Format, humming::F16>) {
    return half_to_float(reinterpret_cast<u16 const*>(row)[k]);
  } else if constexpr (humming::is_same<Format, humming::Bf16>) {
    return of_bits(u32(reinterpret_cast<u16 const*>(row)[k]) << 16);
  } else if constexpr (humming::is_same<Format, humming::E4m3fn>) {
    return e4m3_to_float(row[k]);
  } else if constexpr (humming::is_same<Format, humming::Signed<4>>) {
    return float(int(row[k / 2] >> 4 * (k % 2) << 28) >> 28);
  } else {
    static_assert(humming::is_same<Format, humming::Signed<8>>, "no other activations");
    return float(static_cast<signed char>(row[k]));
  }
}

/// Store element `i` of an f16, bf16 or f32 result.
template <int kBits, bool kBf16>
__device__ void store(void* out, long long i, float value) {
  if constexpr (kBits == 32) {
    static_cast<float*>(out)[i] = value;
  } else if constexpr (kBf16) {
    u32 bits = __float_as_uint(value);
    u32 rounded = value == value ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000;
    static_cast<u16*>(out)[i] = u16(rounded >> 16);
  } else {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    static_cast<u16*>(out)[i] = bits;
  }
}

}  // namespace fake
