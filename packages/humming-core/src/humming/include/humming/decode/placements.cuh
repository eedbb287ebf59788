// Where a word has the bits of 4-bit floats, if not code after code. Twin of humming/layouts.py.
//
// Magnitude and sign of such a float go to different places of an operand. In planes that costs a
// unit of 16-bit operands two shifts and two LOP3. So bits lie where few instructions bring those of
// a unit into its *form*: a register with every bit where the decoder works on it. The form of a unit
// is the sum of its *moves*: the word rotated by a distance, of which a mask is taken. With two masks
// that costs two instructions; one takes both, if what comes along is known. So some bits are stored as
// their sum with others, their *echoes*.
#pragma once

#include <humming/decode/planes.cuh>

namespace humming {

/// prmt.b32: bytes of a and b, each chosen by the low bits of a nibble. __byte_perm clears the high bits
/// first.
__device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 selectors) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selectors));
  return d;
}

/// lop3.b32: (a ^ b) & c
__device__ __forceinline__ u32 xor_and(u32 a, u32 b, u32 c) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

struct Move {
  int distance;  // to the left
  u32 mask;      // of the form; 0: no move
};

/// Magnitudes at bits 6 to 8, signs at 15. Three units take one move, the fourth takes two, together: 12
/// instructions for 8 codes with the fma, 2 of them shifts to the left, which FMA pipes do.
struct PlacedForBf16 {
  static constexpr int kUnit = 2;
  static constexpr int kMagnitudeAt = 6;
  static constexpr int kMoves = 2;
  static __host__ __device__ constexpr Move move(int part, int number) {
    constexpr Move kTable[4][kMoves] = {{{0, 0x81c081c0}, {}},
                                        {{4, 0x81c081c0}, {}},
                                        {{-6, 0x81c081c0}, {}},
                                        {{6, 0x80c080c0}, {-2, 0x01000100}}};
    return kTable[part][number];
  }
  static constexpr int kEchoes = 2;
  static __host__ __device__ constexpr Move echo(int number) {
    constexpr Move kTable[kEchoes] = {{-8, 0x00030203}, {8, 0x04000400}};
    return kTable[number];
  }
};

/// Magnitudes at bits 9 to 11, signs at 15: 15 instructions, 5 of them shifts to the left.
struct PlacedForF16 {
  static constexpr int kUnit = 2;
  static constexpr int kMagnitudeAt = 9;
  static constexpr int kMoves = 2;
  static constexpr int kEchoes = 0;
  static __host__ __device__ constexpr Move move(int part, int number) {
    constexpr Move kTable[4][kMoves] = {{{0, 0x8e008e00}, {}},
                                        {{3, 0x8e008e00}, {}},
                                        {{9, 0x0e000e00}, {2, 0x80008000}},
                                        {{6, 0x0e000e00}, {1, 0x80008000}}};
    return kTable[part][number];
  }
};

/// For PRMT: the magnitudes of a unit lie in the nibbles of one half of the word, so that they select
/// bytes of a table. Signs are the nibbles' highest bits: element j's at 8j + 7 and 8j + 3.
struct PlacedForBytes {
  static constexpr int kUnit = 4;
  static constexpr int kMagnitudeAt = 0;
  static constexpr int kMoves = 5;
  static constexpr int kEchoes = 0;
  static __host__ __device__ constexpr Move move(int part, int number) {
    constexpr Move kTable[2][kMoves] = {
        {{0, 0x80808087}, {4, 0x700}, {8, 0x70000}, {12, 0x7000000}, {}},
        {{4, 0x80808080}, {-16, 7}, {-12, 0x700}, {-8, 0x70000}, {-4, 0x7000000}}};
    return kTable[part][number];
  }

  /// Of a table's 8 bytes, `low` and `high`, those that the magnitudes of unit `part` select, with the
  /// signs as their highest bits: 7 instructions for both units of a word.
  static __device__ __forceinline__ u32 look_up(u32 word, int part, u32 low, u32 high) {
    u32 const selectors = and_xor(word, 0x77777777u, 0);  // for both units, whatever compilers think
    u32 const bytes = prmt(low, high, part == 0 ? selectors : selectors >> 16);
    return and_xor(part == 0 ? word : word << 4, 0x80808080u, bytes);
  }
};

/// As Planes, with the bits of a word where a placement says.
template <class Places>
struct PlacedPlanes {
  using Placement = Places;
  static constexpr int kBits = 4;
  static constexpr int kUnit = Places::kUnit;
  static constexpr int kSlot = 32 / kUnit;
  static constexpr int kUnits = kGroupCodes / kUnit;
  static constexpr int kWords = 4 * kBits;
  static constexpr int kPerWord = kSlot / kBits;

  /// The form of unit `index`.
  static __device__ __forceinline__ u32 form(const u32 (&words)[kWords], int index) {
    if constexpr (Places::kEchoes != 0) {
      u32 const word = words[index / kPerWord];
      Move const one = Places::move(index % kPerWord, 0), two = Places::move(index % kPerWord, 1);
      if (two.mask != 0)
        return xor_and(moved(word, one.distance), moved(word, two.distance), one.mask | two.mask);
    }
    u32 found = 0;
#pragma unroll
    for (int i = 0; i < Places::kMoves; ++i) {
      Move const move = Places::move(index % kPerWord, i);
      if (move.mask != 0)
        found = and_xor(turned(words[index / kPerWord], move.distance, move.mask), move.mask, found);
    }
    return found;
  }

  /// Adds the codes of unit `index`, one in each slot, to words that don't have them yet.
  static __device__ __forceinline__ void put(u32 (&words)[kWords], int index, u32 slots) {
    u32 const magnitudes = (slots & spread(7, kSlot)) << Places::kMagnitudeAt;
    u32 const form = magnitudes | (slots & spread(8, kSlot)) << (kSlot - kBits);
#pragma unroll
    for (int i = 0; i < Places::kMoves; ++i) {
      Move const move = Places::move(index % kPerWord, i);
      u32 const back = move.distance == 0 ? form & move.mask
                                          : __funnelshift_r(form & move.mask, form & move.mask,
                                                            static_cast<u32>(move.distance) & 31);
      words[index / kPerWord] |= back;
    }
  }

  /// Adds echoes, when all codes are put. Echoes have echoes, in chains of three.
  static __device__ __forceinline__ void finish(u32 (&words)[kWords]) {
    if constexpr (Places::kEchoes != 0) {
#pragma unroll
      for (u32& word : words) {
        u32 const plain = word;
#pragma unroll
        for (int round = 0; round < 3; ++round) {
          u32 found = plain;
#pragma unroll
          for (int i = 0; i < Places::kEchoes; ++i)
            found ^= moved(word, Places::echo(i).distance) & Places::echo(i).mask;
          word = found;
        }
      }
    }
  }

 private:
  /// What a move takes of a word: by a plain shift if no bit comes around.
  static __device__ __forceinline__ u32 turned(u32 word, int distance, u32 mask) {
    u32 const around = distance >= 0 ? (1u << distance) - 1 : ~(~0u >> -distance);
    return (mask & around) == 0 ? moved(word, distance)
                                : __funnelshift_l(word, word, static_cast<u32>(distance) & 31);
  }
};

}  // namespace humming
