// Which tiles there are, and which rows, results and weights a tile has, for each kind of GEMM.
#pragma once

#include <humming/gemm/sizes.cuh>
#include <humming/memory.cuh>

namespace humming {

/// Tiles of at most 32 choices of experts, found by a warp from their ids alone. Rows of tiles are in the
/// order of their first choices, and not of experts as align_rows() has them; each has the same rows.
template <int kTileM>
struct FewChoices {
  static constexpr int kMost = 32;
  static constexpr int kWords = kMost + 1;
  static constexpr u32 kAll = 0xffffffffu;

  /// In shared memory, of each choice, from bit 15, 10, 5 and 0 on: expert, row of x, row of tiles, and row in
  /// that; or -1 if it is nobody's. Behind them: how many rows of tiles there are. One warp writes and reads
  /// them.
  int* words;

  __device__ __forceinline__ int& rows() const { return words[kMost]; }

  /// The ids in args.groups.
  __device__ __forceinline__ void sort(GemmArguments const& args) const {
    int const lane = threadIdx.x % 32, id_words = args.id_words;
    int expert = -1;
    if (lane < args.m) {
      i32 const* const id = args.groups + lane * id_words;
      expert = id[0];
      if (id_words > 1 && id[1] != 0) expert = -1;
    }
    if (u32(expert) >= u32(args.experts)) expert = -1;
    u32 const before = (1u << lane) - 1;
    u32 same = __match_any_sync(kAll, expert);
    if constexpr (kTileM < kMost) {
      int const tile = __popc(same & before) / kTileM;  // of the expert's
      same = __match_any_sync(kAll, expert < 0 ? -1 : expert << 5 | tile);
    }
    u32 const first = same & (0 - same);
    u32 const firsts = __ballot_sync(kAll, expert >= 0 && first == 1u << lane);
    int const place = u32(lane) / u32(args.top_k) << 10 | __popc(firsts & (first - 1)) << 5;
    words[lane] = expert < 0 ? -1 : expert << 15 | place | __popc(same & before);
    if (lane == 0) rows() = __popc(firsts);
  }
};

/// What a CTA knows of the problem. Its tables lie in shared memory.
///
/// To find a tile of experts takes hundreds of cycles, or waits for memory: so one warp does it while the
/// CTA waits for weights of the tile before, and tells the others.
template <class P>
class Tiles {
  using S = Sizes<P>;
  static constexpr bool kIndexed = P::kKind == GemmKind::kIndexed;
  static constexpr bool kGrouped =
      P::kKind == GemmKind::kGroupedContiguous || P::kKind == GemmKind::kGroupedMasked;
  static constexpr bool kWhole = P::kPartition.split == Split::kDataParallel;
  // The order of tiles would decide how they are shared, and one warp alone knows how many there are.
  static_assert(!P::kSortsFew || (kIndexed && kWhole), "Tiles: few choices make whole tiles");

 public:
  /// tables: what S::kTableBytes has behind the flag; prefix: [experts + 1], where rows are grouped, or
  /// FewChoices::words.
  __device__ __forceinline__ Tiles(GemmArguments const& args, u8* tables, int* prefix)
      : args_(args),
        tables_(reinterpret_cast<int*>(tables)),
        prefix_(prefix) {
    if constexpr (kGrouped) {
      if (threadIdx.x < 32) {
        if constexpr (P::kKind == GemmKind::kGroupedContiguous) {
          walk_groups(contiguous(), args.experts, S::kTileM, threadIdx.x, prefix);
        } else {
          walk_groups(masked(), args.experts, S::kTileM, threadIdx.x, prefix);
        }
      }
      __syncthreads();
    }
    if constexpr (P::kSortsFew) {
      if (threadIdx.x < 32) {
        if (sorts_few()) {
          few().sort(args);
        } else if (threadIdx.x == 0) {
          few().rows() = *args.row_tiles;
        }
        __syncwarp();
      }
    }
  }

  /// Number of all tiles. If the kernel sorts few choices, its first warp alone may ask.
  __device__ __forceinline__ Index count() const { return Index(rows()) * columns(); }

  struct Tile {
    int expert, column;
    Index first;
    int count;
  };

  /// Tile number `number` of a dense problem.
  __device__ __forceinline__ Tile tile(Index number) const {
    Place const place = place_among_rows(number);
    Index const first = Index(place.row) * S::kTileM;
    return {0, place.column, first, int(smaller(S::kTileM, args_.m - first))};
  }

