// The kernel: one warpgroup copies, two multiply; each CTA computes tile after tile.
#pragma once

#include <humming_sm90/parts.cuh>
#include <humming_sm90/producer.cuh>
#include <humming_sm90/store.cuh>

namespace humming::sm90 {

/// Whether all tiles have the same rows of x, less than a tile has room for: no copy writes the others.
template <class P>
__device__ __forceinline__ bool has_few_rows(Arguments const& args) {
  return P::kKind == GemmKind::kDense && args.m <= P::kTokens;
}

/// Fills the places of x with zeros, from row `first` on. `kCount` threads call it.
template <class P, int kCount>
__device__ __forceinline__ void clear_rows(Shared<P> const& shared, int thread, int first) {
  u32 const zeros[4] = {0, 0, 0, 0};
  for (int stage = 0; stage < P::kStages; ++stage)
    for (u32 to = first * kRowBytes + thread * 16; to < Plan<P>::kXBytes; to += kCount * 16)
      store_shared_128(shared.x(stage) + to, zeros);
  fence_proxy_async();
}

/// Fills the places of x with zeros that boxes may leave as they are: rows there are multiplied with
/// the others. All threads call it, before the barrier that those who copy wait for. It takes half a
/// microsecond; where no copy writes the same rows, consumers do it while the first copies are under
/// way.
template <class P>
__device__ __forceinline__ void clear_rows_early(Arguments const& args, Shared<P> const& shared) {
  if (has_few_rows<P>(args) || (P::kKind == GemmKind::kDense && args.m % P::kTokens == 0)) return;
  clear_rows<P, kThreads>(shared, threadIdx.x, 0);
}

/// The same for consumers.
template <class P>
__device__ __forceinline__ void clear_rows_late(Arguments const& args, Shared<P> const& shared) {
  if (!has_few_rows<P>(args)) return;
  constexpr int kCount = kConsumers * kGroupThreads;
  clear_rows<P, kCount>(shared, threadIdx.x - kGroupThreads,
                        args.template box_rows<P::kKind, P::kTokens>());
  named_barrier<kCount>(1 + kConsumers);
}

/// The part of the kernel for a warpgroup that multiplies.
template <class P>
__device__ __forceinline__ void consume(Arguments const& args, Items<P> const& items,
                                        Shared<P> const& shared) {
  Consumer const place;
  Ring<P::kStages> ring;
  items.for_each_told(shared, ring, [&](Item const& item) {
    Share<P> const share(item.tile, place);
    Epilogue<P> epilogue(args, item.tile, place, share);
    Totals<P> totals;
    multiply_tile(item.end - item.begin, shared, place, share, ring, totals);
    if constexpr (P::kSplits > 1) {
      if (item.parts > 1 && !add_parts<P>(args, item, place, shared.flag(), totals)) return;
    }
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
    prefetch_tensormap(args.x);
    prefetch_tensormap(args.weight);
    for (int stage = 0; stage < P::kStages; ++stage) {
      mbarrier_init(shared.full(stage), Plan<P>::kFillers);
      mbarrier_init(shared.empty(stage), kConsumerWarps);
    }
    fence_mbarrier_init();
  }
  clear_rows_early(args, shared);
  if constexpr (P::kKind == GemmKind::kDense) let_next_begin();
  await_earlier();
  __syncthreads();
  Items<P> const items(args, reinterpret_cast<int*>(dynamic + Plan<P>::kSharedBytes));
  if (threadIdx.x < kGroupThreads) {
    setmaxnreg_dec<kProducerRegisters>();
    produce(args, items, shared);
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    clear_rows_late(args, shared);
    consume(args, items, shared);
  }
}

}  // namespace humming::sm90
