// Numbers as bits and back, and rounding to the formats of results.
#pragma once

#include <humming/decode/halves.cuh>

namespace humming {

__device__ __forceinline__ u32 bits_of(float value) { return __float_as_uint(value); }
__device__ __forceinline__ u32 bits_of(i32 value) { return static_cast<u32>(value); }

template <class Number>
__device__ __forceinline__ Number number_of(u32 bits) {
  if constexpr (is_same<Number, float>) {
    return __uint_as_float(bits);
  } else {
    return static_cast<Number>(bits);
  }
}

using F32 = Float<8, 23, 127, Specials::kIeee>;

/// bf16 to nearest even, in software: not every device has an instruction for it.
__device__ __forceinline__ u16 round_to_bf16(float value) {
  u32 const bits = __float_as_uint(value);
  u32 const rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return static_cast<u16>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}

/// cvt.rn.f16.f32
__device__ __forceinline__ u16 round_to_f16(float value) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

/// How results are rounded and stored; a policy may know a faster way for some format.
struct SoftwareRounding {
  static __device__ __forceinline__ void store(void* to, float value, F32) {
    *static_cast<float*>(to) = value;
  }
  static __device__ __forceinline__ void store(void* to, float value, F16) {
    *static_cast<u16*>(to) = round_to_f16(value);
  }
  static __device__ __forceinline__ void store(void* to, float value, Bf16) {
    *static_cast<u16*>(to) = round_to_bf16(value);
  }
};

}  // namespace humming
