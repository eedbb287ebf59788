// The kernel: tiles and runs of K to this CTA, one after the other.
#pragma once

#include <humming/gemm/epilogue.cuh>
#include <humming/gemm/problem.cuh>
#include <humming/overlap.cuh>

namespace humming {

/// Multiplies an item and stores what it completes. Every thread of the CTA calls it. `schedule` makes
/// the schedule again, which is cheaper than to keep it in registers. `meanwhile` is called once where
/// weights are waited for, and `again` when they have been read, behind a barrier that is behind that too:
/// it gives the tile again. sources: rows of x, and behind them those of results.
template <class P, class MakeSchedule, class Meanwhile, class Again>
__device__ __forceinline__ void multiply_item(GemmArguments const& args,
                                              MakeSchedule const& schedule, WorkItem const& item,
                                              typename Tiles<P>::Tile tile, int const* sources,
                                              u8* shared, Meanwhile const& meanwhile,
                                              Again const& again) {
  using S = Sizes<P>;
  u8* const region = shared + S::kRegion;
  WarpPlace<P> const warp;
  Panel<P> const panel(args, tile.expert, tile.column * S::kTileN, warp);
  Totals<P> totals;
  P::Mainloop::multiply(args, {tile.first, tile.count, sources}, tile.expert, panel, item.k_begin,
                        item.k_end, shared_address(region), totals, meanwhile);

  __syncthreads();
  tile = again(tile);
  int const first_n = tile.column * S::kTileN;
  TileSums<P> sums;
  add_teams(warp, totals, shared_address(region), sums);
  if constexpr (P::kPartition.split != Split::kDataParallel) {
    if (item.parts > 1 && !add_parts(args, schedule(), item, warp, shared_address(shared), sums))
      return;
  }
  if constexpr (P::kWarpsK > 1) __syncthreads();
  round_tile(args, {tile.first, tile.count, sources}, tile.expert, first_n, warp, sums, region);
  __syncthreads();
  store_tile<P>(args, {tile.first, tile.count, sources + S::kTileM}, first_n, region);
}

/// The item of this CTA where there is one for each. Without 64-bit divisions, which would keep the
/// first request of memory waiting.
template <class P>
__device__ __forceinline__ WorkItem only_item(int steps) {
  constexpr int kSplits = P::kPartition.splits;
  int const number = blockIdx.x;
  if constexpr (kSplits == 1) {
    return {number, 0, steps, 0, 1, -1, -1};
  } else {
    int const parts = kSplits < steps ? kSplits : steps;
    int const tile = number / parts, part = number - tile * parts;
    int const length = steps / parts, longer = steps - length * parts;
    int const begin = part * length + (part < longer ? part : longer);
    WorkItem item{tile, begin, begin + length + (part < longer), part, parts, -1, -1};
    if (parts > 1) {
      item.slot = number;
      item.counter = tile;
    }
    return item;
  }
}

/// The items of this CTA, one after the other.
template <class P, class MakeSchedule>
struct ItemWalk {
  Tiles<P> const& tiles;
  int steps;
  MakeSchedule const& schedule;

  /// Number `i`, if there is one.
  __device__ __forceinline__ bool find(int i, WorkItem& item) const {
    if constexpr (P::kPartition.split == Split::kDataParallel) {
      u32 const number = blockIdx.x + i * gridDim.x;
      item = {Index(number), 0, steps, 0, 1, -1, -1};
      return number < tiles.count();
    } else {
      Schedule const all = schedule();
      if (i >= all.item_count(int(blockIdx.x))) return false;
      item = all.item(int(blockIdx.x), i);
      return true;
    }
  }

