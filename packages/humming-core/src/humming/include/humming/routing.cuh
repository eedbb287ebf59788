// Choices of experts, sorted: into tiles of rows for indexed products (align_rows() of
// humming/scheduling/groups.py on the device), into rows that lie together for contiguous ones, or
// into a block of rows for each expert for masked ones (route() of humming/combining.py). Everything
// is decided by counting, so the slots are the same on every run: ascending numbers of choices per
// expert.
//
// Each CTA places a run of the choices, each warp a run of that. What a warp's first choice of an
// expert finds before it is known from counts: of what lies before the CTA's run, of the warps
// before, and of all choices, for the experts before. So every CTA counts all choices by itself,
// which takes a fraction of the time that it takes to scatter them, and none waits for another.
//
//   row 0        counts of what lies before this CTA's run      then: where it begins in slots
//   row 1 + w    counts of the run of warp w                          next slot of warp w
//   last row     counts of what lies behind this CTA's run
#pragma once

#include <humming/overlap.cuh>

namespace humming {

inline constexpr int kAlignThreads = 1024;
inline constexpr int kAlignExperts = 1024;  // one per thread, which adds up the expert's counts

/// Numbers of choices, from `begin` up to `end`.
struct Choices {
  u32 begin, end;

  /// Part `number` of parts of `chunks` times 32 choices.
  __device__ Choices part(u32 number, u32 chunks) const {
    u32 const from = begin + number * chunks * 32, to = from + chunks * 32;
    return {from < end ? from : end, to < end ? to : end};
  }
  __device__ u32 chunks() const { return (end - begin + 31) / 32; }
};

/// Ids [choices] of experts, 32 or 64 bits wide; those outside of [0, experts) are nobody's.
template <class Id>
struct ExpertIds {
  static constexpr int kBatch = 4;  // loads under way at a time

  Id const* ids;
  int experts;

  /// Expert of a choice; `experts` if it has none, or lies behind the end.
  __device__ int expert(u32 number, u32 end) const {
    if (number >= end) return experts;
    Id const id = ids[number];
    return id >= 0 && id < experts ? int(id) : experts;
  }

  /// Adds 1 to its expert's count for each of the choices `first`, `first` + kStride, ...
  template <u32 kStride>
  __device__ void count(u32 first, u32 end, u32* counts) const {
    for (u32 number = first; number < end; number += kStride * kBatch) {
      int found[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) found[i] = expert(number + i * kStride, end);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (found[i] < experts) atomicAdd(counts + found[i], 1u);
      }
    }
  }

  /// Gives the numbers of a warp's choices, in their order, the slots from next[expert] on.
  template <class Sink>
  __device__ void place(Choices choices, u32* next, Sink const& sink) const {
    u32 const lane = threadIdx.x % 32;
    for (u32 begin = choices.begin; begin < choices.end; begin += 32 * kBatch) {
      int found[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) found[i] = expert(begin + i * 32 + lane, choices.end);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (begin + i * 32 >= choices.end) break;  // a warp's run is often shorter than a batch
        u32 const same = __match_any_sync(~0u, found[i]);
        u32 const rank = __popc(same & ((1u << lane) - 1));
        bool const placed = found[i] < experts;
        u32 slot = 0;
        if (placed) slot = next[found[i]] + rank;
        __syncwarp();
        if (placed && rank == 0) next[found[i]] = slot + __popc(same);
        __syncwarp();
        u32 const number = begin + i * 32 + lane;
        if (placed) sink.place(slot, number, u32(found[i]));
        if (!placed && number < choices.end) sink.leave(number);
      }
    }
  }
};

