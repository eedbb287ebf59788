// Who fills the ring: a thread that starts bulk copies, and a warp for what these can't gather.
#pragma once

#include <humming_sm90/tiles.cuh>

namespace humming::sm90 {

/// Fills stages with boxes of x and of weights, and with the weights' scales of the step where each
/// row has its own. One thread calls it.
template <class P>
__device__ __forceinline__ void copy_operands(Arguments const& args, Tiles<P> const& tiles,
                                              Shared<P> const& shared) {
  int const steps = args.steps();
  u32 const bytes = Plan<P>::kBulkBytes + args.template box_bytes<P::kKind>();
  Ring<P::kStages> ring;
  tiles.for_each([&](Tile const& tile) {
    int const first_n = tile.column * P::kTileN;
    [[maybe_unused]] float const* scales =
        args.scales + Index(tile.expert) * steps * args.padded_n() + first_n;
    for (int step = 0; step < steps; ++step) {
      u32 const full = shared.full(ring.stage);
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, bytes);
      int const k = step * kStepK;
      cp_async_bulk_tensor(shared.x(ring.stage), args.x, k, int(tile.first), full);
      cp_async_bulk_tensor(shared.weight(ring.stage), args.weight, k, first_n, tile.expert, full);
      if constexpr (P::kScaleRows == 1) {
        cp_async_bulk(shared.scales(ring.stage), scales, Plan<P>::kScaleBytes, full);
        scales += args.padded_n();
      }
      ring.advance();
    }
  });
}

/// Fills stages with the scales of the step that don't lie together: those of tokens are one row of x
/// apart, of blocks of weights a row of blocks. Consumers that loaded them would wait for memory in
/// every step. A warp calls it.
template <class P>
__device__ __forceinline__ void gather_scales(Arguments const& args, Tiles<P> const& tiles,
                                                Shared<P> const& shared) {
  using L = Plan<P>;
  int const steps = args.steps(), lane = threadIdx.x % 32;
  [[maybe_unused]] int const blocks = args.padded_n() / L::kBlockRows;
  Ring<P::kStages> ring;
  tiles.for_each([&](Tile const& tile) {
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      if constexpr (P::kHasRowGroups) {
#pragma unroll
        for (int i = 0; i < kTileM / 32; ++i) {
          int const row = 32 * i + lane;
          // Rows behind the last have its scale: their results are not stored.
          Index const source = tile.first + (row < tile.count ? row : tile.count - 1);
          cp_async_4(shared.row_scales(ring.stage) + 4 * row, args.x_groups + source * steps + step);
        }
      }
      if (lane < L::kBlocks) {
        Index const row = Index(tile.expert) * steps + step;
        int const block = tile.column * P::kTileN / L::kBlockRows + lane;
        cp_async_4(shared.block_scales(ring.stage) + 4 * lane, args.scales + row * blocks + block);
      }
      cp_async_mbarrier_arrive_noinc(shared.full(ring.stage));
      ring.advance();
    }
  });
}

}  // namespace humming::sm90
