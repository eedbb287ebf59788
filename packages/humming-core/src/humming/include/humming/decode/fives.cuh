// Where codes of 3 bits lie that become 16-bit operands. Twin of humming/layouts.py.
//
// In planes of 2 and 1 bits a unit takes two LOP3, and mostly two shifts. Here five units lie in a word,
// whole: the codes of the one at place p at bits 3 * p to 3 * p + 2 of the word's halves. A tile of 16
// units has three words: two that would be of its plane of 2 bits and one of 1 bit, so that loads are
// the same. Units 4 * w to 4 * w + 3 of a tile are at places 0 to 3 of word w, unit 12 + w at place 4.
// Unit 15 has the bits that are left: bit w of its codes is bit 15 of the halves of word w.
#pragma once

#include <humming/decode/planes.cuh>

namespace humming {

struct Fives {
  static constexpr int kBits = 3;
  static constexpr int kUnit = 2;
  static constexpr int kSlot = 32 / kUnit;
  static constexpr int kUnits = kGroupCodes / kUnit;
  static constexpr int kWords = 4 * kBits;

  /// As that of Planes. Places that lie low are taken without a shift, and as many more by each shift.
  /// That of the last ones is one bit less for word 1 and two for word 2: then the bits of unit 15 come
  /// to where its codes have them.
  template <int kRoom>
  struct Low {
    static constexpr int kRun = kRoom / kBits;
    static constexpr int kPlaces = kBits * (kRun - 1) + 1;
    static __host__ __device__ constexpr int place(int index) {
      bool const moves = place_of(index) / kRun == kLeft / kRun && !is_left(index);
      return kBits * (place_of(index) % kRun) + (moves ? word_of(index) : 0);
    }
    static __host__ __device__ constexpr int to(int place) { return place; }
  };

  /// All bits of the codes of unit `index`, xor `onto`.
  static __device__ __forceinline__ u32 field(const u32 (&words)[kWords], int index,
                                              Field const& field, u32 onto) {
    int const tile = index / kTileUnits;
    if (!is_left(index)) {
      u32 const word = moved(words[at(tile, word_of(index))], field.to - kBits * place_of(index));
      return and_xor(word, spread(7u << field.to, kSlot), onto);
    }
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit) {
      int const to = field.to + bit;
      onto = and_xor(moved(words[at(tile, bit)], to - kBits * kLeft), spread(1u << to, kSlot), onto);
    }
    return onto;
  }

  /// Adds the codes of unit `index`, one in each slot, to words that don't have them yet.
  static __device__ __forceinline__ void put(u32 (&words)[kWords], int index, u32 slots) {
    int const tile = index / kTileUnits;
    if (!is_left(index)) {
      words[at(tile, word_of(index))] |= slots << kBits * place_of(index);
      return;
    }
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit)
      words[at(tile, bit)] |= (slots >> bit & spread(1, kSlot)) << kBits * kLeft;
  }

  /// Called when all codes are put.
  static __device__ __forceinline__ void finish(u32 (&)[kWords]) {}

 private:
  static constexpr int kTileUnits = 16;
  static constexpr int kLeft = 5;  // the place of what is left

  static __host__ __device__ constexpr bool is_left(int index) {
    return index % kTileUnits == kTileUnits - 1;
  }
  static __host__ __device__ constexpr int place_of(int index) {
    return is_left(index) ? kLeft : index % kTileUnits < 12 ? index % 4 : 4;
  }
  static __host__ __device__ constexpr int word_of(int index) {
    return index % kTileUnits < 12 ? index % kTileUnits / 4 : index % 4;
  }
  /// Where a word of a tile is.
  static __host__ __device__ constexpr int at(int tile, int word) {
    return word < 2 ? 2 * tile + word : 8 + tile;
  }
};

}  // namespace humming
