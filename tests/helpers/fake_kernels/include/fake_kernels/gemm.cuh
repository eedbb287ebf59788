// out[row, n] = sum over k of x[row, k] * W[n, k] + bias[n], a thread for each element.
#pragma once

#include <fake_kernels/numbers.cuh>

namespace fake {

using humming::i64;

enum class GemmKind { kDense, kIndexed, kGroupedContiguous, kGroupedMasked };

struct Args {
  u8 const* x;
  i64 x_stride;
  float const* x_scales;
  float const* x_groups;
  int const* order;
  int const* weight;
  float const* table;
  float const* scales;
  float const* zeros;
  float const* bias;
  void* out;
  u32* workspace;
  int m, n, k, experts, top_k;
  int const* groups;
  int const* slots;
  int const* row_tiles;
};

/// Where an element comes from and goes to; expert -1 is nowhere.
struct Place {
  i64 x_row, out_row;
  int expert;
};

template <class Config>
__device__ Place place(Args const& args, int row) {
  constexpr GemmKind kKind = Config::kKind;
  if constexpr (kKind == GemmKind::kDense) {
    return {row, row, row < args.m ? 0 : -1};
  } else if constexpr (kKind == GemmKind::kGroupedMasked) {
    int expert = row / args.m;
    bool counted = expert < args.experts && row % args.m < args.groups[expert];
    return {row, row, counted ? expert : -1};
  } else if constexpr (kKind == GemmKind::kGroupedContiguous) {
    for (int e = 0; e < args.experts; e++) {
      if (row < args.m && row >= args.groups[e] && row < args.groups[e + 1]) return {row, row, e};
    }
    return {0, 0, -1};
  } else {
    int tile = row / Config::kRowTile;
    if (tile >= args.row_tiles[0]) return {0, 0, -1};
    int slot = args.slots[row];
    return {slot / args.top_k, slot, slot < args.m ? args.groups[tile] : -1};
  }
}

template <class Config>
__device__ float dot(Args const& args, Place const& at, int column, int begin, int end) {
  u8 const* row = args.x + at.x_row * args.x_stride;
  int const per_row = Config::kGroup ? (args.k + Config::kGroup - 1) / Config::kGroup : 0;
  i64 first = (i64(at.expert) * args.n + column) * args.k;
  float sum = 0;
  for (int k = begin; k < end; k++) {
    int input = args.order ? args.order[i64(at.expert) * args.k + k] : k;
    float value = args.table[args.weight[first + k]];
    value = (value - (args.zeros ? args.zeros[first + k] : 0)) * args.scales[first + k];
    float x = load<typename Config::Activation>(row, input);
    if constexpr (Config::kGroup) x *= args.x_groups[at.x_row * per_row + input / Config::kGroup];
    sum += x * value;
  }
  return sum;
}

template <class Config>
__device__ void gemm(Args const& args) {
  i64 index = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  int row = int(index / args.n), column = int(index % args.n), part = blockIdx.y;
  Place at = place<Config>(args, row);
  if (at.expert < 0) return;
  int length = (args.k + Config::kSplits - 1) / Config::kSplits;
  float sum = dot<Config>(args, at, column, part * length, min(args.k, (part + 1) * length));
  if constexpr (Config::kSplits > 1) {
    i64 slots = i64(gridDim.x) * blockDim.x;
    float* partials = reinterpret_cast<float*>(args.workspace + Config::kCounters);
    partials[part * slots + index] = sum;
    __threadfence();
    if (atomicAdd(args.workspace + index, 1u) + 1 != Config::kSplits) return;
    __threadfence();
    sum = 0;
    for (int i = 0; i < Config::kSplits; i++) {
      sum += reinterpret_cast<float volatile*>(partials)[i * slots + index];
    }
    atomicExch(args.workspace + index, 0u);
  }
  if constexpr (Config::kHasScales) sum *= args.x_scales[at.x_row];
  if (args.bias) sum += args.bias[i64(at.expert) * args.n + column];
  store<Config::kOutputBits, Config::kBf16>(args.out, at.out_row * args.n + column, sum);
}

}  // namespace fake