  /// Tells the tile of item number `i`. Every thread calls it.
  __device__ __forceinline__ void tell(int i) const {
    if (threadIdx.x >= 32) return;
    WorkItem item;
    if (find(i, item)) {
      tiles.tell(item, i % 2);
    } else if (threadIdx.x == 0) {
      tiles.tell_end(i % 2);
    }
  }
};

/// Items with weights of experts.
template <class P, class Walk, class MakeSchedule>
__device__ __forceinline__ void multiply_experts(GemmArguments const& args, Walk const& walk,
                                                 MakeSchedule const& schedule, u8* shared) {
  using S = Sizes<P>;
  walk.tell(0);
  __syncthreads();
  for (int i = 0;; ++i) {
    int const turn = i % 2;
    auto tile = walk.tiles.told(turn);
    if (tile.expert == Tiles<P>::kEnd) break;
    int const* const sources = walk.tiles.sources(turn);
    auto const tell_next = [&] { walk.tell(i + 1); };
    // Not kept in registers meanwhile, but for the rows that were counted.
    auto const again = [&](auto const& tile) {
      return P::kWidths > 1 ? tile : walk.tiles.told(turn);
    };
    bool is_expert = true;
    if constexpr (P::kKind == GemmKind::kIndexed) {
      is_expert = tile.expert >= 0;
      if constexpr (P::kWidths > 1) {
        // An expert's rows come first, then what pads its last tile.
        static_assert(S::kTileM <= S::kThreads, "gemm: a thread has at most one row");
        int const row = threadIdx.x;
        tile.count = __syncthreads_count(row < S::kTileM && sources[row] >= 0);
      }
    }
    if (is_expert) {
      WorkItem const item = walk.tiles.told_item(turn, walk.steps);
      multiply_item<P>(args, schedule, item, tile, sources, shared, tell_next, again);
    } else {
      tell_next();
    }
    __syncthreads();
  }
}

/// One launch; `P` is described in sizes.cuh. Dynamic shared memory: kSharedBytes, and behind it 4 *
/// (experts + 1) bytes where rows are grouped, 4 * FewChoices::kWords where they are indexed. Any grid
/// will do, but without experts and with stream-K apart there are as many CTAs as items.
template <class P>
__device__ __forceinline__ void gemm(GemmArguments const& args) {
  using S = Sizes<P>;
  static_assert(S::kTeamThreads == 32 || P::kWarpsK <= 15, "gemm: no more than 15 barriers");
  constexpr bool kDense = P::kKind == GemmKind::kDense;
  constexpr bool kOneItem = kDense && P::kPartition.split != Split::kStreamK;
  extern __shared__ __align__(1024) u8 shared[];
  if constexpr (kDense) let_next_begin();
  if constexpr (!kOneItem) await_earlier();
  int* const prefix = reinterpret_cast<int*>(shared + S::kSharedBytes);
  Tiles<P> const tiles(args, shared + S::kFlagBytes, prefix);
  int const steps = (args.k + kUnitK - 1) / kUnitK;
  auto const make = [&] {
    int ctas = gridDim.x;
    asm volatile("" : "+r"(ctas));  // made anew each time: registers are short
    return make_schedule(tiles.count(), steps, ctas, 1, P::kPartition);
  };
  auto const nothing = [] {};
  auto const same = [](auto const& tile) { return tile; };

  if constexpr (kOneItem) {
    WorkItem const item = only_item<P>(steps);
    auto const tile = tiles.tile(item.tile);
    if constexpr (P::Mainloop::template kPrefetches<P>)
      prefetch_codes<P>(args, tile.column * S::kTileN, item.k_begin);
    await_earlier();
    // K may have fewer steps than parts were asked for, and so fewer items than CTAs.
    if (P::kPartition.splits > 1 && item.tile >= tiles.count()) return;
    multiply_item<P>(args, make, item, tile, nullptr, shared, nothing, same);
  } else {
    ItemWalk<P, decltype(make)> const walk{tiles, steps, make};
    if constexpr (kDense) {
      WorkItem item;
      for (int i = 0; walk.find(i, item); ++i) {
        multiply_item<P>(args, make, item, tiles.tile(item.tile), nullptr, shared, nothing, same);
        __syncthreads();
      }
    } else {
      multiply_experts<P>(args, walk, make, shared);
    }
  }
}

}  // namespace humming
