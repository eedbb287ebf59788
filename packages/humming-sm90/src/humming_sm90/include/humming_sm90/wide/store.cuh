// From sums to results: scale, add the bias, apply a function, round, turn rows of weights into rows of
// tokens by way of shared memory, and store. A warpgroup does it for its own panel.
#pragma once

#include <humming_sm90/store.cuh>
#include <humming_sm90/wide/multiply.cuh>

namespace humming::sm90::wide {

/// stmatrix.x4.trans: lanes 8i to 8i + 7 give the rows, of 16 bytes, of matrix i transposed.
__device__ __forceinline__ void stmatrix_x4_trans(u32 to, u32 const (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

/// The same of two matrices.
__device__ __forceinline__ void stmatrix_x2_trans(u32 to, u32 const (&from)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
               "r"(from[0]), "r"(from[1])
               : "memory");
}

/// st.shared.f32
__device__ __forceinline__ void store_shared_float(u32 to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}

/// What the epilogue does with the sums of a panel.
template <class P>
class Epilogue {
  using L = Plan<P>;
  static constexpr int kBytes = P::Output::kBits / 8;
  static constexpr int kPerChunk = 16 / kBytes;
  static constexpr int kHalves = 2 / P::kInputs;  // results of a thread for a token, of 16 rows
  static constexpr int kOutBytes = kBlock / P::kInputs * kBytes;  // of a row of the panel's result
  static constexpr int kChunks = kOutBytes / 16;
  /// Tokens at a time.
  static constexpr int kPass =
      L::kResultBytes / kOutBytes < P::kTokens ? L::kResultBytes / kOutBytes : P::kTokens;
  /// Whether there are registers to load what does not depend on sums before they are there: it may
  /// come from memory, and while a warpgroup waits for it nobody asks for more weights.
  static constexpr bool kLoadsEarly = P::kTokens <= 128;
  /// Whether there are factors of rows, or places in the result, to copy to shared memory meanwhile.
  static constexpr bool kCopies = L::kPlaceBytes > 0;

 public:
  /// `places` are the warpgroup's own.
  __device__ __forceinline__ Epilogue(Arguments const& args, Tile const& tile,
                                      Consumer const& place, int panel, u32 places)
      : args_(args), tile_(tile), place_(place), first_n_(panel * kBlock), places_(places) {
    if constexpr (kLoadsEarly) load();
    if constexpr (kCopies) copy_places();
  }

  /// Stores the results; `shared` is the warpgroup's own.
  __device__ __forceinline__ void store(Totals<P> const& totals, u32 shared) {
    int const barrier = 1 + place_.group;
    if constexpr (!kLoadsEarly) load();
    if constexpr (kCopies) cp_async_wait_all();
#pragma unroll
    for (int first = 0; first < P::kTokens; first += kPass) {
      if (first >= tile_.count) break;
      named_barrier<kGroupThreads>(barrier);  // what was here is copied
      round(totals, first, shared);
      named_barrier<kGroupThreads>(barrier);
      copy(first, shared);
    }
  }

 private:
  __device__ __forceinline__ void load() {
    Index const panels = args_.panels();
    Index const row = tile_.expert * panels * kBlock + first_n_ + warp() * 16 + place_.lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factors_[half] = power_of_two_float(L::Decoder::kExponent);
      if constexpr (P::kHasChannel) factors_[half] *= __ldg(args_.channel + row + 8 * half);
      if constexpr (P::kHasBias) biases_[half] = __ldg(args_.bias + row + 8 * half);
    }
  }

  __device__ __forceinline__ u32 warp() const { return place_.warp % 4; }

  /// Where 16 bytes of a token's row lie, so that what a warp stores or reads differs in banks.
  static __device__ __forceinline__ u32 at(int token, int sixteen) {
    return token * kOutBytes + (sixteen ^ (kChunks < 8 ? token / 2 & 3 : token & 7)) * 16;
  }

  __device__ __forceinline__ int thread() const { return threadIdx.x % kGroupThreads; }

  /// Starts copies of the factors of the tile's rows and of where they go, for those behind the last that
  /// of the last. Factors of the tile before have been read: every thread has come through a barrier behind
  /// that; places are read behind the last one.
  __device__ __forceinline__ void copy_places() const {
    if constexpr (L::kIndexed) named_barrier<kGroupThreads>(1 + place_.group);
#pragma unroll 1
    for (int token = thread(); token < P::kTokens; token += kGroupThreads) {
      Index const row = tile_.first + (token < tile_.count ? token : tile_.count - 1);
      if constexpr (P::kHasRowScales) cp_async_4(places_ + 4 * token, args_.x_scales + row);
      if constexpr (L::kIndexed) cp_async_4(places_ + L::kFactorBytes + 4 * token, args_.slots + row);
    }
  }

  /// The row of the result of a token of the tile.
  __device__ __forceinline__ Index target(int token) const {
    if constexpr (L::kIndexed) {
      return Index(load_shared_32(places_ + L::kFactorBytes + 4 * token));
    } else {
      return tile_.first + token;
    }
  }

  /// The factor of a token, which may be one behind the tile's last.
  __device__ __forceinline__ float factor(int token) const {
    return __uint_as_float(load_shared_32(places_ + 4 * token));
  }

  /// Results of the thread for 8 tokens, two of each of its rows.
  __device__ __forceinline__ void values(Totals<P> const& totals, int eight,
                                         float (&results)[2 * kHalves]) const {
    float tokens[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (P::kHasRowScales) tokens[i] = factor(8 * eight + place_.lane % 4 * 2 + i);
    }
    float inputs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      inputs[i] = totals.value(eight, i) * factors_[i / 2];
      if constexpr (P::kHasRowScales) inputs[i] *= tokens[i % 2];
      if constexpr (P::kHasBias) inputs[i] += biases_[i / 2];
    }
#pragma unroll
    for (int i = 0; i < 2 * kHalves; ++i) {
      if constexpr (P::kInputs == 1) {
        results[i] = P::Function::of(inputs[i]);
      } else {
        results[i] = P::Function::of(inputs[i], inputs[i + 2]);
      }
    }
  }

