// Eight neighbours of a row: what one thread loads, scales and stores at a time.
#pragma once

#include <humming/memory.cuh>
#include <humming/quantize/codes.cuh>

namespace humming {

/// Format: F16, Bf16 or F32.
template <class Format>
struct Octet {
  static constexpr int kBytes = (Format::kBits + 7) / 8;
  static constexpr int kWords = 2 * kBytes;
  using Element = Chosen<kBytes == 4, u32, u16>;

  u32 words[kWords];

  /// Elements 8 * number and on of a row of k; zeros behind its end.
  __device__ __forceinline__ void load(Element const* row, i64 number, i64 k, bool is_aligned) {
    Element const* const from = row + 8 * number;
    if (is_aligned && 8 * number + 8 <= k) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) load_128(words + i, from + i * 4 / kBytes);
    } else {
      u32 parts[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) parts[i] = 8 * number + i < k ? from[i] : 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        words[i] = kBytes == 4 ? parts[i] : parts[2 * i % 8] | parts[(2 * i + 1) % 8] << 16;
      }
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }

  __device__ __forceinline__ float value(int i) const {
    if constexpr (kBytes == 4) {
      return __uint_as_float(words[i]);
    } else if constexpr (is_same<Format, Bf16>) {
      return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
    } else {
      return f16_to_float(static_cast<u16>(words[i / 2] >> i % 2 * 16));
    }
  }

  /// Bits of the largest magnitude; above kInfinity if there is a NaN.
  __device__ __forceinline__ u32 peak() const {
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) found = max(found, magnitude_bits(value(i)));
    return found;
  }

  /// Bytes whose highest bits are the signs of elements 4 * half and on.
  __device__ __forceinline__ u32 signs(int half) const {
    if constexpr (kBytes == 4) {
      u32 const* const four = words + 4 * half;
      u32 const low = __byte_perm(four[0], four[1], 0x0073);
      return __byte_perm(low, __byte_perm(four[2], four[3], 0x0073), 0x5410);
    } else {
      return __byte_perm(words[2 * half], words[2 * half + 1], 0x7531);
    }
  }

  /// Codes of the quotients, in bytes or, if they are that narrow, in nibbles.
  template <class Code>
  __device__ __forceinline__ u64 codes(float divisor, bool is_usual) const {
    return is_usual ? usual<Code>(Divisor<Code>(divisor)) : any<Code>(divisor);
  }

  template <class Code>
  __device__ __forceinline__ u64 usual(Divisor<Code> const& divisor) const {
    constexpr u32 kBytesOfOnes = 0x01010101u;
    u32 halves[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32 four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = divisor.code(value(4 * half + i));
      u32 const low = __byte_perm(four[0], four[1], 0x0040);
      u32 const bytes = __byte_perm(low, __byte_perm(four[2], four[3], 0x0040), 0x5410);
      if constexpr (Codes<Code>::kTwosComplement) {
        halves[half] = bytes & kBytesOfOnes * ((1u << Code::kBits) - 1);
      } else {
        halves[half] = bytes | (signs(half) & 0x80808080u) >> (8 - Code::kBits);
      }
    }
    if constexpr (Code::kBits > 4) return halves[0] | u64(halves[1]) << 32;
    return __byte_perm(halves[0] | halves[0] >> 4, halves[1] | halves[1] >> 4, 0x6420);
  }

  template <class Code>
  __device__ __forceinline__ u64 any(float divisor) const {
    constexpr int kWidth = Code::kBits > 4 ? 8 : 4;
    u64 found = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      found |= u64(code_of_any<Code>(value(i), divisor)) << kWidth * i;
    }
    return found;
  }
};

}  // namespace humming
