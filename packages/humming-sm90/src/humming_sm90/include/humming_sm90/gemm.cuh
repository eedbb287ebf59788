// The kernel: one warpgroup copies, two multiply; each CTA computes tile after tile.
#pragma once

#include <humming_sm90/producer.cuh>
#include <humming_sm90/store.cuh>

namespace humming::sm90 {

/// Fills the places of x with zeros where boxes may leave some of them as they are: rows there are
/// multiplied with the others. All threads call it, before the barrier that those who copy wait for.
template <class P>
__device__ __forceinline__ void clear_rows(Arguments const& args, Shared<P> const& shared) {
  if (P::kKind == GemmKind::kDense && args.m % kTileM == 0) return;
  u32 const zeros[4] = {0, 0, 0, 0};
  for (int stage = 0; stage < P::kStages; ++stage)
    for (u32 to = threadIdx.x * 16; to < Plan<P>::kXBytes; to += kThreads * 16)
      store_shared_128(shared.x(stage) + to, zeros);
  fence_proxy_async();
}

/// The part of the kernel for a warpgroup that multiplies.
template <class P>
__device__ __forceinline__ void consume(Arguments const& args, Tiles<P> const& tiles,
                                        Shared<P> const& shared) {
  Consumer const place;
  Ring<P::kStages> ring;
  tiles.for_each([&](Tile const& tile) {
    Share<P> const share(tile, place);
    Epilogue<P> epilogue(args, tile, place, share);
    Totals<P> totals;
    multiply_tile(args, shared, place, share, ring, totals);
    epilogue.store(totals, shared.result(place.warp));
  });
}

/// One launch of kThreads threads per CTA; `P` is described in sizes.cuh. Dynamic shared memory:
/// kSharedBytes, and 4 * (experts + 1) bytes behind it where rows are grouped. Any grid will do.
template <class P>
__device__ __forceinline__ void gemm(Arguments const& args) {
  extern __shared__ __align__(1024) u8 dynamic[];
  Shared<P> const shared{shared_address(dynamic)};
  if (threadIdx.x == 0) {
    if constexpr (!Plan<P>::kIndexed) prefetch_tensormap(args.x);
    prefetch_tensormap(args.weight);
    for (int stage = 0; stage < P::kStages; ++stage) {
      mbarrier_init(shared.full(stage), Plan<P>::kFillers);
      mbarrier_init(shared.empty(stage), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  clear_rows(args, shared);
  __syncthreads();
  Tiles<P> const tiles(args, reinterpret_cast<int*>(dynamic + Plan<P>::kSharedBytes));
  if (threadIdx.x < kGroupThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce(args, tiles, shared);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume(args, tiles, shared);
  }
}

}  // namespace humming::sm90
