// An activation function of rows, with a gate or without: humming/gating.py on the device.
#pragma once

#include <humming/chunks.cuh>
#include <humming/functions.cuh>

namespace humming {

// Which rows are computed, and of which rows: source() gives the row that is read, or -1.

struct EveryRow {
  static __device__ __forceinline__ bool has(void const*, int, i64) { return true; }
  static __device__ __forceinline__ i64 source(void const*, int, i64 row) { return row; }
};

/// Rows of a table of row numbers; those that are none of `limit` rows are not computed.
struct MappedRows {
  static __device__ __forceinline__ i64 source(void const* table, int limit, i64 row) {
    i32 const found = static_cast<i32 const*>(table)[row];
    return found < limit ? found : -1;
  }
};

/// Rows whose id is one of `limit` experts.
template <class Id>
struct RowsOfExperts {
  static __device__ __forceinline__ bool has(void const* mask, int limit, i64 row) {
    Id const id = static_cast<Id const*>(mask)[row];
    return id >= 0 && id < limit;
  }
  static __device__ __forceinline__ i64 source(void const* mask, int limit, i64 row) {
    return has(mask, limit, row) ? row : -1;
  }
};

/// `limit` rows for each expert, of which the first mask[expert] count.
struct CountedRows {
  static __device__ __forceinline__ bool has(void const* mask, int limit, i64 row) {
    int const expert = int(row) / limit;
    return int(row) - expert * limit < static_cast<int const*>(mask)[expert];
  }
  static __device__ __forceinline__ i64 source(void const* mask, int limit, i64 row) {
    return has(mask, limit, row) ? row : -1;
  }
};

/// out[row, i] = P::Function::of(inputs of x[row] for i). P: Element, Mask, Function, kWhole,
/// kGated, kInterleaved.
template <class P>
__device__ void gate_rows(u8 const* x, i64 x_stride, u8* out, void const* mask, int limit, int rows,
                          int width) {
  using C = Chunks<typename P::Element, P::kWhole>;
  let_next_begin_if_few();
  await_earlier();
  ChunkPlace const place = ChunkPlace::mine();
  int const count = width - place.first;
  if (place.row >= rows || count <= 0) return;
  if (!P::Mask::has(mask, limit, place.row)) return;

  u8 const* const from = x + place.row * x_stride;
  float results[kChunk];
  if constexpr (!P::kGated) {
    auto const values = C::load(from + i64(place.first) * C::kBytes, count);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) results[i] = P::Function::of(values[i]);
  } else {
    // Two chunks that lie side by side, or `width` numbers apart.
    constexpr bool kPairs = P::kInterleaved;
    i64 const begin = i64(place.first) * (kPairs ? 2 * C::kBytes : C::kBytes);
    i64 const apart = i64(kPairs ? kChunk : width) * C::kBytes;
    auto const one = C::load(from + begin, kPairs ? 2 * count : count);
    auto const two = C::load(from + begin + apart, kPairs ? 2 * count - kChunk : count);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      auto const& pair = i < kChunk / 2 ? one : two;
      int const at = 2 * i % kChunk;
      float const gate = kPairs ? pair[at] : one[i], up = kPairs ? pair[at + 1] : two[i];
      results[i] = P::Function::of(gate, up);
    }
  }
  C::store(out + (place.row * width + place.first) * C::kBytes, count, results);
}

}  // namespace humming
