// Rows of activations in another order: those of each expert together.
#pragma once

#include <humming/chunks.cuh>

namespace humming {

/// out[row] = x[sources[row]]; rows whose source is none of `limit` rows are not written.
template <class Format, bool kWhole>
__device__ void gather_rows(u8 const* x, i64 x_stride, int const* sources, u8* out, int limit,
                            int rows, int width) {
  using C = Chunks<Format, kWhole>;
  let_next_begin();
  await_earlier();
  ChunkPlace const place = ChunkPlace::mine();
  int const count = width - place.first;
  if (place.row >= rows || count <= 0) return;
  int const source = sources[place.row];
  if (source < 0 || source >= limit) return;
  auto const raw = C::load(x + source * x_stride + i64(place.first) * C::kBytes, count);
  float values[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) values[i] = raw[i];
  C::store(out + (place.row * width + place.first) * C::kBytes, count, values);
}

}  // namespace humming
