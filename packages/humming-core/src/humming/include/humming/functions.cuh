// What the expressions of activation functions may use; see humming/gating.py. NaN stays NaN in all.
#pragma once

#include <humming/std.cuh>

namespace humming {

/// div.full.f32: at most 2 units in the last place off, whatever the divisor.
__device__ __forceinline__ float div_full(float a, float b) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
  return quotient;
}

/// ex2.approx.ftz.f32
__device__ __forceinline__ float exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

/// Fewer instructions than with expf, since a product of matrices has it for each of its results. What
/// ex2 flushes to 0 is nothing beside 1.
__device__ __forceinline__ float sigmoid(float x) {
  return div_full(1.0f, 1.0f + exp2_fast(x * -1.44269504f));
}
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float within(float x, float limit) {
  return x < -limit ? -limit : at_most(x, limit);
}

/// Of a kernel that applies none to its results.
struct Unchanged {
  static __device__ __forceinline__ float of(float x) { return x; }
};

}  // namespace humming
