// The kernel: one warpgroup copies, two multiply; each CTA computes tile after tile.
#pragma once

#include <humming_sm90/parts.cuh>
#include <humming_sm90/wide/producer.cuh>
#include <humming_sm90/wide/store.cuh>

namespace humming::sm90::wide {

/// The part of the kernel for a warpgroup that multiplies.
template <class P>
__device__ __forceinline__ void consume(Arguments const& args, Items<P> const& items,
                                        Shared<P> const& shared) {
  Consumer const place;
  Ring<P::kStages> ring;
  items.for_each_told(shared, ring, [&](Item const& item) {
    PanelPair const pair(args, item.tile);
    // Without a panel of its own a warpgroup multiplies the other's, and stores nothing.
    bool const own = int(place.group) < pair.count;
    u32 const panel = own ? place.group : 0;
    Epilogue<P> epilogue(args, item.tile, place, pair.first + panel, shared.places(place.group));
    Totals<P> totals;
    // The same register in all threads, so that they are known to take the same way.
    int const tokens = __shfl_sync(0xffffffffu, item.tile.count, 0);
    Multiplier<P> multiplier(shared, place, panel, tokens, ring, totals);
    int const steps = item.end - item.begin;
    if constexpr (Plan<P>::kPromotes) {
      multiplier.promoting(steps);
    } else {
      multiplier.direct(steps);
    }
    if constexpr (P::kSplits > 1) {
      if (item.parts > 1 && !add_parts<P>(args, item, place, shared.flag(), totals)) return;
    }
    if (own) epilogue.store(totals, shared.result(place.group));
  });
}

/// One launch of kThreads threads per CTA; `P` is described in plan.cuh. Dynamic shared memory:
/// kSharedBytes, and 4 * (experts + 1) bytes behind it where rows are grouped. Any grid will do.
template <class P>
__device__ __forceinline__ void gemm(Arguments const& args) {
  extern __shared__ __align__(1024) u8 dynamic[];
  Shared<P> const shared{shared_address(dynamic)};
  if (threadIdx.x == 0) {
    prefetch_tensormap(args.x);
    for (int stage = 0; stage < P::kStages; ++stage) {
      mbarrier_init(shared.full(stage), Plan<P>::kFillers);
      mbarrier_init(shared.empty(stage), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  if constexpr (P::kKind == GemmKind::kDense) let_next_begin();
  await_earlier();
  __syncthreads();
  Items<P> const items(args, reinterpret_cast<int*>(dynamic + Plan<P>::kSharedBytes));
  if (threadIdx.x < kGroupThreads) {
    setmaxnreg_dec<P::kProducerRegisters>();
    produce(args, items, shared);
  } else {
    setmaxnreg_inc<P::kConsumerRegisters>();
    consume(args, items, shared);
  }
}

}  // namespace humming::sm90::wide
