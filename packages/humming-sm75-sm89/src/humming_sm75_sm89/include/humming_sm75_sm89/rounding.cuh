// Rounding of results with the instructions of a generation.
#pragma once

#include <humming/gemm/numbers.cuh>

namespace humming::sm75_sm89 {

template <int kSm>
struct Rounding : SoftwareRounding {
  using SoftwareRounding::store;

  /// cvt.rn.bf16.f32
  static __device__ __forceinline__ void store(void* to, float value, Bf16) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    *static_cast<u16*>(to) = bits;
  }
};

template <>
struct Rounding<75> : SoftwareRounding {};

}  // namespace humming::sm75_sm89
