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

/// What the epilogue does with the sums of a tile.
template <class P>
class Epilogue {
  static constexpr int kBytes = P::Output::kBits / 8;
  static constexpr int kPerChunk = 16 / kBytes;
  static constexpr int kColumns = kRowBytes / kBytes;  // of the result, at a time
  static_assert(P::kTileN % kColumns == 0, "Epilogue: a tile that is not whole rows of 128 bytes");

 public:
  __device__ __forceinline__ Epilogue(Arguments const& args, Tile const& tile,
                                      Consumer const& place)
      : args_(args), tile_(tile), place_(place), first_n_(tile.column * P::kTileN) {
    Index const padded = Index(tile.expert) * args.padded_n() + first_n_ + place.column();
    channel_ = args.channel + padded;
    bias_ = args.bias + padded;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int const row = place.row() + 8 * i;
      rows_[i] = __ldg(args.x_scales + tile.first + (row < tile.count ? row : tile.count - 1));
    }
  }

  /// Stores the results; `shared` is the warp's own.
  __device__ __forceinline__ void store(Totals<P> const& totals, u32 shared) const {
#pragma unroll
    for (int first = 0; first < P::kTileN; first += kColumns) {
      if (first_n_ + first >= args_.n) break;
      __syncwarp();  // what was here is copied
      round(totals, first, shared);
      __syncwarp();
      copy(first, shared);
    }
  }

 private:
  /// Results of the thread in 8 columns.
  __device__ __forceinline__ void values(Totals<P> const& totals, int eight,
                                         float (&results)[4]) const {
    float2 channel{1.0f, 1.0f}, bias{0.0f, 0.0f};
    if constexpr (P::kHasChannel) {
      channel = __ldg(reinterpret_cast<float2 const*>(channel_ + 8 * eight));
    }
    if constexpr (P::kHasBias) bias = __ldg(reinterpret_cast<float2 const*>(bias_ + 8 * eight));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = totals.value(eight, i);
      if constexpr (P::kHasChannel) value *= i % 2 ? channel.y : channel.x;
      value *= rows_[i / 2];
      if constexpr (P::kHasBias) value += i % 2 ? bias.y : bias.x;
      results[i] = value;
    }
  }

  __device__ __forceinline__ void round(Totals<P> const& totals, int first, u32 shared) const {
    int const lane = place_.lane;
    if constexpr (kBytes == 2) {
#pragma unroll
      for (int eight = 0; eight < kColumns / 8; eight += 2) {
        u32 pairs[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float results[4];
          values(totals, first / 8 + eight + i, results);
          pairs[2 * i] = rounded_pair(results[0], results[1], typename P::Output{});
          pairs[2 * i + 1] = rounded_pair(results[2], results[3], typename P::Output{});
        }
        stmatrix_x4(shared + swizzled(lane % 16, eight + lane / 16), pairs);
      }
    } else {
#pragma unroll
      for (int eight = 0; eight < kColumns / 8; ++eight) {
        float results[4];
        values(totals, first / 8 + eight, results);
        int const sixteen = 2 * eight + lane % 4 / 2, inside = lane % 2 * 8;
        store_shared_floats(shared + swizzled(lane / 4, sixteen) + inside, results[0], results[1]);
        store_shared_floats(shared + swizzled(lane / 4 + 8, sixteen) + inside, results[2],
                            results[3]);
      }
    }
  }

  /// Copies 16 rows to the result, 16 bytes at a time where its rows allow that.
  __device__ __forceinline__ void copy(int first, u32 shared) const {
    bool const aligned = args_.n % kPerChunk == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const row = 4 * i + place_.lane / 8, sixteen = place_.lane % 8;
      int const m = 16 * place_.warp + row, n = first_n_ + first + sixteen * kPerChunk;
      u32 words[4];
      load_shared_128(words, shared + swizzled(row, sixteen));
      if (m >= tile_.count || n >= args_.n) continue;
      u8* const to = static_cast<u8*>(args_.out) + ((tile_.first + m) * args_.n + n) * kBytes;
      if (aligned) {
        store_128(to, words);
      } else {
        store_some<kBytes>(to, words, args_.n - n);
      }
    }
  }

  Arguments const& args_;
  Tile const& tile_;
  Consumer const& place_;
  int first_n_;
  float const *channel_, *bias_;
  float rows_[2];
};

}  // namespace humming::sm90
