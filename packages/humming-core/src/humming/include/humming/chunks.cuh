// Eight numbers of a row at a time, as floats: for kernels that go through rows once.
#pragma once

#include <humming/gemm/numbers.cuh>
#include <humming/memory.cuh>
#include <humming/overlap.cuh>

namespace humming {

inline constexpr int kChunk = 8;

/// cvt.f32.f16
__device__ __forceinline__ float f16_to_float(u16 bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

/// How the numbers of a format lie in memory.
template <class Format>
struct Elements;

template <>
struct Elements<F32> {
  using Bits = u32;
  static __device__ __forceinline__ float value(u32 bits) { return __uint_as_float(bits); }
  static __device__ __forceinline__ u32 round(float value) { return __float_as_uint(value); }
};
template <>
struct Elements<F16> {
  using Bits = u16;
  static __device__ __forceinline__ float value(u16 bits) { return f16_to_float(bits); }
  static __device__ __forceinline__ u16 round(float value) { return round_to_f16(value); }
};
template <>
struct Elements<Bf16> {
  using Bits = u16;
  static __device__ __forceinline__ float value(u16 bits) {
    return __uint_as_float(u32(bits) << 16);
  }
  static __device__ __forceinline__ u16 round(float value) { return round_to_bf16(value); }
};

/// Runs of kChunk numbers: kWhole ones at multiples of 16 bytes, others number by number.
template <class Format, bool kWhole>
struct Chunks {
  using Number = Elements<Format>;
  using Bits = typename Number::Bits;
  static constexpr int kBytes = sizeof(Bits);
  static constexpr int kWords = kChunk * kBytes / 4;
  static constexpr int kPerWord = 4 / kBytes;

  /// As they lie in memory.
  struct Raw {
    u32 words[kWords];

    __device__ __forceinline__ float operator[](int i) const {
      return Number::value(static_cast<Bits>(words[i / kPerWord] >> i % kPerWord * 16));
    }
  };

  /// A row's numbers from `from` on, of which `count` are there; the others become 0.
  static __device__ __forceinline__ Raw load(void const* from, int count) {
    Raw raw;
    if constexpr (kWhole) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4)
        load_128_once(raw.words + i, static_cast<u8 const*>(from) + 4 * i);
    } else {
      auto const* const numbers = static_cast<Bits const*>(from);
#pragma unroll
      for (int i = 0; i < kWords; ++i) raw.words[i] = 0;
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        if (i < count) raw.words[i / kPerWord] |= u32(numbers[i]) << i % kPerWord * 16;
    }
    return raw;
  }

  /// Stores the first `count` numbers as they were loaded.
  static __device__ __forceinline__ void store(void* to, int count, Raw const& raw) {
    if constexpr (kWhole) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) store_128(static_cast<u8*>(to) + 4 * i, raw.words + i);
    } else {
      auto* const numbers = static_cast<Bits*>(to);
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        if (i < count) numbers[i] = static_cast<Bits>(raw.words[i / kPerWord] >> i % kPerWord * 16);
    }
  }

  /// Rounds numbers and stores the first `count` of them.
  static __device__ __forceinline__ void store(void* to, int count, float const* from) {
    if constexpr (kWhole) {
      u32 words[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words[i] = 0;
#pragma unroll
        for (int j = 0; j < kPerWord; ++j)
          words[i] |= u32(Number::round(from[i * kPerWord + j])) << j * 16;
      }
#pragma unroll
      for (int i = 0; i < kWords; i += 4) store_128(static_cast<u8*>(to) + 4 * i, words + i);
    } else {
      auto* const numbers = static_cast<Bits*>(to);
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        if (i < count) numbers[i] = Number::round(from[i]);
    }
  }
};

/// Where a thread's chunk is. A CTA is blockDim.x chunks of blockDim.y rows.
struct ChunkPlace {
  i64 row;
  int first;  // number of the row

  static __device__ __forceinline__ ChunkPlace mine() {
    return {i64(blockIdx.x) * blockDim.y + threadIdx.y,
            int(blockIdx.y * blockDim.x + threadIdx.x) * kChunk};
  }
};

}  // namespace humming
