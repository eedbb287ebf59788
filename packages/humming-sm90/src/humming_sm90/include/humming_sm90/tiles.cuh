// Which tiles a CTA computes, and which rows of x and which weight each of them has.
#pragma once

#include <humming/overlap.cuh>
#include <humming_sm90/sizes.cuh>

namespace humming::sm90 {

struct Tile {
  int expert, column;
  Index first;  // row of x and of the result; of indexed problems the slot
  int count;    // rows that there are, at most those of a tile
  bool alone;   // all rows of the expert
};

/// The row of scales of x of row `row` of a tile; of rows behind the last that one's: their results are
/// not stored.
__device__ __forceinline__ Index scaled_row(Tile const& tile, int row) {
  return tile.first + (row < tile.count ? row : tile.count - 1);
}

/// The tiles of a launch, of at most `kTokens` rows of x. Producers and consumers walk through them
/// side by side. Choices that are sorted and not cut into tiles are as rows that lie together. If `kEven` is not 0, the tiles of an expert have as many rows each, but that they
/// are a multiple of kEven in all but the last; there are no more tiles than otherwise.
template <class P, int kTokens = kTileM, class Args = Arguments, int kEven = 0>
class Tiles {
  static constexpr bool kMasked = P::kKind == GemmKind::kGroupedMasked;
  static constexpr bool kGrouped = P::kKind != GemmKind::kDense;
  static_assert(kEven == 0 || kTokens % kEven == 0, "Tiles: some would be empty");

 public:
  /// Every thread calls it. prefix: [experts + 1] in shared memory, if rows are grouped.
  __device__ __forceinline__ Tiles(Args const& args, int* prefix)
      : args_(args), prefix_(prefix) {
    if constexpr (kGrouped) {
      if (threadIdx.x < 32) walk_groups(groups(), args.experts, kTokens, threadIdx.x, prefix);
      __syncthreads();
      rows_ = prefix[args.experts];
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
  __device__ __forceinline__ u32 count() const { return u32(rows()) * columns(); }

  __device__ __forceinline__ Tile tile(u32 number) const {
    int const columns = this->columns();
    if constexpr (kGrouped) {
      int const expert = find_group(prefix_, args_.experts, number / columns);
      int const before = prefix_[expert], rows = prefix_[expert + 1] - before;
      Place const place =
          place_in_group(P::kRaster, expert, number - before * columns, rows, columns);
      RowRange const group = groups()(expert);
      int const each = rows_of_each(group.end - group.begin, rows);
      RowRange const range = tile_rows(group, place.row, each);
      return {expert, place.column, range.begin, int(range.end - range.begin), rows == 1};
    } else {
      int const rows = this->rows();
      Place const place = place_in_group(P::kRaster, 0, number, rows, columns);
      int const each = rows_of_each(args_.m, rows);
      Index const first = Index(place.row) * each;
      return {0, place.column, first, int(smaller(each, args_.m - first)), rows == 1};
    }
  }

 private:
  /// Of the tiles that `rows` are spread over; the last may have fewer.
  static __device__ __forceinline__ int rows_of_each(Index rows, int tiles) {
    if constexpr (kEven == 0) {
      return kTokens;
    } else {
      u32 const all = kEven * tiles;
      return int((u32(rows) + all - 1) / all * kEven);
    }
  }

  __device__ __forceinline__ auto groups() const {
    if constexpr (kMasked) {
      return MaskedRows<i32>{args_.groups, args_.m};
    } else {
      return ContiguousRows<i32>{args_.groups, args_.m};
    }
  }

  // Rows and columns of tiles: found again for every tile, where ptxas would spill them.
  __device__ __forceinline__ int rows() const {
    if constexpr (kGrouped) {
      return rows_;
    } else {
      return (args_.m + kTokens - 1) / kTokens;
    }
  }
  __device__ __forceinline__ int columns() const { return (args_.n + P::kTileN - 1) / P::kTileN; }

  Args const& args_;
  int* prefix_;
  int rows_ = 0;
};

}  // namespace humming::sm90
