// Rows of activations in another order: those of each expert together.
#pragma once

#include <humming/chunks.cuh>

namespace humming {

/// Scales of rows, one of each, or `count` of each; none are null.
struct ScaleColumns {
  float const* from;
  float* to;
  int count;

  /// Copies number `column` of a row, if there is one.
  __device__ __forceinline__ void copy(i64 row, u32 source, int column) const {
    if (from != nullptr && column < count) to[row * count + column] = from[i64(source) * count + column];
  }
};

/// out[row] = x[sources[row] / per_source], as it is, and so its scales; rows whose source is none of
/// `limit` rows are not written. Chunks of a row are as many as its scales, or more.
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
  scales.copy(place.row, source, place.first / kChunk);
  groups.copy(place.row, source, place.first / kChunk);
  C::store(out + (place.row * width + place.first) * C::kBytes, count, raw);
}

}  // namespace humming
