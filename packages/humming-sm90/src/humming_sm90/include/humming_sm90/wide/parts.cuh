// Sums of the CTAs that share a tile, added in the order of K by the one that comes last.
#pragma once

#include <humming_sm90/wide/multiply.cuh>

namespace humming::sm90::wide {

/// Stores the sums of a part in the workspace. True for the CTA that finds all parts there, with
/// their sum. Every thread that multiplies calls it.
template <class P>
__device__ __forceinline__ bool add_parts(Arguments const& args, Item const& item,
                                          Consumer const& place, u32 shared_flag,
                                          Totals<P>& totals) {
  constexpr int kThreads = kConsumers * kGroupThreads, kBarrier = 1 + kConsumers;
  using Number = typename Plan<P>::Total;
  constexpr int kFours = P::kTokens / 8;  // of a thread
  constexpr int kSlotBytes = kFours * kThreads * 16;
  auto const four = [](Totals<P>& of, int number) {
    constexpr int kPerChunk = Plan<P>::kChunk / 8;
    return of.c[number / kPerChunk] + number % kPerChunk * 4;
  };
  int const thread = 32 * place.warp + place.lane;
  u8* const slots = args.workspace + P::kCounterBytes +
                    Index(item.number) * item.parts * kSlotBytes + thread * 16;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    auto const* const sums = four(totals, i);
    u32 const words[4] = {bits_of(sums[0]), bits_of(sums[1]), bits_of(sums[2]), bits_of(sums[3])};
    store_128(slots + item.part * kSlotBytes + i * (kThreads * 16), words);
  }
  named_barrier<kThreads>(kBarrier);
  if (thread == 0) {
    auto* const counters = reinterpret_cast<unsigned*>(args.workspace);
    u32 const flag[4] = {arrive_last(counters + item.number, item.parts), 0, 0, 0};
    store_shared_128(shared_flag, flag);
  }
  named_barrier<kThreads>(kBarrier);
  u32 flag[4];
  load_shared_128(flag, shared_flag);
  if (!flag[0]) return false;
  Number sums[kFours][4] = {};
  for (int part = 0; part < item.parts; ++part) {
    u32 words[kFours][4];
#pragma unroll
    for (int i = 0; i < kFours; ++i)
      load_128(words[i], slots + part * kSlotBytes + i * (kThreads * 16));
#pragma unroll
    for (int i = 0; i < kFours; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[i][j] += number_of<Number>(words[i][j]);
  }
#pragma unroll
  for (int i = 0; i < kFours; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) four(totals, i)[j] = sums[i][j];
  return true;
}

}  // namespace humming::sm90::wide
