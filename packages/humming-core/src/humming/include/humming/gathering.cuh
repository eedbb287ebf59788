// Rows of activations in another order: those of each expert together.
#pragma once

#include <humming/chunks.cuh>

namespace humming {

/// Scales of rows, one of each, or `count` of each; none are null.
struct ScaleColumns {
  float const* from;
  float* to;
  int count;

  /// Copies of a row those that are thread `number`'s of `threads`.
  __device__ __forceinline__ void copy(i64 row, u32 source, int number, int threads) const {
    if (from == nullptr) return;
    for (int i = number; i < count; i += threads) to[row * count + i] = from[i64(source) * count + i];
  }
};

/// out[row] = x[sources[row] / per_source], as it is, and so its scales; rows whose source is none of
/// `limit` rows are not written.
template <class Format, bool kWhole>
__device__ void gather_rows(u8 const* x, i64 x_stride, int const* sources, u8* out, int limit,
                            int rows, int width, int per_source,
                            ScaleColumns const& scales, ScaleColumns const& groups) {
  using C = Chunks<Format, kWhole>;
  let_next_begin_if_few();
  await_earlier();
  ChunkPlace const place = ChunkPlace::mine();
  int const count = width - place.first;
  if (place.row >= rows || count <= 0) return;
  u32 const source = u32(sources[place.row]) / u32(per_source);  // a negative one is far too large
  if (source >= u32(limit)) return;
  auto const raw = C::load(x + source * x_stride + i64(place.first) * C::kBytes, count);
  int const number = place.first / kChunk, threads = (width + kChunk - 1) / kChunk;
  scales.copy(place.row, source, number, threads);
  groups.copy(place.row, source, number, threads);
  C::store(out + (place.row * width + place.first) * C::kBytes, count, raw);
}

}  // namespace humming
