// Bit planes: where the bits of a lane's codes lie in its words. Twin of humming/layouts.py.
//
// A lane holds *groups* of 128 codes of b bits, b 16-byte loads each. It takes them out in *units*
// of u codes, one per slot of 32 / u bits of a register. A code is cut into planes of 8, 4, 2 or 1
// bits, the widest first and from the low end up: 7 = 4 + 2 + 1. The plane that starts at bit o of
// the codes has the words 4 * o to 4 * (o + p) - 1, p its width. A word has the parts of
// 32 / (u * p) units: element j of the i-th of them at bits (32 / u) * j + p * i.
//
// So a unit is taken out of a plane by one shift and one LOP3, whose third input joins planes.
#pragma once

#include <humming/std.cuh>

namespace humming {

inline constexpr int kGroupCodes = 128;

/// `value` in each slot of `slot` bits of a word.
__host__ __device__ constexpr u32 spread(u32 value, int slot) {
  u32 word = 0;
  for (int at = 0; at < 32; at += slot) word |= value << at;
  return word;
}

/// lop3.b32: (a & b) ^ c. Written in C++, it becomes two LOP3 where b and c are constants, for the
/// sake of a register; such a constant is kept for a whole loop, though.
__device__ __forceinline__ u32 and_xor(u32 a, u32 b, u32 c) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// A word moved up by kDistance bits, or down if that is negative.
template <int kDistance>
__device__ __forceinline__ u32 moved(u32 word) {
  if constexpr (kDistance >= 0) {
    return word << kDistance;
  } else {
    return word >> -kDistance;
  }
}

template <int kWidth, int kUnitCodes>
struct Planes {
  static_assert(1 <= kWidth && kWidth <= 8, "Planes: codes have 1 to 8 bits");
  static_assert(kUnitCodes == 2 || kUnitCodes == 4 || kUnitCodes == 8, "Planes: units of 2, 4, 8");
  static_assert(kWidth <= 32 / kUnitCodes, "Planes: a code does not fit into its slot");

  static constexpr int kBits = kWidth;
  static constexpr int kUnit = kUnitCodes;
  static constexpr int kSlot = 32 / kUnit;
  static constexpr int kUnits = kGroupCodes / kUnit;
  static constexpr int kWords = 4 * kBits;

  /// Width of the plane that starts at bit `start` of the codes.
  static __host__ __device__ constexpr int width(int start) {
    int plane = 8;
    while (plane > kBits - start) plane /= 2;
    return plane;
  }

  /// Bits kLow to kHigh - 1 of the codes of unit kIndex, at bit kTo of each slot, xor `onto`.
  ///
  /// With wider slots than the unit's own, its elements are dealt out to kWide / kSlot registers:
  /// those with kPart as their index modulo that number are taken.
  template <int kIndex, int kLow, int kHigh, int kTo, int kWide = kSlot, int kPart = 0>
  static __device__ __forceinline__ u32 field(const u32 (&words)[kWords], u32 onto) {
    static_assert(0 <= kIndex && kIndex < kUnits, "Planes::field: no such unit");
    static_assert(0 <= kLow && kHigh <= kBits && 0 <= kTo && kTo + kHigh - kLow <= kWide);
    return rest<kIndex, kLow, kHigh, kTo, kWide, kPart, 0>(words, onto);
  }

 private:
  template <int kIndex, int kLow, int kHigh, int kTo, int kWide, int kPart, int kStart>
  static __device__ __forceinline__ u32 rest(const u32 (&words)[kWords], u32 onto) {
    if constexpr (kStart < kHigh) {
      constexpr int kPlane = width(kStart);
      constexpr int kFrom = kLow > kStart ? kLow : kStart;
      constexpr int kEnd = kStart + kPlane;
      constexpr int kCount = (kHigh < kEnd ? kHigh : kEnd) - kFrom;
      if constexpr (kCount > 0) {
        constexpr int kPerWord = kSlot / kPlane;
        constexpr int kWord = 4 * kStart + kIndex / kPerWord;
        constexpr int kAt = kSlot * kPart + kPlane * (kIndex % kPerWord) + kFrom - kStart;
        constexpr int kTarget = kTo + kFrom - kLow;
        constexpr u32 kMask = spread(((1u << kCount) - 1) << kTarget, kWide);
        u32 const word = moved<kTarget - kAt>(words[kWord]);
        onto = kMask == ~0u ? word ^ onto : and_xor(word, kMask, onto);
      }
      return rest<kIndex, kLow, kHigh, kTo, kWide, kPart, kEnd>(words, onto);
    } else {
      return onto;
    }
  }
};

}  // namespace humming
