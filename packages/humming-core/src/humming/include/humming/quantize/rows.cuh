// Rows of activations to codes and scales: quantize_rows() of humming/activations.py on the device.
//
// A team of threads has a row. It reads tiles of the row forwards for the row's largest magnitude,
// if a scale depends on that, and then makes codes backwards: the last tile is still in registers,
// and most rows are one tile. Each warp has a run of neighbours in a tile, so that groups lie
// inside of a warp.
//
// All of that is done for rows and scales as they usually are. Whatever is not (rows that begin
// anywhere, NaN and Inf, scales at the ends of f32) a second, short loop makes again, number by
// number, from memory.
#pragma once

#include <humming/overlap.cuh>
#include <humming/quantize/hadamard.cuh>
#include <humming/quantize/pairs.cuh>

namespace humming {

/// Where the scale of a whole row comes from, if there is one; groups may have theirs under it.
enum class RowScale { kNone, kToken, kStored };

struct QuantizeArgs {
  void const* x;
  i64 x_stride;  // elements
  float const* stored;  // scales, one for all rows or one for each
  int stored_step;  // 0 or 1
  u8* codes;  // [rows, row_bytes(k)]
  float* scales;  // [rows]
  float* groups;  // [rows, ceil(k / group)]
  int rows, k;
  void const* table;  // which rows of x, and whether at all; see P::Rows
  int limit;
};

/// P: Source (F16, Bf16 or F32), Code, Scale: formats; Gate: see RowReader; Rows: see gating.cuh;
/// kRowScale; kHadamard, of the blocks that are transformed, or 0; kGroup, 0 without groups;
/// kThreads of a team and its kVectors; kTeams of a CTA; kOneTile: no row is longer than a tile;
/// kNative: see codes_of().
template <class P>
struct RowQuantizer {
  using Source = typename P::Source;
  using Code = typename P::Code;
  using Scale = typename P::Scale;
  using Reader = RowReader<Source, typename P::Gate, P::kNative>;
  using Numbers = typename Reader::Numbers;
  using Largest = Peak<Source, P::kNative>;
  static constexpr bool kByPowers =
      is_same<Scale, E8m0> && (P::kGroup == 0 || P::kRowScale == RowScale::kNone);
  static constexpr bool kSigned = P::kNative && is_small_float<Code>;
  using Inverse = Chosen<kByPowers, PowerReciprocal, Reciprocal<!is_same<Source, F32>, kSigned>>;

  static constexpr int kGroup = P::kGroup, kVectors = P::kVectors;
  static constexpr bool kNeedsRow = P::kRowScale == RowScale::kToken;
  static constexpr int kWarps = P::kThreads / 32;
  static constexpr int kStoredBytes = Code::kBits > 4 ? 8 : 4;  // of eight codes
  static constexpr int kOctets = kGroup / 8;  // of a group
  static constexpr int kLanes = kGroup == 0 ? 1 : kOctets < 32 ? kOctets : 32;
  static constexpr int kJoined = kOctets > 32 ? kOctets / 32 : 1;  // vectors of a group
  static constexpr int kShares = kVectors / kJoined;  // of groups, in a thread
  static constexpr int kRun = 32 / kLanes * kLanes;  // lanes at work
  static constexpr int kTile = kWarps * kVectors * kRun;
  static constexpr bool kFits =
      (is_same<Scale, F32> || is_same<Scale, E8m0>) && (kGroup != 0 || kNeedsRow);
  static constexpr bool kMayPair = P::kNative && is_half<Source> && is_same<Code, E2m1>;
  static constexpr bool kPairs = kMayPair && kFits && kByPowers;
  static constexpr bool kCutPairs = kMayPair && !kFits && is_same<Source, Bf16>;
  static_assert(kGroup % 8 == 0 && (kOctets <= 32 || kOctets % 32 == 0), "as Python refuses");
  static_assert(kVectors % kJoined == 0, "groups lie inside of a warp");
  static constexpr int kBlock = P::kHadamard;
  static constexpr int kBlockVectors = kBlock > 256 ? 2 : 1;
  static_assert(kBlock == 0 || (kRun == 32 && kVectors % kBlockVectors == 0), "and blocks do");
  static_assert(P::kTeams == 1 || P::kTeams < 16, "each team has a barrier of its own");

