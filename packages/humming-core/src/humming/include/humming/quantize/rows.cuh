// Rows of activations to codes and scales: quantize_rows() of humming/activations.py on the device.
//
// A team of threads has a row. It reads tiles of the row forwards for the row's largest magnitude,
// if a scale depends on that, and then makes codes backwards: the last tile is still in registers,
// and most rows are one tile. Each warp has a run of neighbours in a tile, so that groups lie
// inside of a warp.
#pragma once

#include <humming/quantize/octet.cuh>

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
};

/// The largest of the numbers of `kLanes` neighbouring lanes, for each of them.
template <int kLanes>
__device__ __forceinline__ u32 neighbours_max(u32 value) {
  if constexpr ((kLanes & (kLanes - 1)) == 0) {
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      value = max(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
  } else {
    int const lane = threadIdx.x % 32, place = lane % kLanes;
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      u32 const other = __shfl_down_sync(~0u, value, distance);
      if (place + distance < kLanes) value = max(value, other);
    }
    return __shfl_sync(~0u, value, lane - place);
  }
}

/// Source: F16, Bf16 or F32. Code, Scale: formats. kGroup: 0 without groups.
template <class Source, class Code, class Scale, RowScale kRowScale, int kGroup, int kThreads,
          int kVectors>
struct RowQuantizer {
  static constexpr bool kNeedsRow = kRowScale == RowScale::kToken;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kStoredBytes = Code::kBits > 4 ? 8 : 4;  // of eight codes
  static constexpr int kOctets = kGroup / 8;  // of a group
  static constexpr int kLanes = kGroup == 0 ? 1 : kOctets < 32 ? kOctets : 32;
  static constexpr int kJoined = kOctets > 32 ? kOctets / 32 : 1;  // vectors of a group
  static constexpr int kRun = 32 / kLanes * kLanes;  // lanes at work
  static constexpr int kTile = kWarps * kVectors * kRun;
  static_assert(kGroup % 8 == 0 && (kOctets <= 32 || kOctets % 32 == 0), "as Python refuses");
  static_assert(kVectors % kJoined == 0, "groups lie inside of a warp");
  using Numbers = Octet<Source>;

  QuantizeArgs const& args;
  i64 row;
  typename Numbers::Element const* from;
  int octets;  // of the codes, padding included
  bool is_aligned;
  Numbers numbers[kVectors];

  static __device__ int row_bytes(int k) {
    return (i64(k) * kStoredBytes + 127) / 128 * 16;
  }

  __device__ RowQuantizer(QuantizeArgs const& given, i64 number) : args(given), row(number) {
    from = static_cast<typename Numbers::Element const*>(args.x) + row * args.x_stride;
    octets = row_bytes(args.k) / kStoredBytes;
    is_aligned = reinterpret_cast<u64>(from) % 16 == 0;
  }

  /// Which octet vector 0 of this thread is in a tile; the next vector is kRun further.
  __device__ int first_octet(int tile) const {
    int const warp = threadIdx.x % kThreads / 32;
    return tile * kTile + warp * kVectors * kRun + threadIdx.x % 32;
  }
  __device__ bool is_mine(int octet) const {
    return (kRun == 32 || threadIdx.x % 32 < kRun) && octet < octets;
  }

