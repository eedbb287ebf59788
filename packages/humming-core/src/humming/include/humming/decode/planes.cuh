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

/// `value` in each slot of `slot` bits of a word, 4, 8, 16 or 32.
__host__ __device__ constexpr u32 spread(u32 value, int slot) {
  return value * (slot == 4 ? 0x11111111u : slot == 8 ? 0x01010101u : slot == 16 ? 0x10001u : 1u);
}

/// lop3.b32: (a & b) ^ c. Written in C++, it becomes two LOP3 where b and c are constants, for the
/// sake of a register; such a constant is kept for a whole loop, though.
__device__ __forceinline__ u32 and_xor(u32 a, u32 b, u32 c) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// A word moved up by `distance` bits, or down if that is negative.
__device__ __forceinline__ u32 moved(u32 word, int distance) {
  return distance >= 0 ? word << distance : word >> -distance;
}

/// Bits of codes: which, and where in a register they go.
struct Field {
  int low, high;  // bits low to high - 1 of each code
  int to;         // at this bit of each slot
  int slot = 0;   // bits of a slot, if not the unit's own
  int part = 0;   // then, of the unit's elements, those with this index modulo slot / kSlot
};

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

  /// Where codes go that may lie anywhere in the lowest `kRoom` bits of their slots: several units of
  /// a word, a *run*, share one shift of the widest plane.
  template <int kRoom>
  struct Low {
    static constexpr int kPerWord = kSlot / width(0);
    static constexpr int kRun = (kRoom - kBits) / width(0) + 1;
    static constexpr int kPlaces = kRun < kPerWord ? kRun : kPerWord;
    /// Of the kPlaces different ones, that of unit `index`.
    static __host__ __device__ constexpr int place(int index) { return index % kPerWord % kRun; }
    /// The lowest bit of codes there.
    static __host__ __device__ constexpr int to(int place) { return width(0) * place; }
  };

  /// A field of the codes of unit `index`, xor `onto`. With wider slots than the unit's own, its
  /// elements are dealt out to several registers.
  ///
  /// All but the words are constants once the caller's loops are unrolled. They are arguments and not
  /// parameters of a template, since compilers take twice as long for those.
  static __device__ __forceinline__ u32 field(const u32 (&words)[kWords], int index,
                                              Field const& field, u32 onto) {
    if constexpr (kBits & 8) onto = plane<8, 0>(words, index, field, onto);
    if constexpr (kBits & 4) onto = plane<4, (kBits & 8)>(words, index, field, onto);
    if constexpr (kBits & 2) onto = plane<2, (kBits & 12)>(words, index, field, onto);
    if constexpr (kBits & 1) onto = plane<1, (kBits & 14)>(words, index, field, onto);
    return onto;
  }

  /// Adds the codes of unit `index`, one in each slot, to words that don't have them yet.
  static __device__ __forceinline__ void put(u32 (&words)[kWords], int index, u32 slots) {
    if constexpr (kBits & 8) put_plane<8, 0>(words, index, slots);
    if constexpr (kBits & 4) put_plane<4, (kBits & 8)>(words, index, slots);
    if constexpr (kBits & 2) put_plane<2, (kBits & 12)>(words, index, slots);
    if constexpr (kBits & 1) put_plane<1, (kBits & 14)>(words, index, slots);
  }

  /// Called when all codes are put.
  static __device__ __forceinline__ void finish(u32 (&)[kWords]) {}

 private:
  /// What the plane of kPlane bits from bit kStart of the codes on has of a field.
  template <int kPlane, int kStart>
  static __device__ __forceinline__ u32 plane(const u32 (&words)[kWords], int index,
                                              Field const& field, u32 onto) {
    constexpr int kPerWord = kSlot / kPlane, kEnd = kStart + kPlane;
    int const from = field.low > kStart ? field.low : kStart;
    int const count = (field.high < kEnd ? field.high : kEnd) - from;
    if (count <= 0) return onto;
    int const at = kSlot * field.part + kPlane * (index % kPerWord) + from - kStart;
    int const target = field.to + from - field.low;
    int const slot = field.slot == 0 ? kSlot : field.slot;
    u32 const mask = spread(((1u << count) - 1) << target, slot);
    u32 const word = moved(words[4 * kStart + index / kPerWord], target - at);
    return mask == ~0u ? word ^ onto : and_xor(word, mask, onto);
  }

  template <int kPlane, int kStart>
  static __device__ __forceinline__ void put_plane(u32 (&words)[kWords], int index, u32 slots) {
    constexpr int kPerWord = kSlot / kPlane;
    int const to = kPlane * (index % kPerWord);
    u32 const mask = spread(((1u << kPlane) - 1) << to, kSlot);
    words[4 * kStart + index / kPerWord] |= moved(slots, to - kStart) & mask;
  }
};

}  // namespace humming
