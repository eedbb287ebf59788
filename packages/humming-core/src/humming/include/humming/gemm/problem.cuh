// Which tiles there are, and which rows, results and weights a tile has, for each kind of GEMM.
#pragma once

#include <humming/gemm/sizes.cuh>

namespace humming {

/// What a CTA knows of the problem. Its tables lie in shared memory.
template <class P>
class Tiles {
  using S = Sizes<P>;
  static constexpr bool kIndexed = P::kKind == GemmKind::kIndexed;
  static constexpr bool kGrouped =
      P::kKind == GemmKind::kGroupedContiguous || P::kKind == GemmKind::kGroupedMasked;

 public:
  /// sources, targets: [kTileM]; prefix: [experts + 1], where rows are grouped.
  __device__ __forceinline__ Tiles(GemmArguments const& args, int* sources, int* targets,
                                   int* prefix)
      : args_(args),
        sources_(sources),
        targets_(targets),
        prefix_(prefix),
        columns_((args.n + S::kTileN - 1) / S::kTileN) {
    if constexpr (kGrouped) {
      if (threadIdx.x < 32) {
        if constexpr (P::kKind == GemmKind::kGroupedContiguous) {
          walk_groups(contiguous(), args.experts, S::kTileM, threadIdx.x, prefix);
        } else {
          walk_groups(masked(), args.experts, S::kTileM, threadIdx.x, prefix);
        }
      }
      __syncthreads();
      rows_ = prefix[args.experts];
    } else if constexpr (kIndexed) {
      rows_ = *args.row_tiles;
    } else {
      rows_ = (args.m + S::kTileM - 1) / S::kTileM;
    }
  }

  /// Number of all tiles.
  __device__ __forceinline__ Index count() const { return Index(rows_) * columns_; }

  struct Tile {
    int expert, column;
    Index first;
    int count;
  };

  /// Tile number `number`; every thread of the CTA calls it, behind a barrier. After the next
  /// barrier the tables are those of the tile.
  __device__ __forceinline__ Tile tile(Index number) const {
    if constexpr (kGrouped) {
      Place const place = place_tile(P::kRaster, prefix_, args_.experts, columns_, number);
      RowRange group;
      if constexpr (P::kKind == GemmKind::kGroupedContiguous) {
        group = contiguous()(place.group);
      } else {
        group = masked()(place.group);
      }
      RowRange const rows = tile_rows(group, place.row, S::kTileM);
      return {place.group, place.column, rows.begin, int(rows.end - rows.begin)};
    } else {
      // With one row of tiles, as there is for few tokens, there is nothing to compute.
      u32 const tile = static_cast<u32>(number);  // there are as many CTAs, or fewer slots
      Place const place = rows_ == 1 ? Place{0, 0, int(number)}
                                     : place_in_group(P::kRaster, 0, tile, rows_, columns_);
      Index const first = Index(place.row) * S::kTileM;
      if constexpr (kIndexed) {
        for (int row = threadIdx.x; row < S::kTileM; row += S::kThreads) {
          int const slot = args_.slots[first + row];
          int const source = int(source_row(slot, args_.m, args_.top_k));
          sources_[row] = source;
          targets_[row] = source < 0 ? -1 : slot;
        }
        return {args_.groups[place.row], place.column, 0, S::kTileM};
      } else {
        return {0, place.column, first, int(smaller(S::kTileM, args_.m - first))};
      }
    }
  }

 private:
  __device__ __forceinline__ ContiguousRows<i32> contiguous() const {
    return {args_.groups, args_.m};
  }
  __device__ __forceinline__ MaskedRows<i32> masked() const { return {args_.groups, args_.m}; }

  GemmArguments const& args_;
  int* sources_;
  int* targets_;
  int* prefix_;
  int columns_, rows_;
};

}  // namespace humming