  __device__ void load(int tile) {
    int const first = first_octet(tile);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (is_mine(first + v * kRun)) {
        numbers[v].load(from, first + v * kRun, args.k, is_aligned);
      } else {
        numbers[v].clear();
      }
    }
  }

  /// The largest magnitude that a thread of the team found. Once for a row.
  __device__ u32 team_max(u32 value) const {
    value = neighbours_max<32>(value);
    if constexpr (kWarps == 1) return value;
    __shared__ u32 found[32];
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = value;
    __syncthreads();
    return neighbours_max<32>(threadIdx.x % 32 < kWarps ? found[threadIdx.x % 32] : 0);
  }

  /// The row's scale, or the second level over the groups'; `reach` is how far those go.
  __device__ float row_scale(u32 peak, float reach) const {
    if constexpr (kRowScale == RowScale::kNone) return 1.0f;
    float scale;
    if constexpr (kRowScale == RowScale::kToken) {
      scale = __fdiv_rn(__uint_as_float(peak), Codes<Code>::top() * reach);
      if (scale == 0.0f) scale = 1.0f;
    } else {
      scale = args.stored[row * args.stored_step];
    }
    return kGroup ? scale : stored_scale<Scale>(scale);
  }

  __device__ float group_scale(u32 peak, float second) const {
    float const top = Codes<Code>::top();
    float const per = kRowScale == RowScale::kNone ? top : __fmul_rn(top, second);
    return stored_scale<Scale>(__fdiv_rn(__uint_as_float(peak), per));
  }

  __device__ void store(int octet, u64 codes) const {
    i64 const left = args.k - 8 * i64(octet);
    if (left < 8) codes &= left > 0 ? (u64(1) << left * kStoredBytes) - 1 : 0;
    u8* const to = args.codes + row * row_bytes(args.k) + i64(octet) * kStoredBytes;
    if constexpr (kStoredBytes == 8) {
      *reinterpret_cast<u64*>(to) = codes;
    } else {
      *reinterpret_cast<u32*>(to) = static_cast<u32>(codes);
    }
  }

  /// Codes of the tile in registers; returns the largest magnitude there.
  __device__ u32 encode(int tile, float scale) {
    int const first = first_octet(tile);
    u32 largest = 0;
#pragma unroll
    for (int v = 0; v < kVectors; v += kJoined) {
      u32 peak = 0;
      if constexpr (kGroup != 0 || !kNeedsRow) {
#pragma unroll
        for (int j = 0; j < kJoined; ++j) peak = max(peak, numbers[v + j].peak());
        largest = max(largest, peak);
      }
      float divisor = scale;
      if constexpr (kGroup != 0) {
        float const inner = group_scale(neighbours_max<kLanes>(peak), scale);
        int const octet = first + v * kRun;
        if (is_mine(octet) && octet % kOctets == 0 && 8 * i64(octet) < args.k) {
          i64 const groups = (args.k + i64(kGroup) - 1) / kGroup;
          args.groups[row * groups + octet / kOctets] = inner;
        }
        divisor = kRowScale == RowScale::kNone ? inner : __fmul_rn(inner, scale);
      }
      // A NaN among the numbers makes one of their own scale, but not of one that was stored.
      bool const is_usual = divisor > 0.0f && magnitude_bits(divisor) < kInfinity &&
                            (kGroup != 0 || kNeedsRow || peak <= kInfinity);
#pragma unroll
      for (int j = 0; j < kJoined; ++j) {
        int const octet = first + (v + j) * kRun;
        if (is_mine(octet)) store(octet, numbers[v + j].template codes<Code>(divisor, is_usual));
      }
    }
    return largest;
  }

  __device__ void run(float reach) {
    int const tiles = (octets + kTile - 1) / kTile;
    u32 peak = 0;
    if constexpr (kNeedsRow) {
      for (int tile = 0; tile < tiles; ++tile) {
        load(tile);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) peak = max(peak, numbers[v].peak());
      }
      peak = team_max(peak);
    }
    float const scale = row_scale(peak, reach);
    u32 largest = 0;
    for (int tile = tiles - 1; tile >= 0; --tile) {
      if (!kNeedsRow || tile != tiles - 1) load(tile);
      largest = max(largest, encode(tile, scale));
    }
    if constexpr (!kNeedsRow) peak = team_max(largest);
    // Integers have no NaN, so the row's scale carries it.
    bool const has_nan = peak > kInfinity;
    if (threadIdx.x % kThreads == 0) {
      args.scales[row] = has_nan ? __uint_as_float(0x7fc00000u) : scale;
    }
  }
};

/// Teams of kThreads threads, each with a row: several in a CTA only if each is a warp.
template <class Quantizer, int kThreads, int kTeams>
__device__ void quantize_rows(QuantizeArgs const& args, float reach) {
  static_assert(kTeams == 1 || kThreads == 32, "a team that waits at a barrier is a CTA");
  i64 const row = i64(blockIdx.x) * kTeams + threadIdx.x / kThreads;
  if (row < args.rows) Quantizer(args, row).run(reach);
}

}  // namespace humming
