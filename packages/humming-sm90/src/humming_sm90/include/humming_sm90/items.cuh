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

/// The items of a launch: those of a split-K Schedule. Parts of a tile are neighbours, so that they are
/// done at the same time. Who copies finds them, which takes hundreds of cycles where rows are grouped,
/// and tells who multiplies, who would wait for it.
template <class P>
class Items {
 public:
  /// Every thread calls it. prefix: [experts + 1] in shared memory, if rows are grouped.
  __device__ __forceinline__ Items(Arguments const& args, int* prefix)
      : tiles_(args, prefix), args_(args) {}

  /// Calls `body` with each item of this CTA, as it is found.
  template <class Body>
  __device__ __forceinline__ void for_each(Body const& body) const {
    u32 const steps = args_.steps();
    // Known where nothing is split, which saves who copies divisions.
    u32 const parts = P::kSplits == 1 || P::kSplits < steps ? P::kSplits : steps;
    u32 const length = steps / parts, longer = steps - length * parts;
    u32 const count = tiles_.count() * parts;
    for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
      u32 const tile = number / parts, part = number - tile * parts;
      u32 const begin = part * length + (part < longer ? part : longer);
      u32 const end = begin + length + (part < longer);
      body(Item{tiles_.tile(tile), tile, int(part), int(parts), int(begin), int(end)});
    }
  }

  /// Calls `body` with each item of this CTA, as it is told at the first of its stages, where `ring`
  /// is before. Every thread that multiplies calls it.
  template <class Body>
  __device__ __forceinline__ void for_each_told(Shared<P> const& shared, Ring<P::kStages> const& ring,
                                                Body const& body) const {
    if constexpr (P::kSplits > 1) {
      for_each(body);
    } else {
      u32 const count = tiles_.count();
      for (u32 number = blockIdx.x; number < count; number += gridDim.x) {
        mbarrier_wait(shared.full(ring.stage), ring.parity);
        u32 words[4];
        load_shared_128(words, shared.told(ring.stage));
        Tile const tile{int(words[0]), int(words[1]), Index(words[2]), int(words[3] / 2),
                        bool(words[3] % 2)};
        body(Item{tile, number, 0, 1, 0, args_.steps()});
      }
    }
  }

  /// Tells an item that begins at a stage; an arrival at the stage's barrier follows.
  static __device__ __forceinline__ void tell(Shared<P> const& shared, u32 stage, Tile const& tile) {
    if constexpr (P::kSplits == 1) {
      u32 const words[4] = {u32(tile.expert), u32(tile.column), u32(tile.first),
                            2 * u32(tile.count) + tile.alone};
      store_shared_128(shared.told(stage), words);
    }
  }

 private:
  Tiles<P, P::kTokens> tiles_;
  Arguments const& args_;
};

}  // namespace humming::sm90
