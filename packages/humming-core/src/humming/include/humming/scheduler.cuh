// Which CTA computes which part of a product, in which order: twin of humming/scheduling.
//
// A persistent kernel asks it like this; all of a CTA's threads get the same answers:
//
//   Schedule const schedule = make_schedule(tiles, steps, ctas, unit, partition);
//   for (Index i = 0, count = schedule.item_count(cta); i < count; ++i) {
//     WorkItem const item = schedule.item(cta, i);
//     Place const place = place_tile(raster, prefix, groups, columns, item.tile);
//     ... multiply the steps [item.k_begin, item.k_end) ...
//     if (item.parts == 1) { store; continue; }
//     ... all threads store their partials to item.slot ...
//     __syncthreads();
//     if (thread == 0) shared_flag = arrive_last(counters + item.counter, item.parts);
//     __syncthreads();
//     if (!shared_flag) continue;
//     ... add the slots schedule.slot(item.tile, 0), slot(item.tile, 1), ... in this order; store ...
//   }
//
// The CTA that arrives last adds, so none waits for another: there is no order of CTAs, and no
// other kernel on the device, that makes it hang. Who that is does not matter for the bits.
//
// Indices are 64-bit. A division of those costs as much as one of 32 bits where the operands fit
// (the compiler tests for it); an item takes four to eight of them.
#pragma once

namespace humming {

using Index = long long;

__host__ __device__ constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }
__host__ __device__ constexpr Index smaller(Index a, Index b) { return a < b ? a : b; }
__host__ __device__ constexpr Index larger(Index a, Index b) { return a < b ? b : a; }

// ------------------------------------------------------------------------------------ K to CTAs

enum class Split { kDataParallel, kSplitK, kStreamK };

struct Partition {
  Split split;
  int splits;   // kSplitK: parts of every tile
  int min_run;  // kStreamK: the fewest units that are worth a CTA
};

// A run of K steps of one tile: part number `part` of the `parts` that complete it.
struct WorkItem {
  Index tile;
  int k_begin, k_end;  // in units of tile_k
  int part, parts;     // by ascending K
  Index slot;          // of its fp32 partial in the workspace; -1: it is the whole tile
  Index counter;       // shared by the parts of the tile; -1: it is the whole tile

  __host__ __device__ constexpr bool is_first() const { return part == 0; }
  __host__ __device__ constexpr bool is_last() const { return part == parts - 1; }
};

struct Schedule {
  Index tiles;
  int steps, ctas, unit;
  int units;           // of one tile
  int splits;          // parts of a tile that is not in the stream
  int runs;            // CTAs that have a run of the stream
  Index stream_tiles;  // tiles shared in runs: number 0 up to this
  Index run_length;    // units of a run; the first `longer_runs` have one more
  int longer_runs;

  __host__ __device__ constexpr Index run_begin(int run) const {
    return run * run_length + smaller(run, longer_runs);
  }

  __host__ __device__ constexpr int run_of(Index unit_of_stream) const {
    Index const border = longer_runs * (run_length + 1);
    if (unit_of_stream < border) return int(unit_of_stream / (run_length + 1));
    return int(longer_runs + (unit_of_stream - border) / run_length);
  }

  __host__ __device__ constexpr Index item_count(int cta) const {
    return stream_count(cta) + wave_count(cta);
  }

  // Item `index` of item_count(cta); tiles of the stream come first.
  __host__ __device__ constexpr WorkItem item(int cta, Index index) const {
    Index const stream = stream_count(cta);
    if (index < stream) return stream_item(cta, index);
    return wave_item(cta + (index - stream) * ctas);
  }

  __host__ __device__ constexpr int parts(Index tile) const {
    if (tile >= stream_tiles) return splits;
    return run_of((tile + 1) * units - 1) - run_of(tile * units) + 1;
  }

  // Where the partial of a tile's part lies; -1 if the tile has one part.
  __host__ __device__ constexpr Index slot(Index tile, int part) const {
    if (parts(tile) == 1) return -1;
    if (tile >= stream_tiles) return tile * splits + part;
    Index const begin = tile * units;
    int const run = run_of(begin) + part;
    return 2 * Index(run) + (run_begin(run) < begin);
  }