/// Of each lane the sum of the lanes up to it.
__device__ __forceinline__ u32 warp_sums(u32 value) {
  u32 const lane = threadIdx.x % 32;
#pragma unroll
  for (u32 distance = 1; distance < 32; distance *= 2) {
    u32 const other = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

template <int kRowTile>
struct AlignedExperts {
  static constexpr int kWarps = kAlignThreads / 32;
  // All in all 48 KiB, which every device has without being asked.
  static constexpr int kWords = 12 * 1024 - 2 * kAlignExperts - kWarps;

  u32 rows[kWords];  // of counts, as above, `experts` words each
  u32 first[kAlignExperts];  // row of tiles at which an expert begins
  u32 count[kAlignExperts];  // choices of an expert
  u32 sums[kWarps];

  static __device__ u32 tiles(u32 choices) { return (choices + kRowTile - 1) / kRowTile; }

  /// How many warps can have a row.
  static __device__ u32 warps(int experts) {
    int const rows = kWords / experts - 2;
    return u32(rows < kWarps ? rows : kWarps);
  }

  /// Turns `height` rows of counts into where each begins in slots, each expert's from where the
  /// sink wants them; returns how many rows of tiles there are. All threads call it, between
  /// barriers.
  template <class Sink>
  __device__ u32 begin_slots(Sink const& sink, int experts, u32 height) {
    u32 const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    bool const mine = thread < u32(experts);
    u32* const column = rows + thread;
    u32 sum = 0;
    if (mine) {
#pragma unroll 4
      for (u32 row = 0; row < height; ++row) sum += column[row * experts];
    }
    u32 const until = warp_sums(tiles(sum));
    if (lane == 31) sums[warp] = until;
    __syncthreads();
    u32 const warps = warp_sums(sums[lane]);
    u32 const before = warp == 0 ? 0 : __shfl_sync(~0u, warps, int(warp) - 1);
    if (mine) {
      first[thread] = before + until - tiles(sum);
      count[thread] = sum;
      u32 at = sink.begin(thread, first[thread]);
#pragma unroll 4
      for (u32 row = 0; row < height; ++row) {
        u32 const counted = column[row * experts];
        column[row * experts] = at;
        at += counted;
      }
    }
    return __shfl_sync(~0u, warps, 31);
  }
};

/// Stores where each expert's rows begin, [experts + 1], and how many there are.
__device__ inline void store_offsets(AlignedExperts<1> const& found, int* offsets, int* rows,
                                     int experts, u32 all) {
  u32 const thread = blockIdx.x * kAlignThreads + threadIdx.x;
  u32 const threads = gridDim.x * kAlignThreads;
  for (u32 expert = thread; expert < experts; expert += threads)
    offsets[expert] = int(found.first[expert]);
  if (thread == 0) offsets[experts] = *rows = int(all);
}

/// Tiles of kRowTile slots, each with one expert. slots: int32, row_tiles * kRowTile of them.
/// tile_experts: int32 per row of tiles. row_tiles: how many there are.
template <int kRowTile>
struct TileSlots {
  static constexpr int kTile = kRowTile;

  int* slots;
  int* tile_experts;
  int* row_tiles;

  __device__ u32 begin(u32, u32 tiles) const { return tiles * kTile; }
  __device__ void place(u32 slot, u32 choice, u32) const { slots[slot] = int(choice); }
  __device__ void leave(u32) const {}

  /// Stores the experts of tiles, and in each expert's last tile the number that no choice has.
  __device__ void finish(AlignedExperts<kTile> const& found, int experts, int choices,
                         u32 tiles) const {
    constexpr int kWarps = AlignedExperts<kTile>::kWarps;
    if (blockIdx.x == 0 && threadIdx.x == 0) *row_tiles = int(tiles);
    u32 const lane = threadIdx.x % 32, all = gridDim.x * kWarps;
    for (u32 expert = blockIdx.x * kWarps + threadIdx.x / 32; expert < experts; expert += all) {
      u32 const begin = found.first[expert], end = begin + found.tiles(found.count[expert]);
      for (u32 tile = begin + lane; tile < end; tile += 32) tile_experts[tile] = int(expert);
      u32 const padding = begin * kTile + found.count[expert];
      for (u32 slot = padding + lane; slot < end * kTile; slot += 32) slots[slot] = choices;
    }
  }
};

/// Choices sorted by expert, and no tiles. slots: int32 [choices]. offsets [experts + 1]: where each
/// expert's begin. rows: how many there are.
struct SortedSlots {
  static constexpr int kTile = 1;

  int* slots;
  int* offsets;
  int* rows;

  __device__ u32 begin(u32, u32 rows_before) const { return rows_before; }
  __device__ void place(u32 slot, u32 choice, u32) const { slots[slot] = int(choice); }
  __device__ void leave(u32) const {}

  __device__ void finish(AlignedExperts<kTile> const& found, int experts, int, u32 all) const {
    store_offsets(found, offsets, rows, experts, all);
  }
};

/// Rows that lie together for each expert. sources [choices]: the row of activations of each row,
/// `choices` behind the last. places [choices]: the row of each choice, or -1. offsets
/// [experts + 1]: where each expert's rows begin. rows [1]: how many there are.
struct SortedRows {
  static constexpr int kTile = 1;

  int* sources;
  int* places;
  int* offsets;
  int* rows;
  u32 per_source;  // choices of a row of activations

  __device__ u32 begin(u32, u32 rows_before) const { return rows_before; }
  __device__ void place(u32 slot, u32 choice, u32) const {
    sources[slot] = int(choice / per_source);
    places[choice] = int(slot);
  }
  __device__ void leave(u32 choice) const { places[choice] = -1; }

  __device__ void finish(AlignedExperts<kTile> const& found, int experts, int choices,
                         u32 all) const {
    store_offsets(found, offsets, rows, experts, all);
    u32 const thread = blockIdx.x * kAlignThreads + threadIdx.x;
    u32 const threads = gridDim.x * kAlignThreads;
    for (u32 row = all + thread; row < choices; row += threads) sources[row] = choices;
  }
};

/// `capacity` rows for each expert. sources [experts * capacity]: the row of activations of each
/// row, `choices` where it is nobody's. places [choices]: the row of each choice, or -1. counts
/// [experts]: how many rows of each count, the first ones. What does not fit has no row.
struct MaskedRows {
  static constexpr int kTile = 1;

  int* sources;
  int* places;
  int* counts;
  u32 per_source;  // choices of a row of activations
  u32 capacity;

  __device__ u32 begin(u32 expert, u32) const { return expert * capacity; }
  __device__ void place(u32 slot, u32 choice, u32 expert) const {
    bool const fits = slot < (expert + 1) * capacity;
    if (fits) sources[slot] = int(choice / per_source);
    places[choice] = fits ? int(slot) : -1;
  }
  __device__ void leave(u32 choice) const { places[choice] = -1; }

  __device__ void finish(AlignedExperts<kTile> const& found, int experts, int choices, u32) const {
    u32 const thread = blockIdx.x * kAlignThreads + threadIdx.x;
    u32 const threads = gridDim.x * kAlignThreads;
    for (u32 expert = thread; expert < experts; expert += threads)
      counts[expert] = int(found.count[expert] < capacity ? found.count[expert] : capacity);
    for (u32 row = thread; row < experts * capacity; row += threads) {
      if (row % capacity >= found.count[row / capacity]) sources[row] = choices;
    }
  }
};

/// Choices that stay where they are. table [choices]: the expert of each, or -1. sources and places
/// as of SortedRows, each choice being its own row. Any number of CTAs and threads.
template <class Id>
__device__ void keep_choices(Id const* ids, int* sources, int* places, int* table, int choices,
                             int experts, int per_source) {
  let_next_begin_if_few();
  await_earlier();
  ExpertIds<Id> const source{ids, experts};
  u32 const threads = gridDim.x * blockDim.x, end = u32(choices);
  for (u32 choice = blockIdx.x * blockDim.x + threadIdx.x; choice < end; choice += threads) {
    int const expert = source.expert(choice, end);
    table[choice] = expert < experts ? expert : -1;
    sources[choice] = int(choice / u32(per_source));
    places[choice] = expert < experts ? int(choice) : -1;
  }
}

/// Sorts choices into a TileSlots, SortedRows or MaskedRows. At most kAlignExperts experts; any
/// number of CTAs of kAlignThreads threads.
template <class Id, class Sink>
__device__ void sort_choices(Id const* ids, Sink const& sink, int choices, int experts) {
  __shared__ AlignedExperts<Sink::kTile> shared;
  let_next_begin_if_few();
  ExpertIds<Id> const source{ids, experts};
  u32 const thread = threadIdx.x, lane = thread % 32, warp = thread / 32;

  Choices const all{0, u32(choices)};
  Choices const mine = all.part(blockIdx.x, (all.chunks() + gridDim.x - 1) / gridDim.x);
  u32 const limit = shared.warps(experts), chunks = (mine.chunks() + limit - 1) / limit;
  u32 const warps = chunks ? (mine.chunks() + chunks - 1) / chunks : 0;
  Choices const run = mine.part(warp, chunks);
  u32* const row = shared.rows + (1 + warp) * experts;

  for (u32 i = thread; i < (warps + 2) * experts; i += kAlignThreads) shared.rows[i] = 0;
  await_earlier();
  __syncthreads();
  source.template count<kAlignThreads>(thread, mine.begin, shared.rows);
  if (warp < warps) source.template count<32>(run.begin + lane, run.end, row);
  u32* const behind = shared.rows + (1 + warps) * experts;
  source.template count<kAlignThreads>(mine.end + thread, all.end, behind);
  __syncthreads();
  u32 const tiles = shared.begin_slots(sink, experts, 1 + warps + 1);
  __syncthreads();
  if (warp < warps) source.place(run, row, sink);
  sink.finish(shared, experts, choices, tiles);
}

}  // namespace humming
