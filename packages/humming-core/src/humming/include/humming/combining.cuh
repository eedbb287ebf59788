// The weighted sum of what the experts of a token gave: humming/combining.py on the device, to the
// bit: choices from the first to the last, every product and every sum rounded by itself.
#pragma once

#include <humming/chunks.cuh>

namespace humming {

/// What the kernel is given; see combine_spec() of humming/expert_kernels.py.
template <class Id>
struct CombineArguments {
  u8 const* y;
  Id const* ids;
  float const* weights;  // or null: 1
  u8 const* shared;      // or null: nothing
  u8* out;
  int tokens, top_k, experts, width;
  int const* places;  // the row of y of each choice; null: choices are in order
};

template <class Format, class Id, bool kWhole>
__device__ void combine_rows(CombineArguments<Id> const& args) {
  using C = Chunks<Format, kWhole>;
  let_next_begin_if_few();
  await_earlier();
  constexpr int kBatch = 4;  // rows under way at a time
  ChunkPlace const place = ChunkPlace::mine();
  int const count = args.width - place.first;
  if (place.row >= args.tokens || count <= 0) return;

  float sums[kChunk] = {};
  i64 const first = place.row * args.top_k;
#pragma unroll 1
  for (int begin = 0; begin < args.top_k; begin += kBatch) {
    bool here[kBatch];
    float weight[kBatch];
    typename C::Raw rows[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      here[i] = false;
      if (begin + i >= args.top_k) continue;
      i64 const choice = first + begin + i;
      Id const id = args.ids[choice];
      here[i] = id >= 0 && id < args.experts;
      weight[i] = args.weights ? args.weights[choice] : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      i64 const choice = first + begin + i;
      i64 const row = args.places && here[i] ? args.places[choice] : choice;
      i64 const from = (row * args.width + place.first) * C::kBytes;
      if (here[i]) rows[i] = C::load(args.y + from, count);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (!here[i]) continue;
#pragma unroll
      for (int e = 0; e < kChunk; ++e)
        sums[e] = __fadd_rn(sums[e], __fmul_rn(weight[i], rows[i][e]));
    }
  }
  i64 const at = (place.row * args.width + place.first) * C::kBytes;
  if (args.shared) {
    auto const values = C::load(args.shared + at, count);
#pragma unroll
    for (int e = 0; e < kChunk; ++e) sums[e] = __fadd_rn(sums[e], values[e]);
  }
  C::store(args.out + at, count, sums);
}

}  // namespace humming
