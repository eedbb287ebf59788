// Sums of the CTAs that share a tile, added in the order of K by the one that comes last.
#pragma once

#include <humming/gemm/numbers.cuh>
#include <humming_sm90/multiply.cuh>

namespace humming::sm90 {

/// Stores the totals of a part in the workspace. True for the CTA that finds all parts there, with
/// their sum. Every thread that multiplies calls it. `Sums` is a thread's totals: kSums of them, each a
/// Number, in fours.
template <class P, class Args, class Sums>
__device__ __forceinline__ bool add_parts(Args const& args, Item const& item, Consumer const& place,
                                          u32 shared_flag, Sums& totals) {
  using Number = typename Sums::Number;
  constexpr int kThreads = kConsumers * kGroupThreads, kBarrier = 1 + kConsumers;
  constexpr int kFours = Sums::kSums / 4;
  constexpr int kSlotBytes = kFours * kThreads * 16;
  /// Loads that a thread waits for together: of several parts, or of some of the sums of one.
  constexpr int kLoads = kFours < 16 ? kFours : 16, kTogether = 16 / kLoads;
  static_assert(kFours % kLoads == 0, "add_parts: a batch that is not whole");
  int const thread = 32 * place.warp + place.lane;
  u8* const slots = args.workspace + P::kCounterBytes +
                    Index(item.number) * item.parts * kSlotBytes + thread * 16;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    Number const* const sums = totals.four(i);
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
#pragma unroll
  for (int batch = 0; batch < kFours; batch += kLoads) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) totals.four(batch + i)[j] = 0;
#pragma unroll 1
    for (int first = 0; first < item.parts; first += kTogether) {
      u32 words[kTogether][kLoads][4];
#pragma unroll
      for (int part = 0; part < kTogether; ++part) {
        // Of parts that are not there the last one again, which nothing is added for.
        int const found = first + part < item.parts ? first + part : item.parts - 1;
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
          load_128(words[part][i], slots + found * kSlotBytes + (batch + i) * (kThreads * 16));
      }
#pragma unroll
      for (int part = 0; part < kTogether; ++part) {
        if (first + part >= item.parts) break;
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            totals.four(batch + i)[j] += number_of<Number>(words[part][i][j]);
      }
    }
  }
  return true;
}

}  // namespace humming::sm90
