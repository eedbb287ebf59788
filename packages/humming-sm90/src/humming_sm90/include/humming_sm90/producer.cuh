// Who fills the ring: threads that start bulk copies, and warps for what these can't gather.
#pragma once

#include <humming_sm90/items.cuh>

namespace humming::sm90 {

/// Fills stages with weights, and with their scales of the step where each row has its own, and tells
/// items. One thread calls it.
template <class P>
__device__ __forceinline__ void copy_weights(Arguments const& args, Items<P> const& items,
                                             Shared<P> const& shared) {
  int const steps = args.steps();
  bool const once = items.read_once();
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    Tile const& tile = item.tile;
    int const first_n = tile.column * P::kTileN;
    [[maybe_unused]] float const* scales =
        args.scales + (Index(tile.expert) * steps + item.begin) * args.padded_n() + first_n;
    for (int step = item.begin; step < item.end; ++step) {
      u32 const full = shared.full(ring.stage);
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      if (step == item.begin) items.tell(shared, ring.stage, tile);
      mbarrier_arrive_expect_tx(full, Plan<P>::kWeightBytes + Plan<P>::kScaleBytes);
      cp_async_bulk_tensor(shared.weight(ring.stage), args.weight, step, first_n / kPanelRows,
                           tile.expert, full, once);
      if constexpr (P::kScaleRows == 1) {
        cp_async_bulk(shared.scales(ring.stage), scales, Plan<P>::kScaleBytes, full, once);
        scales += args.padded_n();
      }
      ring.advance();
    }
  });
}

/// Fills stages with as many boxes of x as hold the rows of a tile. One thread calls it, another one
/// than that of the weights: a thread starts some nine copies per microsecond.
template <class P>
__device__ __forceinline__ void copy_rows(Arguments const& args, Items<P> const& items,
                                          Shared<P> const& shared) {
  int const box_rows = args.template box_rows<P::kKind, P::kTokens>();
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    Tile const& tile = item.tile;
    // A power of two, unless one box is all that there is.
    int const rows = tile.count <= box_rows ? box_rows : (tile.count + box_rows - 1) & -box_rows;
    for (int step = item.begin; step < item.end; ++step) {
      u32 const full = shared.full(ring.stage), to = shared.x(ring.stage);
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, rows * kRowBytes);
#pragma unroll 1
      for (int row = 0; row < rows; row += box_rows)
        cp_async_bulk_tensor(to + row * kRowBytes, args.x, step * kStepK, int(tile.first) + row,
                             full);
      ring.advance();
    }
  });
}

/// Fills stages with the scales of the step that don't lie together: those of tokens are one row of x
/// apart, of blocks of weights a row of blocks. Consumers that loaded them would wait for memory in
/// every step. A warp calls it.
template <class P>
__device__ __forceinline__ void gather_scales(Arguments const& args, Items<P> const& items,
                                                Shared<P> const& shared) {
  using L = Plan<P>;
  constexpr int kRows = P::kTokens / 32;  // of a lane
  int const steps = args.steps(), lane = threadIdx.x % 32;
  [[maybe_unused]] int const blocks = args.padded_n() / L::kBlockRows;
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    Tile const& tile = item.tile;
    // Where the next scale of a row is: as numbers, M = 8192 and N = K = 8192 took 835 us, not 790.
    [[maybe_unused]] float const* rows[kRows];
    if constexpr (P::kHasRowGroups) {
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        rows[i] = args.x_groups + scaled_row(tile, 32 * i + lane) * steps + item.begin;
    }
    float const* from = args.scales + (Index(tile.expert) * steps + item.begin) * blocks +
                        tile.column * P::kTileN / L::kBlockRows + lane;
    for (int step = item.begin; step < item.end; ++step) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      if constexpr (P::kHasRowGroups) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
          cp_async_4(shared.row_scales(ring.stage) + 4 * (32 * i + lane), rows[i]++);
      }
      if (lane < L::kBlocks) cp_async_4(shared.block_scales(ring.stage) + 4 * lane, from);
      from += blocks;
      cp_async_mbarrier_arrive_noinc(shared.full(ring.stage));
      ring.advance();
    }
  });
}

/// The part of the kernel for the warpgroup that copies.
template <class P>
__device__ __forceinline__ void produce(Arguments const& args, Items<P> const& items,
                                        Shared<P> const& shared) {
  u32 const warp = threadIdx.x / 32;
  if (threadIdx.x == 0) copy_weights(args, items, shared);
  if constexpr (Plan<P>::kGathersScales) {
    if (warp == 1) gather_scales(args, items, shared);
  }
  if (threadIdx.x == 2 * 32) copy_rows(args, items, shared);
}

}  // namespace humming::sm90
