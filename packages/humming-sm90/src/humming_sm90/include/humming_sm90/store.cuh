// From sums to results: scale, add the bias, round, and store rows of 128 bytes by way of shared
// memory. Warps do it each for its own 16 tokens, and wait for nobody.
#pragma once

#include <humming/gemm/numbers.cuh>
#include <humming_sm90/multiply.cuh>

namespace humming::sm90 {

/// cvt.rn.bf16x2.f32
__device__ __forceinline__ u32 rounded_pair(float low, float high, Bf16) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// cvt.rn.f16x2.f32
__device__ __forceinline__ u32 rounded_pair(float low, float high, F16) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// stmatrix.x4: lanes 8i to 8i + 7 give the rows, of 16 bytes, of matrix i.
__device__ __forceinline__ void stmatrix_x4(u32 to, u32 const (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

/// st.shared.v2.f32
__device__ __forceinline__ void store_shared_floats(u32 to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

/// Stores the first `left` results of 16 bytes, each of `kBytes` bytes.
template <int kBytes>
__device__ __forceinline__ void store_some(u8* to, u32 const (&words)[4], int left) {
#pragma unroll
  for (int i = 0; i < 16 / kBytes; ++i) {
    if (i >= left) break;
    int const bit = i * 8 * kBytes;
    if constexpr (kBytes == 4) {
      reinterpret_cast<u32*>(to)[i] = words[i];
    } else {
      reinterpret_cast<u16*>(to)[i] = static_cast<u16>(words[bit / 32] >> bit % 32);
    }
  }
}

/// Where 16 bytes of a row of 128 lie, so that what a warp stores or reads differs in banks.
__device__ __forceinline__ u32 swizzled(int row, int sixteen) {
  return row * kRowBytes + (sixteen ^ (row & 7)) * 16;
}

/// What the epilogue does with the sums of a warpgroup's share of a tile. It is made before they are
/// computed, so that what it loads is there when they are, where there are registers for that.
template <class P>
class Epilogue {
  static constexpr int kBytes = P::Output::kBits / 8;
  static constexpr int kPerChunk = 16 / kBytes;
  static constexpr int kColumns = kRowBytes / kBytes;  // of the result, at a time
  static constexpr int kCopies = 16 / 4;               // of four rows each
  static constexpr bool kEarly = P::kScaleRows != 1;
  static constexpr int kOwn = Plan<P>::kOwnChunks * P::kChunkN;  // columns of a warpgroup, at most
  static_assert(P::kTileN % kColumns == 0, "Epilogue: a tile that is not whole rows of 128 bytes");

 public:
  __device__ __forceinline__ Epilogue(Arguments const& args, Tile const& tile,
                                      Consumer const& place, Share<P> const& share)
      : args_(args), tile_(tile), place_(place), share_(share) {
    if constexpr (kEarly) load_factors();
    if constexpr (Plan<P>::kIndexed) slot_ = __ldg(args.slots + scaled_row(tile, row(place.lane % 16)));
  }

  /// Stores the results; `shared` is the warp's own.
  __device__ __forceinline__ void store(Totals<P> const& totals, u32 shared) {
    if constexpr (!kEarly) load_factors();
    int const first_n = tile_.column * P::kTileN + share_.column();
    int const left = args_.n - first_n, own = share_.chunks * P::kChunkN;
    int const end = first_n + (own < left ? own : left);
#pragma unroll
    for (int first = 0; first < kOwn; first += kColumns) {
      if (first >= left || first >= own) break;
      __syncwarp();  // what was here is copied
      round(totals, first_n, first, shared);
      __syncwarp();
      copy(first_n + first, end, shared);
    }
  }

 private:
  /// Loads the factors of the thread's tokens.
  __device__ __forceinline__ void load_factors() {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      rows_[i] = __ldg(args_.x_scales + scaled_row(tile_, share_.row(place_) + 8 * i));
  }

  /// Results of the thread in 8 columns.
  __device__ __forceinline__ void values(Totals<P> const& totals, int first_n, int eight,
                                         float (&results)[4]) const {
    Index const padded = Index(tile_.expert) * args_.padded_n() + first_n + place_.column();
    float2 channel{1.0f, 1.0f}, bias{0.0f, 0.0f};
    if constexpr (P::kHasChannel) channel = pair(args_.channel + padded + 8 * eight);
    if constexpr (P::kHasBias) bias = pair(args_.bias + padded + 8 * eight);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = totals.value(eight, i);
      if constexpr (P::kHasChannel) value *= i % 2 ? channel.y : channel.x;
      value *= rows_[i / 2];
      if constexpr (P::kHasBias) value += i % 2 ? bias.y : bias.x;
      results[i] = value;
    }
  }

  static __device__ __forceinline__ float2 pair(float const* from) {
    return __ldg(reinterpret_cast<float2 const*>(from));
  }

  __device__ __forceinline__ void round(Totals<P> const& totals, int first_n, int first,
                                        u32 shared) const {
    constexpr int kEights = (kColumns < kOwn ? kColumns : kOwn) / 8;
    int const lane = place_.lane;
    if constexpr (kBytes == 2) {
#pragma unroll
      for (int eight = 0; eight < kEights; eight += 2) {
        u32 pairs[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float results[4];
          values(totals, first_n, first / 8 + eight + i, results);
          pairs[2 * i] = rounded_pair(results[0], results[1], typename P::Output{});
          pairs[2 * i + 1] = rounded_pair(results[2], results[3], typename P::Output{});
        }
        stmatrix_x4(shared + swizzled(lane % 16, eight + lane / 16), pairs);
      }
    } else {
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight) {
        float results[4];
        values(totals, first_n, first / 8 + eight, results);
        int const sixteen = 2 * eight + lane % 4 / 2, inside = lane % 2 * 8;
        store_shared_floats(shared + swizzled(lane / 4, sixteen) + inside, results[0], results[1]);
        store_shared_floats(shared + swizzled(lane / 4 + 8, sixteen) + inside, results[2],
                            results[3]);
      }
    }
  }

  /// Copies 16 rows to the result, up to column `end`, 16 bytes at a time where its rows allow that. All are read before
  /// the first is stored, since reading takes longer.
  __device__ __forceinline__ void copy(int first_n, int end, u32 shared) const {
    int const sixteen = place_.lane % 8, n = first_n + sixteen * kPerChunk;
    int const first_row = place_.lane / 8, m = row(first_row);
    Index rows[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) rows[i] = target(4 * i + first_row);
    if (n >= end) return;
    u32 words[kCopies][4];
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      load_shared_128(words[i], shared + swizzled(4 * i + first_row, sixteen));
    bool const aligned = args_.n % kPerChunk == 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (m + 4 * i >= tile_.count) break;
      u8* const to = static_cast<u8*>(args_.out) + (rows[i] * args_.n + n) * kBytes;
      if (aligned) {
        store_128(to, words[i]);
      } else {
        store_some<kBytes>(to, words[i], args_.n - n);
      }
    }
  }

  /// The tile's row of the warp's row `own`.
  __device__ __forceinline__ int row(int own) const {
    return share_.first + 16 * (place_.warp % 4) + own;
  }

  /// The row of the result of the warp's row `own`. All lanes call it.
  __device__ __forceinline__ Index target(int own) const {
    if constexpr (Plan<P>::kIndexed) {
      return __shfl_sync(~0u, slot_, own);
    } else {
      return tile_.first + row(own);
    }
  }

  Arguments const& args_;
  Tile const& tile_;
  Consumer const& place_;
  Share<P> const& share_;
  float rows_[2];
  [[maybe_unused]] i32 slot_;  // of the warp's row number lane % 16
};

}  // namespace humming::sm90
