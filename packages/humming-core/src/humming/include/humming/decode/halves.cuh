// Arithmetic on registers of two f16 or bf16 numbers, and constants of these formats.
#pragma once

#include <humming/format.cuh>

namespace humming {

template <class Half>
struct Halves;

/// fma.rn.f16x2
__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// fma.rn.bf16x2
__device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

template <>
struct Halves<F16> {
  static __device__ __forceinline__ u32 fma(u32 a, u32 b, u32 c) { return fma_f16x2(a, b, c); }
};

template <>
struct Halves<Bf16> {
  static __device__ __forceinline__ u32 fma(u32 a, u32 b, u32 c) { return fma_bf16x2(a, b, c); }
};

/// One 16-bit number in both halves of a register.
__host__ __device__ constexpr u32 twice(u32 bits) { return bits | bits << 16; }

/// 2^exponent as the bits of an f16 or bf16 number.
template <class Half>
__host__ __device__ constexpr u32 power_of_two(int exponent) {
  return static_cast<u32>(Half::kBias + exponent) << Half::kMantissa;
}

inline constexpr u32 kMinusZeros = 0x80008000u;

}  // namespace humming