  QuantizeArgs const& args;
  i64 row;
  Reader reader;
  int octets;  // of the codes, padding included
  Numbers numbers[kVectors];

  static __device__ int row_bytes(int k) { return (i64(k) * kStoredBytes + 127) / 128 * 16; }

  __device__ RowQuantizer(QuantizeArgs const& given, i64 number, i64 source)
      : args(given), row(number) {
    reader.from = static_cast<typename Reader::Element const*>(args.x) + source * args.x_stride;
    reader.k = args.k;
    octets = row_bytes(args.k) / kStoredBytes;
  }

  // -- places ------------------------------------------------------------------------------------

  __device__ int tiles() const { return P::kOneTile ? 1 : (octets + kTile - 1) / kTile; }
  /// Which octet vector 0 of this thread is in a tile; the next vector is kRun further.
  __device__ int first_octet(int tile) const {
    int const warp = threadIdx.x % P::kThreads / 32;
    return tile * kTile + warp * kVectors * kRun + threadIdx.x % 32;
  }
  /// Lanes beyond whole groups have none.
  __device__ bool has_part() const { return kRun == 32 || threadIdx.x % 32 < kRun; }

  __device__ void barrier() const {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      named_barrier<P::kThreads>(threadIdx.x / P::kThreads);
    }
  }

  // -- scales ------------------------------------------------------------------------------------

  /// The largest of what the threads of the team have. Once for a row.
  __device__ u32 team_max(u32 value) const {
    using Bits = Peak<F32, false>;
    if constexpr (P::kNative) {
      value = redux_max(value);
    } else {
      value = neighbours_max<32, Bits>(value);
    }
    if constexpr (kWarps == 1) return value;
    constexpr int kSlots = kWarps <= 4 ? 4 : kWarps <= 8 ? 8 : kWarps <= 16 ? 16 : 32;
    __shared__ u32 found[P::kTeams][kSlots];
    u32* const mine = found[threadIdx.x / P::kThreads];
    if (threadIdx.x % 32 == 0) mine[threadIdx.x % P::kThreads / 32] = value;
    barrier();
    int const slot = threadIdx.x % kSlots;
    return neighbours_max<kSlots, Bits>(kSlots == kWarps || slot < kWarps ? mine[slot] : 0);
  }

  /// The row's scale, or the second level over the groups'; `reach` is how far those go.
  __device__ float row_scale(u32 peak, float reach) const {
    if constexpr (P::kRowScale == RowScale::kNone) return 1.0f;
    float scale;
    if constexpr (kNeedsRow) {
      scale = __fdiv_rn(__uint_as_float(peak), Codes<Code>::top() * reach);
      if (scale == 0.0f) scale = 1.0f;
    } else {
      scale = args.stored[row * args.stored_step];
    }
    return kGroup ? scale : stored_scale<Scale>(scale);
  }

  static constexpr bool kSecond = P::kRowScale != RowScale::kNone;
  /// Whether zeros have a scale that others could have.
  static constexpr bool kSomeScale = is_same<Scale, E8m0> || (kSecond && Scale::kBits == 8);
  /// Whether divisors are within a factor of 2^10 of the row's scale.
  static constexpr bool kNear = kSecond && is_same<Scale, E4m3fn>;

  /// What group scales are the largest magnitude divided by.
  static __device__ float per_scale(float second) {
    return kSecond ? __fmul_rn(Codes<Code>::top(), second) : Codes<Code>::top();
  }
  static __device__ float group_scale(u32 peak, float second) {
    return stored_scale<Scale>(__fdiv_rn(__uint_as_float(peak), per_scale(second)));
  }
  /// The same where the group's divisor is usual; `per` is of per_scale().
  static __device__ float usual_group_scale(u32 peak, Inverse const& per) {
    float const value = __uint_as_float(peak);
    float scale;
    if constexpr (!kSecond) {
      scale = divided_by_top<Code>(value);
    } else if constexpr (Scale::kBits == 8) {
      scale = per.quotient(value);  // whose roundings to eight bits are as those of codes
    } else {
      scale = __fdiv_rn(value, per.divisor);
    }
    if constexpr (is_same<Scale, F32>) return scale == 0.0f ? power_of_2(-126) : scale;
    if constexpr (is_same<Scale, E8m0>) {
      u32 const up = (__float_as_uint(scale) + 0x007fffffu) & kInfinity;
      return up == 0 ? 1.0f : __uint_as_float(up);
    }
    return stored_scale<Scale>(scale);
  }