  /// Finds the tile of an item with experts for told(turn), `turn` being 0 or 1. A whole warp calls it; the
  /// others have it after a barrier.
  __device__ __forceinline__ void tell(WorkItem const& item, int turn) const {
    int const lane = threadIdx.x % 32;
    if constexpr (kIndexed) {
      Place const place = place_among_rows(item.tile);
      int* const sources = this->sources(turn);
      int* const slots = sources + S::kTileM;
      bool writes = lane == 0;
      int expert = 0;
      if (sorts_few()) {
        int const choice = few().words[lane], row = choice & 31;
        each_row([&](int row) { sources[row] = slots[row] = -1; });
        __syncwarp();
        writes = choice >= 0 && (choice >> 5 & 31) == place.row;
        if (writes) sources[row] = choice >> 10 & 31;
        if (writes) slots[row] = lane;
        writes &= row == 0;
        expert = choice >> 15;
      } else {
        Index const first = Index(place.row) * S::kTileM;
        each_row([&](int row) {
          int const slot = args_.slots[first + row];
          int const source = int(source_row(slot, args_.m, args_.top_k));
          sources[row] = source;
          slots[row] = source < 0 ? -1 : slot;
        });
        if (writes) expert = args_.groups[place.row];
      }
      if (writes) write({expert, place.column, 0, S::kTileM}, item, turn);
    } else {
      // 32 bits are enough, since a result of more tiles would fit into no memory.
      u32 const tile = static_cast<u32>(item.tile), columns = this->columns();
      int const expert = find_group(prefix_, args_.experts, int(tile / columns));
      int const before = prefix_[expert], rows_of_tiles = prefix_[expert + 1] - before;
      Place const place =
          place_in_group(P::kRaster, expert, tile - before * columns, rows_of_tiles, columns);
      RowRange group;
      if constexpr (P::kKind == GemmKind::kGroupedContiguous) {
        group = contiguous()(place.group);
      } else {
        group = masked()(place.group);
      }
      RowRange const rows = tile_rows(group, place.row, S::kTileM);
      if (lane == 0)
        write({place.group, place.column, rows.begin, int(rows.end - rows.begin)}, item, turn);
    }
  }

  /// Tells that there are no more items: one of kEnd. A thread calls it.
  __device__ __forceinline__ void tell_end(int turn) const { write({kEnd, 0, 0, 0}, {}, turn); }

  /// What stands for an expert behind the last item; -1 is one that is not here.
  static constexpr int kEnd = -2;

  __device__ __forceinline__ Tile told(int turn) const {
    u32 words[4];
    load_shared_128(words, shared_address(told_words(turn)));
    return {int(words[0]), told_words(turn)[4], Index(u64(words[3]) << 32 | words[2]),
            int(words[1])};
  }
  /// The item of that tile; of whole tiles but its number.
  __device__ __forceinline__ WorkItem told_item(int turn, int steps) const {
    if constexpr (kWhole) {
      return {0, 0, steps, 0, 1, -1, -1};
    } else {
      int const* const words = told_words(turn) + 5;
      return {words[6], words[0], words[1], words[2], words[3], words[4], words[5]};
    }
  }

  /// Of the tile told, [kTileM]: rows of x, -1 is none. The rows of results lie behind.
  __device__ __forceinline__ int* sources(int turn) const {
    return tables_ + 2 * kToldWords + turn * (2 * S::kTileM);
  }

 private:
  static constexpr int kToldWords = S::kToldBytes / 4;

  /// Calls what a lane does for each of its rows of a tile.
  template <class Body>
  static __device__ __forceinline__ void each_row(Body const& body) {
#pragma unroll
    for (int above = 0; above < S::kTileM; above += 32) {
      int const row = above + threadIdx.x % 32;
      if (row < S::kTileM) body(row);
    }
  }

  __device__ __forceinline__ bool sorts_few() const { return P::kSortsFew && args_.id_words != 0; }
  __device__ __forceinline__ FewChoices<S::kTileM> few() const { return {prefix_}; }

  __device__ __forceinline__ int* told_words(int turn) const { return tables_ + kToldWords * turn; }

  __device__ __forceinline__ void write(Tile const& tile, WorkItem const& item, int turn) const {
    u32 const words[4] = {u32(tile.expert), u32(tile.count), u32(tile.first), u32(tile.first >> 32)};
    int* const to = told_words(turn);
    store_shared_128(shared_address(to), words);
    to[4] = tile.column;
    if constexpr (!kWhole) {
      // A tile with parts has a low number, and so have its slots: there are some for each CTA.
      int const numbers[7] = {item.k_begin,   item.k_end,        item.part,     item.parts,
                              int(item.slot), int(item.counter), int(item.tile)};
#pragma unroll
      for (int i = 0; i < 7; ++i) to[5 + i] = numbers[i];
    }
  }

  /// A tile's place where rows are not grouped. With one row of tiles, as there is for few tokens, there is
  /// nothing to compute.
  __device__ __forceinline__ Place place_among_rows(Index number) const {
    u32 const tile = static_cast<u32>(number);  // there are as many CTAs, or fewer slots
    return rows() == 1 ? Place{0, 0, int(number)}
                       : place_in_group(P::kRaster, 0, tile, rows(), columns());
  }

  // Rows and columns of tiles: found again where registers would be kept for them all the time.
  __device__ __forceinline__ int rows() const {
    if constexpr (kGrouped) {
      return prefix_[args_.experts];
    } else if constexpr (P::kSortsFew) {
      return few().rows();
    } else if constexpr (kIndexed) {
      return *args_.row_tiles;
    } else {
      return (args_.m + S::kTileM - 1) / S::kTileM;
    }
  }
  __device__ __forceinline__ int columns() const { return (args_.n + S::kTileN - 1) / S::kTileN; }

  __device__ __forceinline__ ContiguousRows<i32> contiguous() const {
    return {args_.groups, args_.m};
  }
  __device__ __forceinline__ MaskedRows<i32> masked() const { return {args_.groups, args_.m}; }

  GemmArguments const& args_;
  int* tables_;
  int* prefix_;
};

}  // namespace humming
