// What the CTAs of a launch compute, one item after the other: tiles, or parts of K of tiles.
#pragma once

#include <humming_sm90/tiles.cuh>

namespace humming::sm90 {

/// Steps [begin, end) of a tile: part number `part` of `parts`.
struct Item {
  Tile tile;
  u32 number;  // of the tile
  int part, parts, begin, end;
};

/// The items of a launch: those of a split-K Schedule in units of 128 of K, which are kSteps steps. Parts
/// of a tile are neighbours, so that they are done at the same time. Who copies finds them, which takes
/// hundreds of cycles where rows are grouped, and tells who multiplies, who would wait for it.
template <class P, class Args, int kTokens, int kEven, int kSteps>
class ItemsOf {
 public:
  /// Every thread calls it. prefix: [experts + 1] in shared memory, if rows are grouped.
  __device__ __forceinline__ ItemsOf(Args const& args, int* prefix)
      : tiles_(args, prefix), units_(args.units()) {}

  /// Calls `body` with each item of this CTA, as it is found.
  template <class Body>
  __device__ __forceinline__ void for_each(Body const& body) const {
    // Known where nothing is split, which saves who copies a division and what it leaves in registers.
    u32 const parts = P::kSplits == 1 || P::kSplits < units_ ? P::kSplits : units_;
    u32 const length = units_ / parts, longer = units_ - length * parts;
    u32 const count = tiles_.count() * parts;
    for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
      u32 const tile = P::kSplits == 1 ? number : number / parts, part = number - tile * parts;
      u32 const begin = part * length + (part < longer ? part : longer);
      u32 const end = begin + length + (part < longer);
      body(Item{tiles_.tile(tile), tile, int(part), int(parts), int(kSteps * begin),
                int(kSteps * end)});
    }
  }

  /// Calls `body` with each item of this CTA, as it is told at the first of its stages, where `ring`
  /// is before. Every thread that multiplies calls it.
  template <class Shared, class Ring, class Body>
  __device__ __forceinline__ void for_each_told(Shared const& shared, Ring const& ring,
                                                Body const& body) const {
    if constexpr (P::kSplits > 1) {
      for_each(body);
    } else {
      u32 const count = tiles_.count();
      int const steps = kSteps * units_;
      for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
        mbarrier_wait(shared.full(ring.stage), ring.parity);
        u32 words[4];
        load_shared_128(words, shared.told(ring.stage));
        Tile const tile{int(words[0]), int(words[1]), Index(words[2]), int(words[3] / 2),
                        words[3] % 2 != 0};
        body(Item{tile, number, 0, 1, 0, steps});
      }
    }
  }

  /// Whether L2 should take weights as what is read once. Where there are few tiles, it may be full of
  /// what others wrote: such weights leave that there, and need not wait until it is in memory (H200,
  /// 8192 x 8192 bytes after 512 MB were written: 23.3 us, 25.9 otherwise; after as much was read: 19.8
  /// either way). Of many tiles some read the same weights later (256 experts of 7168 x 2048, 128 rows
  /// each: 1479 us, 1291 otherwise).
  __device__ __forceinline__ bool read_once() const {
    return tiles_.count() <= kFewTiles * gridDim.x;
  }

  /// Tells an item that begins at a stage; an arrival at the stage's barrier follows.
  template <class Shared>
  static __device__ __forceinline__ void tell(Shared const& shared, u32 stage, Tile const& tile) {
    if constexpr (P::kSplits == 1) {
      u32 const words[4] = {u32(tile.expert), u32(tile.column), u32(tile.first),
                            2 * u32(tile.count) + tile.alone};
      store_shared_128(shared.told(stage), words);
    }
  }

 private:
  static constexpr u32 kFewTiles = 4;  // of a CTA

  Tiles<P, kTokens, Args, kEven> tiles_;
  int units_;
};

template <class P>
using Items = ItemsOf<P, Arguments, P::kTokens, 0, kUnitK / kStepK>;

}  // namespace humming::sm90
