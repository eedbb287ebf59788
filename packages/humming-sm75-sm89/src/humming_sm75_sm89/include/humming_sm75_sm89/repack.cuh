// Codes from the standard form to the fragments of mma.sync; twin of packing.py.
//
// A CTA takes 64 rows by 512 columns: 8 blocks, one for each warp. Rows go through shared memory as
// they lie in global memory, with 16-byte or 4-byte loads; then each lane takes its units of codes
// out of them and puts their bits into its words. Where columns change their order, they are read
// code by code and lie in shared memory with 8 bits each, or 4.
#pragma once

#include <humming/decode/fives.cuh>
#include <humming/decode/placements.cuh>
#include <humming/decode/planes.cuh>
#include <humming/std.cuh>

namespace humming::sm75_sm89 {

/// The standard form of a weight, [experts, n, ceil(k * b / 8)] bytes: code k of a row has the bits
/// from k * b on, the lowest first.
struct RepackSource {
  u8 const* packed;
  i32 const* columns;  // stored column to column of a row, or -1; [experts, 64 * blocks]
  int n;               // rows
  int k;               // columns of a row
  int blocks;          // along K in the packed form
};

/// Layout: the planes that codes go to. kWide: all rows begin at multiples of 16. kGathers: `columns`
/// says which column goes where.
template <class Layout, bool kWide, bool kGathers>
struct Repack {
  static constexpr int kBits = Layout::kBits, kUnit = Layout::kUnit;

  static constexpr int kPanelRows = 64;
  static constexpr int kBlockColumns = 64;
  static constexpr int kWindow = 32;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  /// Bits of a code in shared memory.
  static constexpr int kStaged = !kGathers ? kBits : kUnit == 8 ? 4 : 8;
  /// Words that the codes of a row take in a CTA's share of it.
  static constexpr int kRowWords = kWarps * kBlockColumns * kStaged / 32;
  /// Four more: one for rows that begin inside a word, one that may be read but not used; and rows
  /// that are read together lie in different banks.
  static constexpr int kRowStride = kRowWords + 4;
  static constexpr int kSharedWords = kPanelRows * kRowStride;
  static constexpr int kSteps = kBlockColumns / (8 * kUnit);
  static constexpr u32 kCodeMask = (1u << kBits) - 1;

  RepackSource const from;
  i64 const row_bytes;
  u8 const* const expert;  // the first row of this CTA's expert

  __device__ __forceinline__ explicit Repack(RepackSource const& source)
      : from(source),
        row_bytes((i64(source.k) * kBits + 7) / 8),
        expert(source.packed + i64(blockIdx.z) * source.n * row_bytes) {}

  /// Writes this CTA's blocks; `shared` has kSharedWords words.
  __device__ __forceinline__ void run(u32* out, u32* shared) const {
    if constexpr (kGathers) {
      gather(shared);
    } else {
      stage(shared);
    }
    __syncthreads();
    int const block = blockIdx.x * kWarps + threadIdx.x / 32;
    if (block >= from.blocks) return;
    u32 words[Layout::kWords] = {};
    take(words, shared);
    store(words, out, block);
  }

 private:
  /// What is loaded or stored at once.
  template <int kCount>
  struct alignas(4 * kCount) Piece {
    u32 words[kCount];
  };

  // --------------------------------------------------------------- global to shared memory

  /// Words per load.
  static constexpr int kLoad = kWide ? 4 : 1;
  using Load = Piece<kLoad>;

  /// How many bytes a row begins behind a multiple of 4; the same for each eighth row.
  __device__ __forceinline__ int shift_of(int row) const {
    return kWide || kGathers ? 0 : int((reinterpret_cast<u64>(expert) + u64(row * row_bytes)) & 3);
  }

  /// Copies this CTA's share of 64 rows, word by word as it is aligned in global memory.
  __device__ __forceinline__ void stage(u32* shared) const {
    int const first = blockIdx.x * 4 * kRowWords, last = first + 4 * kRowWords;
    bool const rows = (blockIdx.y + 1) * kPanelRows <= from.n;
    bool const columns = (kWide || first > 0) && last + (kWide ? 0 : 4) <= from.k * kBits / 8;
    if (rows && columns) {
      stage_inside(shared, first);
    } else {
      stage_edge(shared, first);
    }
  }

