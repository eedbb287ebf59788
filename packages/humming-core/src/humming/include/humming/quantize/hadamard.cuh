// The Walsh-Hadamard transform of blocks of neighbours: hadamard() of humming/activations.py.
#pragma once

#include <humming/quantize/reader.cuh>

namespace humming {

/// Orthonormal, of kBlock numbers of a row, a power of two; each thread of a warp has eight of them
/// next to those of its neighbours, and for more than 256 a second eight, 256 further.
///
/// Sums and differences at distances 1, 2, 4 and so on, then one factor, all in f32, and results
/// rounded to Format: the bits do not depend on which thread has what.
template <class Format, int kBlock, bool kNative>
struct Hadamard {
  static_assert(kBlock >= 2 && kBlock <= 512 && (kBlock & (kBlock - 1)) == 0, "as Python refuses");
  static constexpr int kVectors = kBlock > 256 ? 2 : 1;
  using Numbers = Octet<Format>;

  static __device__ __forceinline__ constexpr float factor() {
    double factor = 1;
    int left = kBlock;
    for (; left >= 4; left /= 4) factor /= 2;
    return static_cast<float>(left == 2 ? factor * 0.70710678118654752440 : factor);
  }

  static __device__ __forceinline__ void apply(Numbers (&numbers)[kVectors]) {
    float values[kVectors][8];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[v][i] = numbers[v].value(i);
      within(values[v]);
    }
    if constexpr (kVectors == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) pair(values[0][i], values[1][i]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[v][i] = __fmul_rn(values[v][i], factor());
      numbers[v] = rounded<Format, kNative>(values[v]);
    }
  }

 private:
  static __device__ __forceinline__ void pair(float& first, float& second) {
    float const sum = __fadd_rn(first, second);
    second = __fsub_rn(first, second);
    first = sum;
  }

  static __device__ __forceinline__ void within(float (&values)[8]) {
#pragma unroll
    for (int distance = 1; distance < 8 && distance < kBlock; distance *= 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if ((i & distance) == 0) pair(values[i], values[i + distance]);
      }
    }
#pragma unroll
    for (int lanes = 1; lanes < 32 && 8 * lanes < kBlock; lanes *= 2) {
      u32 const is_second = (threadIdx.x & lanes) != 0 ? 0x80000000u : 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float const other = __shfl_xor_sync(~0u, values[i], lanes);
        values[i] = __fadd_rn(other, __uint_as_float(__float_as_uint(values[i]) ^ is_second));
      }
    }
  }
};

}  // namespace humming
