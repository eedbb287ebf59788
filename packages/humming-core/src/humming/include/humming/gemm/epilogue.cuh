// From sums to results: add those of the teams, then those of the CTAs that share the tile, then
// scale, add the bias, apply a function, round, and store.
//
// A fragment is what a lane holds of 16 rows of weights by 8 tokens: rows lane / 4 and 8 more, each
// of tokens 2 * (lane % 4) and the next. Fragments of a tile are numbered, so that every step can
// give them to its threads as it likes.
#pragma once

#include <humming/gemm/mainloop.cuh>

namespace humming {

/// Rows of the result under a tile.
struct TileTargets {
  Index first;
  int count;
  int const* targets;  // in shared memory; -1: none
};

/// The sums of a tile, its fragments dealt out to the threads of the CTA: a team gets a run of those
/// that each of its lanes has computed a part of.
template <class P>
struct TileSums {
  using S = Sizes<P>;
  using Number = typename S::Number;
  static constexpr int kPerLane = P::kWarpTiles * S::kTokenTiles;
  static constexpr int kOwn = (kPerLane + P::kWarpsK - 1) / P::kWarpsK;
  static constexpr bool kAllOwn = kPerLane % P::kWarpsK == 0;

  Number c[kOwn][4];

  /// Number, among those of a lane, of this thread's fragment `i`.
  static __device__ __forceinline__ int item(WarpPlace<P> const& warp, int i) {
    return P::kWarpsK == 1 ? i : warp.team * kOwn + i;
  }
  static __device__ __forceinline__ bool owns(WarpPlace<P> const& warp, int i) {
    return kAllOwn || item(warp, i) < kPerLane;
  }
  /// Its place among the fragments of the tile.
  static __device__ __forceinline__ int index(WarpPlace<P> const& warp, int i) {
    return (warp.thread / 32 * kPerLane + item(warp, i)) * 32 + warp.lane;
  }
  /// Its first row of weights and its first token, within the tile.
  static __device__ __forceinline__ int row(WarpPlace<P> const& warp, int i) {
    return warp.warp_n * S::kWarpRows + item(warp, i) / S::kTokenTiles * 16 + warp.lane / 4;
  }
  static __device__ __forceinline__ int token(WarpPlace<P> const& warp, int i) {
    return warp.warp_m * P::kTokens + item(warp, i) % S::kTokenTiles * 8 + warp.lane % 4 * 2;
  }
};

/// Adds the sums of the teams, in their order. Every thread of the CTA calls it, after a barrier
/// behind which nobody reads the rings.
template <class P>
__device__ __forceinline__ void add_teams(WarpPlace<P> const& warp, Totals<P> const& totals,
                                          u32 shared, TileSums<P>& sums) {
  using S = Sizes<P>;
  using Number = typename S::Number;
  if constexpr (P::kWarpsK == 1) {
#pragma unroll
    for (int i = 0; i < TileSums<P>::kOwn; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums.c[i][j] = totals.sums[i / S::kTokenTiles][i % S::kTokenTiles].c[j];
  } else {
    constexpr int kPerLane = P::kWarpTiles * S::kTokenTiles;
    u32 const to = shared + threadIdx.x / 32 * (kPerLane * 512) + threadIdx.x % 32 * 16;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      auto const& fragment = totals.sums[i / S::kTokenTiles][i % S::kTokenTiles];
      u32 words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j] = bits_of(Number(fragment.c[j]));
      store_shared_128(to + i * 512, words);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TileSums<P>::kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.c[i][j] = 0;
      if (!TileSums<P>::owns(warp, i)) continue;
      u32 const from = shared + TileSums<P>::index(warp, i) * 16;
#pragma unroll
      for (int team = 0; team < P::kWarpsK; ++team) {
        u32 words[4];
        load_shared_128(words, from + team * S::kFragmentBytes);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums.c[i][j] += number_of<Number>(words[j]);
      }
    }
  }
}