  /// Stores 16 tokens of the warp's rows: a matrix of 8 by 8 for each half of both.
  static __device__ __forceinline__ void store_matrices(u32 to, u32 const (&pairs)[2 * kHalves]) {
    if constexpr (kHalves == 1) {
      stmatrix_x2_trans(to, pairs);
    } else {
      stmatrix_x4_trans(to, pairs);
    }
  }

  __device__ __forceinline__ void round(Totals<P> const& totals, int first, u32 shared) const {
    int const lane = place_.lane;
    if constexpr (kBytes == 2) {
#pragma unroll
      for (int eight = 0; eight < kPass / 8 && first + 8 * eight < P::kTokens; eight += 2) {
        u32 pairs[2 * kHalves];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float results[2 * kHalves];
          values(totals, first / 8 + eight + i, results);
#pragma unroll
          for (int half = 0; half < kHalves; ++half)
            pairs[kHalves * i + half] =
                rounded_pair(results[2 * half], results[2 * half + 1], typename P::Output{});
        }
        // The matrix whose address the lane gives; of two matrices those of other lanes don't count.
        int const matrix = lane / 8 % (2 * kHalves);
        int const token = 8 * eight + matrix / kHalves * 8 + lane % 8;
        store_matrices(shared + at(token, kHalves * warp() + matrix % kHalves), pairs);
      }
    } else {
#pragma unroll
      for (int eight = 0; eight < kPass / 8 && first + 8 * eight < P::kTokens; ++eight) {
        float results[2 * kHalves];
        values(totals, first / 8 + eight, results);
#pragma unroll
        for (int i = 0; i < 2 * kHalves; ++i) {
          int const token = 8 * eight + lane % 4 * 2 + i % 2;
          int const row = 8 * kHalves * warp() + lane / 4 + i / 2 * 8;
          store_shared_float(shared + at(token, row / 4) + row % 4 * 4, results[i]);
        }
      }
    }
  }

  /// Copies tokens to the result, 16 bytes at a time where its rows allow that.
  __device__ __forceinline__ void copy(int first, u32 shared) const {
    constexpr int kTurns = (kPass * kChunks + kGroupThreads - 1) / kGroupThreads;
    if (args_.n / P::kInputs % kPerChunk == 0) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn)
        copy_chunk(first, turn, shared, [](u8* to, u32 const(&words)[4], int) { store_128(to, words); });
    } else {
#pragma unroll 1
      for (int turn = 0; turn < kTurns; ++turn) copy_chunk(first, turn, shared, store_some<kBytes>);
    }
  }

  /// Calls `store` with where 16 bytes of the thread go, these, and the numbers left in the row.
  template <class Store>
  __device__ __forceinline__ void copy_chunk(int first, int turn, u32 shared,
                                             Store const& store) const {
    int const chunk = turn * kGroupThreads + thread();
    int const token = chunk / kChunks, sixteen = chunk % kChunks;
    int const m = first + token, n = first_n_ / P::kInputs + sixteen * kPerChunk;
    int const width = args_.n / P::kInputs;
    if constexpr (kPass * kChunks % kGroupThreads != 0) {
      if (token >= kPass) return;
    }
    u32 words[4];
    load_shared_128(words, shared + at(token, sixteen));
    if (m >= tile_.count || n >= width) return;
    store(static_cast<u8*>(args_.out) + (target(m) * width + n) * kBytes, words, width - n);
  }

  Arguments const& args_;
  Tile const& tile_;
  Consumer const& place_;
  int first_n_;
  u32 places_;
  float factors_[2], biases_[2];
};

}  // namespace humming::sm90::wide
