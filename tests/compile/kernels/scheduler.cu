// The schedule as a kernel walks it, and a product that keeps its protocol.
#include <humming/scheduler.cuh>

using namespace humming;

constexpr int kMaxGroups = 128;
constexpr int kFields = 12;

// Kinds of groups; the order of GemmKind in humming/configs.py.
enum Kind { kDense, kIndexed, kContiguous, kMasked };

struct Problem {
  int kind, groups, tile_m, columns;
  int steps, unit, split, splits;
  int min_run, width, axis, unused;
  Index rows;  // of all groups, or of one (masked)
};

struct DenseRows {
  Index rows;
  __device__ RowRange operator()(int) const { return {0, rows}; }
};

template <class Count>
__device__ int walk(Problem const& problem, Count const* counts, int* prefix) {
  int const lane = int(threadIdx.x), groups = problem.groups, tile_m = problem.tile_m;
  if (problem.kind == kContiguous)
    return walk_groups(ContiguousRows<Count>{counts, problem.rows}, groups, tile_m, lane, prefix);
  if (problem.kind == kMasked)
    return walk_groups(MaskedRows<Count>{counts, problem.rows}, groups, tile_m, lane, prefix);
  return walk_groups(DenseRows{problem.rows}, 1, tile_m, lane, prefix);
}

template <class Count>
__device__ RowRange group_rows(Problem const& problem, Count const* counts, int group) {
  if (problem.kind == kContiguous) return ContiguousRows<Count>{counts, problem.rows}(group);
  if (problem.kind == kMasked) return MaskedRows<Count>{counts, problem.rows}(group);
  return {0, problem.rows};
}

__device__ Schedule schedule_of(Problem const& problem, Index row_tiles) {
  Partition const partition{Split(problem.split), problem.splits, problem.min_run};
  return make_schedule(row_tiles * problem.columns, problem.steps, int(gridDim.x), problem.unit,
                       partition);
}

// Per CTA its number of items, and room for `capacity` of them with kFields numbers each.
template <class Count>
__device__ void write_items(Problem const& problem, Count const* counts, Index* written,
                            Index* items, int capacity) {
  __shared__ int prefix[kMaxGroups + 1];
  __shared__ int row_tiles;
  if (threadIdx.x < 32) {
    int const sum = walk(problem, counts, prefix);
    if (threadIdx.x == 0) row_tiles = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int const cta = int(blockIdx.x);
  Schedule const schedule = schedule_of(problem, row_tiles);
  Raster const raster{problem.width, Axis(problem.axis)};
  Index const count = schedule.item_count(cta);
  written[cta] = count;
  for (Index i = 0; i < count && i < capacity; ++i) {
    WorkItem const item = schedule.item(cta, i);
    Place const place = place_tile(raster, prefix, problem.groups, problem.columns, item.tile);
    RowRange const rows =
        tile_rows(group_rows(problem, counts, place.group), place.row, problem.tile_m);
    Index const fields[kFields] = {item.tile,  item.k_begin, item.k_end, item.part,
                                   item.parts, item.slot,    item.counter, place.group,
                                   place.row,  place.column, rows.begin,   rows.end};
    for (int f = 0; f < kFields; ++f) items[(cta * Index(capacity) + i) * kFields + f] = fields[f];
  }
}

extern "C" __global__ void write_items_32(Problem problem, int const* counts, Index* written,
                                          Index* items, int capacity) {
  write_items(problem, counts, written, items, capacity);
}

extern "C" __global__ void write_items_64(Problem problem, long long const* counts, Index* written,
                                          Index* items, int capacity) {
  write_items(problem, counts, written, items, capacity);
}

// Tile t, element e: the sum over all steps s of values[(t * steps + s) * 64 + e]. Two warps. A tile
// without an expert is skipped.
extern "C" __global__ void sum_tiles(Index tiles, int steps, int unit, int split, int splits,
                                     int min_run, int const* experts, float const* values,
                                     unsigned* counters, float* partials, float* sums,
                                     int* stores) {
  __shared__ int is_last;
  Partition const partition{Split(split), splits, min_run};
  Schedule const schedule = make_schedule(tiles, steps, int(gridDim.x), unit, partition);
  int const cta = int(blockIdx.x), e = int(threadIdx.x);
  for (Index i = 0, count = schedule.item_count(cta); i < count; ++i) {
    WorkItem const item = schedule.item(cta, i);
    if (experts[item.tile] < 0) continue;
    float sum = 0.0f;
    for (int s = item.k_begin; s < item.k_end; ++s)
      sum += values[(item.tile * steps + s) * 64 + e];
    if (item.parts > 1) {
      partials[item.slot * 64 + e] = sum;
      __syncthreads();
      if (e == 0) is_last = arrive_last(counters + item.counter, item.parts);
      __syncthreads();
      if (!is_last) continue;
      sum = partials[schedule.slot(item.tile, 0) * 64 + e];
      for (int part = 1; part < item.parts; ++part)
        sum += partials[schedule.slot(item.tile, part) * 64 + e];
    }
    sums[item.tile * 64 + e] = sum;
    atomicAdd(stores + item.tile, 1);
  }
}