/// Leaves this CTA's part of a tile in the workspace; true in the CTA that finds all parts there,
/// with their sum in ascending order of K.
template <class P>
__device__ __forceinline__ bool add_parts(GemmArguments const& args, Schedule const& schedule,
                                          WorkItem const& item, WarpPlace<P> const& warp,
                                          u32 shared_flag, TileSums<P>& sums) {
  using S = Sizes<P>;
  using Number = typename S::Number;
  using T = TileSums<P>;
  u8* const slots = args.workspace + P::kCounterBytes;
#pragma unroll
  for (int i = 0; i < T::kOwn; ++i) {
    if (!T::owns(warp, i)) continue;
    u32 words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = bits_of(sums.c[i][j]);
    store_128(slots + item.slot * S::kFragmentBytes + T::index(warp, i) * 16, words);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    auto* const counters = reinterpret_cast<unsigned*>(args.workspace);
    u32 const flag[4] = {arrive_last(counters + item.counter, item.parts), 0, 0, 0};
    store_shared_128(shared_flag, flag);
  }
  __syncthreads();
  u32 flag[4];
  load_shared_128(flag, shared_flag);
  if (!flag[0]) return false;
#pragma unroll
  for (int i = 0; i < T::kOwn; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums.c[i][j] = 0;
  for (int part = 0; part < item.parts; ++part) {
    u8 const* const from = slots + schedule.slot(item.tile, part) * S::kFragmentBytes;
#pragma unroll
    for (int i = 0; i < T::kOwn; ++i) {
      if (!T::owns(warp, i)) continue;
      u32 words[4];
      load_128(words, from + T::index(warp, i) * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.c[i][j] += number_of<Number>(words[j]);
    }
  }
  return true;
}

/// Scales, adds the bias, applies the function, rounds to the output's format, and leaves the tile in
/// shared memory, row by row of the result.
template <class P>
__device__ __forceinline__ void round_tile(GemmArguments const& args, TileRows const& rows,
                                           int expert, int first_n, WarpPlace<P> const& warp,
                                           TileSums<P> const& sums, u8* shared) {
  using S = Sizes<P>;
  using T = TileSums<P>;
  constexpr float kFactor = power_of_two_float(S::Decoder::kExponent);
  Index const channels = Index(expert) * ((args.n + kBlock - 1) / kBlock * kBlock) + first_n;
  // Of two inputs the halves of a fragment are one result.
  auto const place = [](int row) {
    return (P::kInputs == 1 ? row : row / 16 * 8 + row % 8) * S::kOutBytes;
  };
  int const first_row = T::row(warp, 0);
  u8* const to = shared + T::token(warp, 0) * S::kOutRowBytes + place(first_row);
#pragma unroll
  for (int i = 0; i < T::kOwn; ++i) {
    if (!T::owns(warp, i)) continue;
    int const row = T::row(warp, i), token = T::token(warp, i);
    float tokens[2] = {1.0f, 1.0f};
    if constexpr (P::kHasRowScales) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Index const source = source_of<P>(rows, token + j);
        tokens[j] = args.x_scales[source < 0 ? 0 : source];
      }
    }
    int const inside = (token - T::token(warp, 0)) * S::kOutRowBytes +
                       (row - first_row) / P::kInputs * S::kOutBytes;
    [[maybe_unused]] float gates[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float factor = kFactor, bias = 0.0f;
      if constexpr (P::kHasChannel || P::kHasBias) {
        int const n = row + 8 * half;
        Index const channel = channels + (first_n + n < args.n ? n : 0);
        if constexpr (P::kHasChannel) factor *= args.channel[channel];
        if constexpr (P::kHasBias) bias = args.bias[channel];
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float value = float(sums.c[i][2 * half + j]) * factor;
        if constexpr (P::kHasRowScales) value *= tokens[j];
        if constexpr (P::kHasBias) value += bias;
        u8* const result = to + inside + j * S::kOutRowBytes;
        if constexpr (P::kInputs == 1) {
          P::Rounding::store(result + 8 * half * S::kOutBytes, P::Function::of(value),
                             typename P::Output{});
        } else if (half == 0) {
          gates[j] = value;
        } else {
          P::Rounding::store(result, P::Function::of(gates[j], value), typename P::Output{});
        }
      }
    }
  }
}

/// Copies the tile to the result, 16 bytes at a time where its rows allow that.
template <class P>
__device__ __forceinline__ void store_tile(GemmArguments const& args, TileTargets const& targets,
                                           int first_n, u8 const* shared) {
  using S = Sizes<P>;
  constexpr int kPerChunk = 16 / S::kOutBytes;
  constexpr int kPerRow = S::kTileResults / kPerChunk;
  int const width = args.n / P::kInputs, first = first_n / P::kInputs, left = width - first;
  bool const aligned = width % kPerChunk == 0;
  for (int chunk = threadIdx.x; chunk < S::kTileM * kPerRow; chunk += S::kThreads) {
    int const m = chunk / kPerRow, n = chunk % kPerRow * kPerChunk;
    Index target = targets.first + m;
    if constexpr (P::kKind == GemmKind::kIndexed) target = targets.targets[m];
    if (m >= targets.count || target < 0 || n >= left) continue;
    u8* const to = static_cast<u8*>(args.out) + (target * width + first + n) * S::kOutBytes;
    u32 words[4];
    load_shared_128(words, shared_address(shared) + m * S::kOutRowBytes + n * S::kOutBytes);
    if (aligned) {
      store_128(to, words);
    } else {
#pragma unroll
      for (int e = 0; e < kPerChunk; ++e) {
        int const bit = e * 8 * S::kOutBytes;
        if (n + e >= left) break;
        if constexpr (S::kOutBytes == 4) {
          reinterpret_cast<u32*>(to)[e] = words[bit / 32];
        } else {
          reinterpret_cast<u16*>(to)[e] = static_cast<u16>(words[bit / 32] >> bit % 32);
        }
      }
    }
  }
}

}  // namespace humming