  __host__ __device__ constexpr Index stream_count(int cta) const {
    if (cta >= runs) return 0;
    return (run_begin(cta + 1) - 1) / units - run_begin(cta) / units + 1;
  }

  __host__ __device__ constexpr Index wave_count(int cta) const {
    Index const count = (tiles - stream_tiles) * splits;
    return cta < count ? ceil_div(count - cta, ctas) : 0;
  }

  __host__ __device__ constexpr WorkItem stream_item(int cta, Index index) const {
    Index const begin = run_begin(cta), end = run_begin(cta + 1);
    Index const tile = begin / units + index, start = tile * units;
    int const part = cta - run_of(start), count = parts(tile);
    WorkItem item{tile, 0, 0, part, count, -1, -1};
    item.k_begin = int(larger(begin - start, 0)) * unit;
    item.k_end = int(smaller(smaller(end - start, units) * unit, steps));
    if (count > 1) {
      item.slot = 2 * Index(cta) + (index > 0);
      item.counter = tile;
    }
    return item;
  }

  __host__ __device__ constexpr WorkItem wave_item(Index number) const {
    Index const tile = splits == 1 ? number : number / splits;
    int const part = int(number - tile * splits);
    int const length = units / splits, longer = units - length * splits;
    int const begin = part * length + int(smaller(part, longer));
    WorkItem item{stream_tiles + tile, 0, 0, part, splits, -1, -1};
    item.k_begin = begin * unit;
    item.k_end = int(smaller(Index(begin + length + (part < longer)) * unit, steps));
    if (splits > 1) {
      item.slot = number;
      item.counter = item.tile;
    }
    return item;
  }
};

// tiles: 0 or more. steps: of K, ceil(K / tile_k). unit: steps that are never split apart.
__host__ __device__ constexpr Schedule make_schedule(Index tiles, int steps, int ctas, int unit,
                                                     Partition partition) {
  int const units = int(ceil_div(steps, unit));
  Schedule schedule{tiles, steps, ctas, unit, units, 1, 0, 0, 0, 0};
  if (partition.split == Split::kSplitK) schedule.splits = int(smaller(partition.splits, units));
  if (partition.split == Split::kStreamK && tiles % ctas != 0) {
    // Whole waves but one are not in the stream, so that its runs are not shorter than a tile.
    schedule.stream_tiles = tiles % ctas + (tiles < ctas ? 0 : ctas);
    Index const all = schedule.stream_tiles * units;
    schedule.runs = int(smaller(all / smaller(partition.min_run, units), ctas));
    schedule.run_length = all / schedule.runs;
    schedule.longer_runs = int(all - schedule.run_length * schedule.runs);
  }
  return schedule;
}

// Called by one thread, after a __syncthreads() behind which all of the CTA's partials are stored:
// whether all parts of the tile are stored. Then it is true for one CTA, what that CTA reads after
// its next __syncthreads() is what the others stored, and the counter is zero for the next launch.
__device__ inline bool arrive_last(unsigned* counter, int parts) {
  __threadfence();  // cumulative: also what other threads stored before the barrier
  bool const last = atomicAdd(counter, 1u) + 1u == unsigned(parts);
  if (last) *counter = 0;
  __threadfence();
  return last;
}

// ---------------------------------------------------------------------------------- tile to place

enum class Axis { kColumns, kRows };

// The walk through the tiles of a group: bands of `width` tiles along `axis`.
struct Raster {
  int width;
  Axis axis;
};

struct Place {
  int group, row, column;
};