  /// All that is read lies inside of the rows: many loads first, so that none waits for another.
  __device__ __forceinline__ void stage_inside(u32* shared, int first) const {
    constexpr int kLoads = kRowWords / kLoad;
    // More of them than this and registers run out.
    constexpr int kRounds = (kWide ? kBits < 8 : kBits < 3) ? 1 : 2;
    constexpr int kTurns = kPanelRows * kLoads / (kThreads * kRounds);
    static_assert(kRounds * kTurns * kThreads == kPanelRows * kLoads);
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      int const begin = round * kTurns * kThreads + threadIdx.x;
      Load held[kTurns];
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        int const index = begin + turn * kThreads, row = index / kLoads;
        u8 const* const share = row_of(row) + first - shift_of(row);
        held[turn] = reinterpret_cast<Load const*>(share)[index % kLoads];
      }
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        int const index = begin + turn * kThreads;
        u32* const row = shared + index / kLoads * kRowStride;
        reinterpret_cast<Load*>(row)[index % kLoads] = held[turn];
      }
    }
    if (threadIdx.x < kPanelRows) {
      int const row = threadIdx.x, next = first + 4 * kRowWords - shift_of(row);
      shared[row * kRowStride + kRowWords] = kWide ? 0 : word_at(row, next);
      shared[row * kRowStride + kRowWords + 1] = 0;
    }
  }

  /// Zeros for what lies outside.
  __device__ __forceinline__ void stage_edge(u32* shared, int first) const {
    constexpr int kColumns = kRowWords + 2;
    for (int index = threadIdx.x; index < kPanelRows * kColumns; index += kThreads) {
      int const row = index / kColumns, word = index % kColumns;
      shared[row * kRowStride + word] = word_at(row, first - shift_of(row) + 4 * word);
    }
  }

  __device__ __forceinline__ u8 const* row_of(int row) const {
    return expert + (i64(blockIdx.y) * kPanelRows + row) * row_bytes;
  }

  /// The word at byte `at`, a multiple of 4 as an address, of a row; zeros for what is none of its
  /// codes.
  __device__ __forceinline__ u32 word_at(int row, int at) const {
    if (i64(blockIdx.y) * kPanelRows + row >= from.n) return 0;
    u8 const* const bytes = row_of(row) + at;
    int const bits = from.k * kBits - 8 * at;
    if (at >= 0 && bits >= 32) return *reinterpret_cast<u32 const*>(bytes);
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (at + i >= 0 && bits > 8 * i) word |= u32(bytes[i]) << 8 * i;
    }
    return bits > 0 && bits < 32 ? word & ((1u << bits) - 1) : word;
  }

  /// Puts codes together word by word, each thread for the same columns of several rows.
  __device__ __forceinline__ void gather(u32* shared) const {
    constexpr int kCodes = 32 / kStaged;
    int const word = threadIdx.x % kRowWords;
    int const first = blockIdx.x * kWarps * kBlockColumns + word * kCodes;
    int const stored = from.blocks * kBlockColumns;
    int columns[kCodes];
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      i64 const at = blockIdx.z * i64(stored) + first + i;
      columns[i] = first + i < stored ? from.columns[at] : -1;
    }
    static_assert(kThreads % kRowWords == 0);
#pragma unroll 2
    for (int row = threadIdx.x / kRowWords; row < kPanelRows; row += kThreads / kRowWords) {
      bool const is_row = i64(blockIdx.y) * kPanelRows + row < from.n;
      u32 codes = 0;
#pragma unroll
      for (int i = 0; i < kCodes; ++i) {
        if (is_row && columns[i] >= 0) codes |= code_at(row_of(row), columns[i]) << kStaged * i;
      }
      shared[row * kRowStride + word] = codes;
    }
  }

  static __device__ __forceinline__ u32 code_at(u8 const* row, int column) {
    int const bit = column * kBits, shift = bit % 8;
    u8 const* const bytes = row + bit / 8;
    u32 word = bytes[0];
    if (shift + kBits > 8) word |= u32(bytes[1]) << 8;
    return word >> shift & kCodeMask;
  }

  // ----------------------------------------------------------------- units of codes to words

  /// The first row of unit kIndex for lanes 0 to 3; lane l has row + l / 4.
  static __device__ constexpr int unit_row(int index) {
    return index / 4 / kSteps * 16 + (index & 1) * 8;
  }
  /// Its first column for lanes 0, 4, 8 and so on; lane l has column + kUnit * (l % 4).
  static __device__ constexpr int unit_column(int index) {
    return index / 4 % kSteps * 8 * kUnit + (index >> 1 & 1) * 4 * kUnit;
  }

  __device__ __forceinline__ void take(u32 (&words)[Layout::kWords], u32 const* shared) const {
    int const warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 const* const row = shared + lane / 4 * kRowStride;
    u32 const start = 8 * shift_of(lane / 4) + (kBlockColumns * warp + kUnit * (lane % 4)) * kStaged;
    for_constants<Layout::kUnits>([&](auto index) {
      u32 const at = start + unit_column(index) * kStaged;
      u32 const* const word = row + unit_row(index) * kRowStride + at / 32;
      // A unit in one word, or two of them?
      constexpr bool kWhole = (kWide || kGathers) && 32 % (kUnit * kStaged) == 0;
      u32 const field = kWhole ? word[0] >> at % 32 : __funnelshift_r(word[0], word[1], at);
      Layout::put(words, index, slots_of(field));
    });
    Layout::finish(words);
  }

  /// Codes one after the other, to one in each slot.
  static __device__ __forceinline__ u32 slots_of(u32 field) {
    u32 slots = 0;
    for_constants<kUnit>([&](auto j) {
      slots |= moved(field, (Layout::kSlot - kStaged) * j) & kCodeMask << Layout::kSlot * j;
    });
    return slots;
  }

  /// Load i of all lanes lies together; blocks lie in windows, see layout.py.
  __device__ __forceinline__ void store(u32 const (&words)[Layout::kWords], u32* out,
                                        int block) const {
    int const window = block / kWindow * kWindow, left = from.blocks - window;
    i64 const panels = gridDim.y;
    i64 const position = blockIdx.z * panels * from.blocks + window * panels +
                         i64(blockIdx.y) * (left < kWindow ? left : kWindow) + block - window;
    auto* const to = reinterpret_cast<Piece<4>*>(out + position * 32 * Layout::kWords);
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      to[32 * i + threadIdx.x % 32] = {words[4 * i], words[4 * i + 1], words[4 * i + 2],
                                       words[4 * i + 3]};
    }
  }
};

}  // namespace humming::sm75_sm89
