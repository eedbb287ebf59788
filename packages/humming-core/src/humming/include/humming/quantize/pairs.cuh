// Pairs of 16-bit numbers that become codes of E2m1: two at a time, where a device has the
// instructions for it.
#pragma once

#include <humming/decode/halves.cuh>
#include <humming/quantize/convert.cuh>
#include <humming/quantize/reader.cuh>

namespace humming {

/// max.xorsign.abs.bf16x2
__device__ __forceinline__ u32 larger_signed(u32 a, u32 b, Bf16) {
  u32 found;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}
/// max.xorsign.abs.f16x2
__device__ __forceinline__ u32 larger_signed(u32 a, u32 b, F16) {
  u32 found;
  asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}
/// min.xorsign.abs.bf16x2
__device__ __forceinline__ u32 smaller_signed(u32 a, u32 b) {
  u32 found;
  asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b));
  return found;
}

/// Numbers cut to what leads to the largest code; divisor is in kDivisorUnit. Not of f16, which has
/// no number between 2.5 and 3.5 times a very small one.
__device__ __forceinline__ Octet<Bf16> cut(Octet<Bf16> numbers, float divisor) {
  u32 const limit = round_pair(divisor * kE2m1Cut, divisor * kE2m1Cut, Bf16{});
#pragma unroll
  for (u32& pair : numbers.words) pair = smaller_signed(pair, limit);
  return numbers;
}

/// Codes of numbers that are at most six times a power of two, as they are or over that.
///
/// As in e2m1_code(), a number whose last place is a code's is added to each: where its binade begins
/// times a power of two. What the exponent of that, added to the sum's last bits, is too much or too
/// little for the scale is made up for by a few more last places in the factor.
template <class Source>
struct PairCodes {
  static constexpr int kMantissa = Source::kMantissa;
  static constexpr u32 kBinades = twice(0x10000u - (1u << kMantissa));  // and signs

  u32 inverse, least, factor;

  __device__ __forceinline__ explicit PairCodes(float scale) {
    float first = scale;
    if constexpr (is_same<Source, F16>) {
      // The inverse may be beyond f16. Where it is, numbers have few bits, and become no smaller.
      float const most = fminf(PowerReciprocal(scale).inverse, 1 << 15);
      inverse = round_pair(most, most, Source{});
      first = scale * most;
    }
    least = round_pair(first, first, Source{});
    // Twice its exponent, which is what of_pair() has too much, modulo 16; a last place is 1 / 2.
    u32 const excess = least >> (kMantissa - 1) & 15;
    float const places = (1 << kMantissa) + static_cast<int>(16 - excess);
    factor = round_pair(places / 2, places / 2, Source{});
  }

  /// A number's code in the lowest nibble of each half, and its sign at the top.
  __device__ __forceinline__ u32 of_pair(u32 pair) const {
    if constexpr (is_same<Source, F16>) pair = Halves<Source>::fma(pair, inverse, kMinusZeros);
    u32 const begin = larger_signed(pair & kBinades, least, Source{});
    return Halves<Source>::fma(begin, factor, pair) + (begin >> (kMantissa - 1));
  }
  __device__ __forceinline__ u32 of(Octet<Source> const& numbers) const {
    Octet<Source> found;
#pragma unroll
    for (int i = 0; i < 4; ++i) found.words[i] = of_pair(numbers.words[i]);
    u32 const(&w)[4] = found.words;
    u32 const low = __byte_perm(w[0], w[1], 0x6240), high = __byte_perm(w[2], w[3], 0x6240);
    u32 const even = __byte_perm(low, high, 0x5410), odd = __byte_perm(low, high, 0x7632);
    return found.template with_signs<4>((even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u));
  }
};

}  // namespace humming
