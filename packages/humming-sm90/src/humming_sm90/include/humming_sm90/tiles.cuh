// Which tiles a CTA computes, and which rows of x and which weight each of them has.
#pragma once

#include <humming_sm90/sizes.cuh>

namespace humming::sm90 {

struct Tile {
  int expert, column;
  Index first;  // row of x and of the result
  int count;    // rows that there are, at most those of a tile
};

/// The tiles of a launch, of `kTokens` rows of x. Producers and consumers walk through them side by
/// side.
template <class P, int kTokens = kTileM, class Args = Arguments>
class Tiles {
  static constexpr bool kMasked = P::kKind == GemmKind::kGroupedMasked;
  static constexpr bool kGrouped = kMasked || P::kKind == GemmKind::kGroupedContiguous;
  static_assert(kGrouped || P::kKind == GemmKind::kDense, "Tiles: no such kind of GEMM here");

 public:
  /// Every thread calls it. prefix: [experts + 1] in shared memory, if rows are grouped.
  __device__ __forceinline__ Tiles(Args const& args, int* prefix)
      : args_(args), prefix_(prefix), columns_((args.n + P::kTileN - 1) / P::kTileN) {
    if constexpr (kGrouped) {
      if (threadIdx.x < 32) walk_groups(groups(), args.experts, kTokens, threadIdx.x, prefix);
      __syncthreads();
      rows_ = prefix[args.experts];
    } else {
      rows_ = (args.m + kTokens - 1) / kTokens;
    }
  }

  /// Calls `body` with each tile of this CTA: the items of a data-parallel Schedule. Tiles are
  /// counted in 32 bits, since a result of more would fit into no memory; divisions of 64 bits take
  /// registers that who copies does not have.
  template <class Body>
  __device__ __forceinline__ void for_each(Body const& body) const {
    u32 const tiles = count();
    for (u32 number = blockIdx.x; number < tiles; number += gridDim.x) body(tile(number));
  }

  /// Number of all tiles.
  __device__ __forceinline__ u32 count() const { return u32(rows_) * columns_; }

  __device__ __forceinline__ Tile tile(u32 number) const {
    if constexpr (kGrouped) {
      int const expert = find_group(prefix_, args_.experts, number / columns_);
      int const before = prefix_[expert], rows = prefix_[expert + 1] - before;
      Place const place =
          place_in_group(P::kRaster, expert, number - before * columns_, rows, columns_);
      RowRange const range = tile_rows(groups()(expert), place.row, kTokens);
      return {expert, place.column, range.begin, int(range.end - range.begin)};
    } else {
      Place const place = place_in_group(P::kRaster, 0, number, rows_, columns_);
      Index const first = Index(place.row) * kTokens;
      return {0, place.column, first, int(smaller(kTokens, args_.m - first))};
    }
  }

 private:
  __device__ __forceinline__ auto groups() const {
    if constexpr (kMasked) {
      return MaskedRows<i32>{args_.groups, args_.m};
    } else {
      return ContiguousRows<i32>{args_.groups, args_.m};
    }
  }

  Args const& args_;
  int* prefix_;
  int columns_, rows_;
};

}  // namespace humming::sm90
