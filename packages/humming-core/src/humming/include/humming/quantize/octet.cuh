// Eight neighbours of a row: what one thread scales and stores at a time.
#pragma once

#include <humming/chunks.cuh>
#include <humming/quantize/codes.cuh>

namespace humming {

/// ld.global.v4.u32 if `wanted`, else `to` stays as it is; with L1::no_allocate if a warp wants
/// whole sectors at once. Several of them in a row are all under way before the first has come.
template <bool kWholeSectors>
__device__ __forceinline__ void load_128_if(u32* to, void const* from, bool wanted) {
  if constexpr (kWholeSectors) {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.u32 wanted, %5, 0;\n"
        "@wanted ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "l"(from), "r"(u32(wanted)));
  } else {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.u32 wanted, %5, 0;\n"
        "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(to[0]), "+r"(to[1]), "+r"(to[2]), "+r"(to[3])
        : "l"(from), "r"(u32(wanted)));
  }
}

/// st.global.v2.u32 or st.global.u32 if `wanted`, of eight codes.
template <int kBytes>
__device__ __forceinline__ void store_if(void* to, u64 codes, bool wanted) {
  static_assert(kBytes == 8 || kBytes == 4, "codes of a byte or of half a one");
  if constexpr (kBytes == 8) {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.u32 wanted, %3, 0;\n"
        "@wanted st.global.v2.u32 [%0], {%1, %2};\n"
        "}" ::"l"(to), "r"(u32(codes)), "r"(u32(codes >> 32)), "r"(u32(wanted))
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred wanted;\n"
        "setp.ne.u32 wanted, %2, 0;\n"
        "@wanted st.global.u32 [%0], %1;\n"
        "}" ::"l"(to), "r"(u32(codes)), "r"(u32(wanted))
        : "memory");
  }
}

/// Format: F16, Bf16 or F32.
template <class Format>
struct Octet {
  static constexpr int kBytes = (Format::kBits + 7) / 8;
  static constexpr int kWords = 2 * kBytes;
  using Element = Chosen<kBytes == 4, u32, u16>;

  u32 words[kWords];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }
  /// The eight numbers at `from`, a multiple of 16 bytes, if they are wanted; else zeros. kNext:
  /// the next lane's lie behind them.
  template <bool kNext>
  __device__ __forceinline__ void load_if(Element const* from, bool wanted) {
    clear();
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      load_128_if<kNext && kBytes == 2>(words + i, from + i * 4 / kBytes, wanted);
    }
  }
  /// Moves all numbers one place down, and `bits` into the last place.
  __device__ __forceinline__ void push(u32 bits) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      u32 const next = i + 1 < kWords ? words[i + 1] : bits;
      words[i] = kBytes == 4 ? next : words[i] >> 16 | next << 16;
    }
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

  /// Bytes whose highest bits are the signs of the even elements, and of the odd ones.
  __device__ __forceinline__ void sign_bytes(u32& even, u32& odd) const {
    if constexpr (kBytes == 4) {
      even = __byte_perm(__byte_perm(words[0], words[2], 0x0073),
                         __byte_perm(words[4], words[6], 0x0073), 0x5410);
      odd = __byte_perm(__byte_perm(words[1], words[3], 0x0073),
                        __byte_perm(words[5], words[7], 0x0073), 0x5410);
    } else {
      u32 const low = __byte_perm(words[0], words[1], 0x7351);
      u32 const high = __byte_perm(words[2], words[3], 0x7351);
      even = __byte_perm(low, high, 0x5410);
      odd = __byte_perm(low, high, 0x7632);
    }
  }
  /// Codes of kBits in nibbles, with their signs.
  template <int kBits>
  __device__ __forceinline__ u32 with_signs(u32 codes) const {
    u32 even, odd;
    sign_bytes(even, odd);
    codes |= odd >> (4 - kBits) & 0x10101010u << (kBits - 1);
    return codes | (even >> (8 - kBits) & 0x01010101u << (kBits - 1));
  }

  /// Codes of x / divisor, whatever both are: in bytes or, if they are that narrow, in nibbles.
  template <class Code>
  __device__ __forceinline__ u64 codes_of_any(float divisor) const {
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
