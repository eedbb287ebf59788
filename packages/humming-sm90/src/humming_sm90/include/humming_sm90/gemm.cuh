// The kernel: one warpgroup copies, two multiply; each CTA computes tile after tile.
#pragma once

#include <humming_sm90/producer.cuh>
#include <humming_sm90/store.cuh>

namespace humming::sm90 {

/// Fills what boxes of x leave of every stage with zeros. All that multiply call it, before the first.
template <class P>
__device__ __forceinline__ void clear_rows(Arguments const& args, Shared<P> const& shared) {
  u32 const box = args.template box_bytes<P::kKind>();
  if (box == Plan<P>::kXBytes) return;
  constexpr int kThreads = kConsumers * kGroupThreads;
  u32 const zeros[4] = {0, 0, 0, 0};
  for (int stage = 0; stage < P::kStages; ++stage) {
    u32 const end = shared.x(stage) + Plan<P>::kXBytes;
    u32 const first = shared.x(stage) + box + (threadIdx.x - kGroupThreads) * 16;
    for (u32 to = first; to < end; to += kThreads * 16) store_shared_128(to, zeros);
  }
  fence_proxy_async();
  named_barrier<kThreads>(1);
}

/// The part of the kernel for a warpgroup that multiplies.
template <class P>
__device__ __forceinline__ void consume(Arguments const& args, Tiles<P> const& tiles,
                                        Shared<P> const& shared) {
  Consumer const place;
  Ring<P::kStages> ring;
  clear_rows(args, shared);
  tiles.for_each([&](Tile const& tile) {
    Totals<P> totals;
    multiply_tile(args, shared, place, ring, totals);
    Epilogue<P>(args, tile, place).store(totals, shared.result(place.warp));
  });
}

/// One launch of kThreads threads per CTA; `P` is described in sizes.cuh. Dynamic shared memory:
/// kSharedBytes, and 4 * (experts + 1) bytes behind it where rows are grouped. Any grid will do.
template <class P>
__device__ __forceinline__ void gemm(Arguments const& args) {
  extern __shared__ __align__(1024) u8 dynamic[];
  Shared<P> const shared{shared_address(dynamic)};
  if (threadIdx.x == 0) {
    prefetch_tensormap(args.x);
    prefetch_tensormap(args.weight);
    for (int stage = 0; stage < P::kStages; ++stage) {
      mbarrier_init(shared.full(stage), Plan<P>::kFillers);
      mbarrier_init(shared.empty(stage), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  Tiles<P> const tiles(args, reinterpret_cast<int*>(dynamic + Plan<P>::kSharedBytes));
  if (threadIdx.x < kGroupThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) copy_operands(args, tiles, shared);
    if constexpr (Plan<P>::kGathersScales) {
      if (threadIdx.x / 32 == 1) gather_scales(args, tiles, shared);
    }
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    consume(args, tiles, shared);
  }
}

}  // namespace humming::sm90