// Integer: Index, or unsigned where the tiles of the group are that few.
template <class Integer>
__host__ __device__ constexpr Place place_in_group(Raster raster, int group, Integer tile, int rows,
                                                   int columns) {
  bool const by_columns = raster.axis == Axis::kColumns;
  int const across = by_columns ? columns : rows, length = by_columns ? rows : columns;
  Integer const size = Integer(raster.width) * Integer(length);
  int const band = int(tile / size), before = band * raster.width;
  Integer const rest = tile - Integer(band) * size;
  int const left = across - before;
  Integer const width = Integer(left < raster.width ? left : raster.width);  // of the last: less
  int const along = int(rest / width);
  int const other = before + int(rest - Integer(along) * width);
  return by_columns ? Place{group, along, other} : Place{group, other, along};
}

// The group that a row of tiles lies in: O(log groups). prefix: rows of tiles before each group and
// of all, [groups + 1]; groups without rows are stepped over.
__host__ __device__ constexpr int find_group(int const* prefix, int groups, int row) {
  int low = 0, high = groups;  // prefix[low] <= row < prefix[high]
  while (high - low > 1) {
    int const middle = (low + high) / 2;
    if (prefix[middle] <= row) low = middle;
    else high = middle;
  }
  return low;
}

__host__ __device__ constexpr Place place_tile(Raster raster, int const* prefix, int groups,
                                               int columns, Index tile) {
  int const group = find_group(prefix, groups, int(tile / columns));
  Index const first = Index(prefix[group]) * columns;
  return place_in_group(raster, group, tile - first, prefix[group + 1] - prefix[group], columns);
}

// ---------------------------------------------------------------------------------- rows of groups

struct RowRange {
  Index begin, end;
};

// Rows sorted by group. Offsets that do not ascend, or leave [0, rows], are clamped.
template <class Count>
struct ContiguousRows {
  Count const* offsets;  // [groups + 1]
  Index rows;

  __host__ __device__ constexpr RowRange operator()(int group) const {
    Index const begin = smaller(larger(offsets[group], 0), rows);
    return {begin, smaller(larger(offsets[group + 1], begin), rows)};
  }
};

// `capacity` rows per group, of which the first `counts[group]` are there. Counts are clamped.
template <class Count>
struct MaskedRows {
  Count const* counts;  // [groups]
  Index capacity;

  __host__ __device__ constexpr RowRange operator()(int group) const {
    Index const begin = group * capacity;
    return {begin, begin + smaller(larger(counts[group], 0), capacity)};
  }
};

// The rows of the tiles in row `row` of a group.
__host__ __device__ constexpr RowRange tile_rows(RowRange group, int row, int tile_m) {
  Index const begin = group.begin + Index(row) * tile_m;
  return {begin, smaller(begin + tile_m, group.end)};
}

// The row of activations that a slot of an indexed problem names; -1 for padding and sentinels.
__host__ __device__ constexpr Index source_row(Index slot, Index choices, int top_k) {
  return slot >= 0 && slot < choices ? slot / top_k : -1;
}

// Fills prefix [groups + 1], in shared memory, with the rows of tiles before each group and of all;
// returns the number of all. One whole warp calls it; the others may read after a __syncthreads().
// A lane has groups that lie side by side and loads several at a time, for the table may have to come
// from memory, and nothing can begin before: up to 256 groups wait for it once.
template <class Rows>
__device__ int walk_groups(Rows const& rows, int groups, int tile_m, int lane, int* prefix) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kBatch = 8;
  int const each = int(ceil_div(groups, 32)), begin = lane * each;
  int const end = begin + each < groups ? begin + each : groups;
  int sum = 0;
  for (int first = begin; first < end; first += kBatch) {
    int tiles[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      RowRange const range = rows(first + i < end ? first + i : end - 1);
      tiles[i] = int(ceil_div(range.end - range.begin, tile_m));
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= end) break;
      prefix[first + i + 1] = tiles[i];
      sum += tiles[i];
    }
  }
  int until = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    int const other = __shfl_up_sync(kAll, until, distance);
    if (lane >= distance) until += other;
  }
  int before = until - sum;
  for (int group = begin; group < end; ++group) {
    before += prefix[group + 1];
    prefix[group + 1] = before;
  }
  if (lane == 0) prefix[0] = 0;
  return __shfl_sync(kAll, until, 31);
}

}  // namespace humming