  /// Of two groups, as two are converted at once.
  static __device__ void usual_group_scales(u32 const (&peaks)[2], Inverse const& per,
                                            float (&scales)[2]) {
    if constexpr (P::kNative && kSecond && is_same<Scale, E4m3fn>) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[i] = per.quotient(__uint_as_float(peaks[i]));
      store_scales(scales[0], scales[1], Scale{});
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) scales[i] = usual_group_scale(peaks[i], per);
    }
  }

  /// Where results go, of octets from one on; what is further is best a constant.
  struct Results {
    u8* codes;
    float* groups;
    int octets_left, numbered_left;  // octets of the row, and those with numbers

    __device__ Results(RowQuantizer const& of, int first)
        : codes(of.args.codes + of.row * row_bytes(of.args.k) + i64(first) * kStoredBytes),
          groups(nullptr),
          octets_left(of.has_part() ? of.octets - first : 0),
          numbered_left(0) {
      if constexpr (kGroup != 0) {
        groups = of.args.groups + of.row * ((of.args.k + kGroup - 1) / kGroup) + first / kOctets;
        bool const is_first = of.has_part() && threadIdx.x % 32 % kLanes == 0;
        numbered_left = is_first ? (of.args.k + 7) / 8 - first : 0;
      }
    }
    /// Of the group that begins there, if one does.
    __device__ void store_group(int further, float scale) const {
      if constexpr (kGroup != 0) {
        store_if<4>(groups + further / kOctets, __float_as_uint(scale), numbered_left > further);
      }
    }
    __device__ void store_codes(int further, u64 found) const {
      store_if<kStoredBytes>(codes + further * kStoredBytes, found, octets_left > further);
    }
  };

  // -- rows as they usually are ------------------------------------------------------------------

  __device__ void load(int tile) {
    int const first = first_octet(tile);
    typename Reader::Raw raw[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) raw[v] = reader.fetch(first, v * kRun, has_part());
#pragma unroll
    for (int v = 0; v < kVectors; ++v) numbers[v] = Reader::finished(raw[v]);
    if constexpr (kBlock != 0) {
#pragma unroll
      for (int v = 0; v < kVectors; v += kBlockVectors) {
        Numbers block[kBlockVectors];
#pragma unroll
        for (int i = 0; i < kBlockVectors; ++i) block[i] = numbers[v + i];
        Hadamard<Source, kBlock, P::kNative>::apply(block);
#pragma unroll
        for (int i = 0; i < kBlockVectors; ++i) numbers[v + i] = block[i];
      }
    }
  }

  __device__ u32 tile_peak() const {
    u32 found = Largest::of(numbers[0]);
#pragma unroll
    for (int v = 1; v < kVectors; ++v) found = Largest::larger(found, Largest::of(numbers[v]));
    return Largest::bits(found);
  }

  /// Largest magnitudes of this thread's groups, of two in a word if they come as pairs.
  struct Peaks {
    static constexpr int kPerWord = Largest::kPairs ? 2 : 1;
    u32 words[(kShares + kPerWord - 1) / kPerWord];

    __device__ __forceinline__ u32 of(int group) const {
      if constexpr (Largest::kPairs) return Largest::half_bits(words[group / 2], group % 2);
      return words[group];
    }
    __device__ __forceinline__ u32 largest() const {
      u32 found = words[0];
      for (u32 const word : words) found = Largest::larger(found, word);
      return Largest::bits(found);
    }
  };
  __device__ Peaks group_peaks() const {
    u32 peaks[kShares + 1];
#pragma unroll
    for (int g = 0; g < kShares; ++g) {
      peaks[g] = Largest::of(numbers[g * kJoined]);
#pragma unroll
      for (int j = 1; j < kJoined; ++j) {
        peaks[g] = Largest::larger(peaks[g], Largest::of(numbers[g * kJoined + j]));
      }
    }
    peaks[kShares] = peaks[kShares - 1];
    Peaks found;
#pragma unroll
    for (int g = 0; g < kShares; g += Peaks::kPerWord) {
      u32 value = peaks[g];
      if constexpr (Largest::kPairs) value = Largest::joined(value, peaks[g + 1]);
      found.words[g / Peaks::kPerWord] = neighbours_max<kLanes, Largest>(value);
    }
    return found;
  }

  /// From numbers to codes, given the divisor in kUnit.
  struct Divided {
    static constexpr float kUnit = kDivisorUnit<Code>;
    Inverse inverse;

    __device__ __forceinline__ explicit Divided(float d) : inverse(d) {}
    __device__ __forceinline__ u64 codes(Numbers given) const {
      if constexpr (kCutPairs) given = cut(given, inverse.divisor);
      float quotients[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) quotients[i] = inverse.quotient(given.value(i));
      return codes_of<Code, P::kNative, kFits || kCutPairs>(quotients, given);
    }
  };
  struct DividedPairs {
    static constexpr float kUnit = 1.0f;
    PairCodes<Source> pairs;

    __device__ __forceinline__ explicit DividedPairs(float d) : pairs(d) {}
    __device__ __forceinline__ u64 codes(Numbers const& given) const { return pairs.of(given); }
  };
  using Encoder = Chosen<kPairs, DividedPairs, Divided>;

  __device__ void encode_octet(int v, Results const& results, Encoder const& encoder) const {
    results.store_codes(v * kRun, encoder.codes(numbers[v]));
  }

  /// Codes of the tile in registers; returns whether all is as usual, or else they are wrong.
  __device__ bool encode_tile(int tile, float scale, u32 peak) const {
    Results const results(*this, first_octet(tile));
    if constexpr (kGroup == 0) {
      // The branch keeps all loads before all codes; ptxas would wait for one to make room.
      if constexpr (!kNeedsRow) peak = tile_peak();
      if (!Inverse::is_usual(scale) || !Inverse::is_usual_peak(peak)) return false;
      Encoder const encoder(scale * Encoder::kUnit);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) encode_octet(v, results, encoder);
      return true;
    } else {
      Inverse const per(per_scale(scale));
      bool is_usual = !kSecond || Inverse::is_usual(per.divisor);
      if constexpr (kNear) is_usual &= is_within<40>(scale);
      float const unit = kSecond ? scale * Encoder::kUnit : Encoder::kUnit;
      Peaks const peaks = group_peaks();
#pragma unroll
      for (int first = 0; first < kShares; first += 2) {
        int const last = first + 1 < kShares ? first + 1 : first;
        u32 const two[] = {peaks.of(first), peaks.of(last)};
        float inner[2];
        usual_group_scales(two, per, inner);
#pragma unroll
        for (int g = first; g <= last; ++g) {
          float divisor = __fmul_rn(inner[g - first], unit);
          if (!kSomeScale && two[g - first] == 0) divisor = 1.0f;  // zeros stay zeros
          is_usual &= kNear ? Inverse::is_usual_significand(divisor) : Inverse::is_usual(divisor);
          Encoder const encoder(divisor);
          results.store_group(g * kJoined * kRun, inner[g - first]);
#pragma unroll
          for (int j = 0; j < kJoined; ++j) encode_octet(g * kJoined + j, results, encoder);
        }
      }
      return is_usual && Inverse::is_usual_peak(peaks.largest());
    }
  }

  // -- whatever rows are -------------------------------------------------------------------------

  /// Octet `octet`, whose vector is v, if this lane has one; all lanes of the warp come here.
  __device__ Numbers any(int octet, int v) const {
    if constexpr (kBlock == 0) {
      return reader.any(has_part() ? octet : octets);
    } else {
      int const place = v % kBlockVectors;
      Numbers block[kBlockVectors];
#pragma unroll
      for (int i = 0; i < kBlockVectors; ++i) block[i] = reader.any(octet + (i - place) * kRun);
      Hadamard<Source, kBlock, P::kNative>::apply(block);
      return kBlockVectors == 2 && place == 1 ? block[kBlockVectors - 1] : block[0];
    }
  }

  __device__ u32 any_peak() const {
    u32 found = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles(); ++tile) {
#pragma unroll 1
      for (int v = 0; v < kVectors; ++v) {
        found = max(found, any(first_octet(tile) + v * kRun, v).peak());
      }
    }
    return found;
  }

  /// Codes of this warp's part of the row; returns the largest magnitude there.
  __device__ u32 encode_any(float scale) const {
    u32 largest = 0;
#pragma unroll 1
    for (int tile = 0; tile < tiles(); ++tile) {
#pragma unroll 1
      for (int v = 0; v < kVectors; v += kJoined) {
        largest = max(largest, encode_any_group(first_octet(tile) + v * kRun, v, scale));
      }
    }
    return largest;
  }

  __device__ u32 encode_any_group(int first, int v, float scale) const {
    u32 peak = 0;
#pragma unroll 1
    for (int j = 0; j < kJoined; ++j) {
      peak = max(peak, any(first + j * kRun, v + j).peak());
    }
    float divisor = scale;
    if constexpr (kGroup != 0) {
      float const inner = group_scale(neighbours_max<kLanes, Peak<F32, false>>(peak), scale);
      Results(*this, first).store_group(0, inner);
      divisor = kSecond ? __fmul_rn(inner, scale) : inner;
    }
#pragma unroll 1
    for (int j = 0; j < kJoined; ++j) {
      int const octet = first + j * kRun;
      u64 codes = any(octet, v + j).template codes_of_any<Code>(divisor);
      i64 const left = args.k - 8 * i64(octet);
      if (left < 8) codes &= left > 0 ? (u64(1) << left * kStoredBytes) - 1 : 0;
      Results(*this, octet).store_codes(0, codes);
    }
    return peak;
  }

  // -- a row -------------------------------------------------------------------------------------

  __device__ void run(float reach) {
    bool const is_aligned = reader.is_aligned();
    u32 peak = 0;
    if constexpr (kNeedsRow) {
      if (is_aligned) {
        for (int tile = 0; tile < tiles(); ++tile) {
          load(tile);
          peak = max(peak, tile_peak());
        }
      } else {
        peak = any_peak();
      }
      peak = team_max(peak);
    } else if (P::kOneTile && is_aligned) {
      load(0);  // under way while the scale comes
    }
    float const scale = row_scale(peak, reach);
    bool const is_leader = threadIdx.x % P::kThreads == 0;
    float const nan = __uint_as_float(0x7fc00000u);
    // Integers have no NaN, so the row's scale carries it.
    if (is_leader) args.scales[row] = peak > kInfinity ? nan : scale;
    bool is_usual = is_aligned;
    if (is_aligned) {
      for (int tile = tiles() - 1; tile >= 0; --tile) {
        if (!P::kOneTile && (!kNeedsRow || tile != tiles() - 1)) load(tile);
        is_usual &= encode_tile(tile, scale, peak);
      }
    }
    u32 largest = 0;
    if (__any_sync(~0u, !is_usual)) largest = encode_any(scale);
    if constexpr (!kNeedsRow) {
      barrier();  // the leader's scale comes first
      if (__any_sync(~0u, largest > kInfinity) && threadIdx.x % 32 == 0) args.scales[row] = nan;
    }
  }
};

/// Teams of threads, each with a row.
template <class P>
__device__ void quantize_rows(QuantizeArgs const& args, float reach) {
  let_next_begin_if_few();
  await_earlier();
  i64 const row = i64(blockIdx.x) * P::kTeams + threadIdx.x / P::kThreads;
  if (row >= args.rows) return;
  i64 const source = P::Rows::source(args.table, args.limit, row);
  if (source >= 0) RowQuantizer<P>(args, row, source).run(reach);
}

}  // namespace humming
