// A row's numbers, eight at a time: as they lie in memory, or out of an activation function.
#pragma once

#include <humming/gating.cuh>
#include <humming/quantize/octet.cuh>

namespace humming {

/// cvt.rn.bf16x2.f32
__device__ __forceinline__ u32 round_pair(float low, float high, Bf16) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// cvt.rn.f16x2.f32
__device__ __forceinline__ u32 round_pair(float low, float high, F16) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Eight results in a format.
template <class Format, bool kNative>
__device__ __forceinline__ Octet<Format> rounded(float const (&results)[8]) {
  Octet<Format> numbers;
  if constexpr (kNative && Octet<Format>::kBytes == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      numbers.words[i] = round_pair(results[2 * i], results[2 * i + 1], Format{});
    }
  } else {
    numbers.clear();
#pragma unroll
    for (int i = 0; i < 8; ++i) numbers.push(Elements<Format>::round(results[i]));
  }
  return numbers;
}

/// Numbers that are as they lie in memory.
struct NoGate {
  static constexpr bool kApplies = false, kGated = false, kInterleaved = false;
};

/// Gate: NoGate, or a function with kApplies, kGated, kInterleaved and Function, whose results are
/// rounded to Format before anything else is done with them: as if another kernel had stored them.
template <class Format, class Gate, bool kNative>
struct RowReader {
  using Numbers = Octet<Format>;
  using Element = typename Numbers::Element;
  using Number = Elements<Format>;
  static constexpr int kInputs = Gate::kGated ? 2 : 1;

  Element const* from;
  int k;  // numbers of the row; kInputs times as many lie in memory

  /// Of eight numbers, as they lie in memory.
  struct Raw {
    Numbers parts[kInputs];
  };

  /// Whether fetch() can read the row.
  __device__ __forceinline__ bool is_aligned() const {
    return reinterpret_cast<u64>(from) % 16 == 0 && k % 8 == 0;
  }
  /// Octet first + more, if it is one of the row and wanted; `more` is a constant, so that octets
  /// share an address.
  __device__ __forceinline__ Raw fetch(int first, int more, bool wanted) const {
    Raw raw;
    wanted = wanted && k / 8 - first > more;
    constexpr int kStep = Gate::kInterleaved ? 16 : 8;
    Element const* const place = from + i64(first) * kStep;
    raw.parts[0].template load_if<!Gate::kInterleaved>(place + more * kStep, wanted);
    if constexpr (Gate::kGated) {
      Element const* const other = place + (Gate::kInterleaved ? 8 : k);
      raw.parts[1].template load_if<!Gate::kInterleaved>(other + more * kStep, wanted);
    }
    return raw;
  }

  __device__ __forceinline__ static Numbers finished(Raw const& raw) {
    if constexpr (!Gate::kApplies) {
      return raw.parts[0];
    } else {
      float results[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if constexpr (!Gate::kGated) {
          results[i] = Gate::Function::of(raw.parts[0].value(i));
        } else if constexpr (Gate::kInterleaved) {
          Numbers const& pairs = raw.parts[i / 4];
          results[i] = Gate::Function::of(pairs.value(2 * i % 8), pairs.value(2 * i % 8 + 1));
        } else {
          results[i] = Gate::Function::of(raw.parts[0].value(i), raw.parts[1].value(i));
        }
      }
      return rounded<Format, kNative>(results);
    }
  }

  /// Eight numbers of any row, with zeros behind its end, one by one.
  __device__ __forceinline__ Numbers any(int octet) const {
    Numbers numbers;
    numbers.clear();
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      i64 const place = 8 * i64(octet) + i;
      numbers.push(place < k ? element(place) : 0);
    }
    return numbers;
  }

 private:
  __device__ __forceinline__ u32 element(i64 place) const {
    if constexpr (!Gate::kApplies) {
      return from[place];
    } else if constexpr (!Gate::kGated) {
      return Number::round(Gate::Function::of(Number::value(from[place])));
    } else {
      constexpr bool kPairs = Gate::kInterleaved;
      float const gate = Number::value(from[kPairs ? 2 * place : place]);
      float const up = Number::value(from[kPairs ? 2 * place + 1 : place + k]);
      return Number::round(Gate::Function::of(gate, up));
    }
  }
};

}  // namespace humming
