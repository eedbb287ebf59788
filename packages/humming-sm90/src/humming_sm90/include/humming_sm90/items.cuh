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

/// The items of a launch: those of a split-K Schedule. Producers and consumers walk through them side
/// by side. Parts of a tile are neighbours, so that they are done at the same time.
template <class P>
class Items {
 public:
  /// Every thread calls it. prefix: [experts + 1] in shared memory, if rows are grouped.
  __device__ __forceinline__ Items(Arguments const& args, int* prefix)
      : tiles_(args, prefix), args_(args) {}

  /// Calls `body` with each item of this CTA.
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

 private:
  Tiles<P, P::kTokens> tiles_;
  Arguments const& args_;
};

}  // namespace humming::sm90
