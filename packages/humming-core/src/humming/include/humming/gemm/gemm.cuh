// The kernel: tiles and runs of K to this CTA, one after the other.
#pragma once

#include <humming/gemm/epilogue.cuh>
#include <humming/gemm/problem.cuh>
#include <humming/overlap.cuh>

namespace humming {

/// Multiplies an item and stores what it completes. Every thread of the CTA calls it. `schedule` makes
/// the schedule again, which is cheaper than to keep it in registers.
template <class P, class MakeSchedule>
__device__ __forceinline__ void multiply_item(GemmArguments const& args,
                                              MakeSchedule const& schedule, WorkItem const& item,
                                              typename Tiles<P>::Tile const& tile, u8* shared) {
  using S = Sizes<P>;
  u8* const region = shared + S::kRegion;
  int const* const sources = reinterpret_cast<int*>(shared + 16);
  WarpPlace<P> const warp;
  int const first_n = tile.column * S::kTileN;
  TileRows const rows{tile.first, tile.count, sources};
  Panel<P> const panel(args, tile.expert, first_n, warp);
  Totals<P> totals;
  P::Mainloop::multiply(args, rows, tile.expert, panel, item.k_begin, item.k_end,
                        shared_address(region), totals);

  __syncthreads();
  TileSums<P> sums;
  add_teams(warp, totals, shared_address(region), sums);
  if constexpr (P::kPartition.split != Split::kDataParallel) {
    if (item.parts > 1 && !add_parts(args, schedule(), item, warp, shared_address(shared), sums))
      return;
  }
  if constexpr (P::kWarpsK > 1) __syncthreads();
  round_tile(args, rows, tile.expert, first_n, warp, sums, region);
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

/// One launch; `P` is described in sizes.cuh. Dynamic shared memory: kSharedBytes, and
/// 4 * (experts + 1) bytes behind it where rows are grouped. Any grid will do, but without experts
/// and with stream-K apart there are as many CTAs as items.
template <class P>
__device__ __forceinline__ void gemm(GemmArguments const& args) {
  using S = Sizes<P>;
  static_assert(S::kTeamThreads == 32 || P::kWarpsK <= 15, "gemm: no more than 15 barriers");
  constexpr bool kDense = P::kKind == GemmKind::kDense;
  constexpr bool kOneItem = kDense && P::kPartition.split != Split::kStreamK;
  extern __shared__ __align__(1024) u8 shared[];
  if constexpr (kDense) let_next_begin();
  if constexpr (!kOneItem) await_earlier();
  int* const sources = reinterpret_cast<int*>(shared + 16);
  int* const prefix = reinterpret_cast<int*>(shared + S::kSharedBytes);
  Tiles<P> const tiles(args, sources, sources + S::kTileM, prefix);
  int const steps = (args.k + kUnitK - 1) / kUnitK;
  auto const make = [&] {
    int ctas = gridDim.x;
    asm volatile("" : "+r"(ctas));  // made anew each time: registers are short
    return make_schedule(tiles.count(), steps, ctas, 1, P::kPartition);
  };

  if constexpr (kOneItem) {
    WorkItem const item = only_item<P>(steps);
    auto const tile = tiles.tile(item.tile);
    prefetch_codes<P>(args, tile.column * S::kTileN, item.k_begin);
    await_earlier();
    // K may have fewer steps than parts were asked for, and so fewer items than CTAs.
    if (P::kPartition.splits > 1 && item.tile >= tiles.count()) return;
    multiply_item<P>(args, make, item, tile, shared);
  } else {
    for (Index i = 0;; ++i) {
      Schedule const schedule = make();
      if (i >= schedule.item_count(int(blockIdx.x))) break;
      WorkItem const item = schedule.item(int(blockIdx.x), i);
      auto tile = tiles.tile(item.tile);
      if constexpr (P::kKind == GemmKind::kIndexed) {
        if (tile.expert < 0) continue;
        if constexpr (P::kWidths == 1) {
          __syncthreads();
        } else {
          // An expert's rows come first, then what pads its last tile.
          static_assert(S::kTileM <= S::kThreads, "gemm: a thread has at most one row");
          int const row = threadIdx.x;
          tile.count = __syncthreads_count(row < S::kTileM && sources[row] >= 0);
        }
      }
      multiply_item<P>(args, make, item, tile, shared);
      __syncthreads();
    }
  }
}

}  // namespace humming
