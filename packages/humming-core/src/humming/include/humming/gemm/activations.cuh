// Activations of a tile: a ring of stages in shared memory, one per team, and MMA operands from it.
//
// A stage holds kTileM rows of a block or two of K. Chunks of 16 bytes are permuted within 128 bytes such
// that eight rows' chunks of one column lie in different banks, for ldmatrix.
#pragma once

#include <humming/gemm/sizes.cuh>
#include <humming/memory.cuh>

namespace humming {

/// Rows of x under a tile: `count` rows from `first` on, or those that a table in shared memory
/// names (-1: none), kTileM of them.
struct TileRows {
  Index first;
  int count;
  int const* sources;
};

/// Which row of x a row of a tile is; past the last, that one again.
template <class P>
__device__ __forceinline__ Index source_of(TileRows const& rows, int row) {
  if constexpr (P::kKind == GemmKind::kIndexed) {
    return rows.sources[row];
  } else {
    return rows.first + (row < rows.count ? row : rows.count - 1);
  }
}

/// The last row of a stage that is filled. Of tiles of 8 tokens a part may do, to spare copies: the
/// columns of the MMA that are left over read rows of the others.
template <class P>
__device__ __forceinline__ int last_row(TileRows const& rows) {
  if constexpr (Sizes<P>::kTileM == 8 && P::kKind != GemmKind::kIndexed) {
    return rows.count == 1 ? 0 : rows.count <= 2 ? 1 : rows.count <= 4 ? 3 : 7;
  } else {
    return Sizes<P>::kTileM - 1;
  }
}

/// Chunks of 16 bytes, and where they go in a stage.
template <class P>
struct Chunks {
  using S = Sizes<P>;
  static constexpr int kPerRow = S::kRowBytes / 16;
  static constexpr int kAll = S::kTileM * kPerRow;
  static constexpr int kPerThread = (kAll + S::kTeamThreads - 1) / S::kTeamThreads;
  static constexpr int kRowsApart = S::kTeamThreads / kPerRow;

  /// What the columns of a row are permuted by.
  static __device__ __forceinline__ int key(int row) {
    return S::kRowBytes >= 128 ? row & 7 : row / (128 / S::kRowBytes) % kPerRow;
  }

  /// Where a chunk is in a stage.
  static __device__ __forceinline__ u32 place(int row, int column) {
    // Matrix descriptors want pieces of 128 bytes of all rows together.
    u32 const piece = S::kSharesBlocks ? (column >> 3) * (S::kTileM * 128) + row * 128
                                       : row * S::kRowBytes + (column >> 3) * 128;
    return piece + ((column & 7) ^ key(row)) * 16;
  }

  /// The place of chunk `i` of a thread, whose first is at (row, column), place `first`.
  static __device__ __forceinline__ u32 next(int i, int row, int column, u32 first) {
    constexpr bool kIsPower = (kRowsApart & (kRowsApart - 1)) == 0;
    if constexpr (kIsPower && S::kRowBytes >= 128) {
      // Rows below kRowsApart and multiples of it have no bits in common: keys are added by xor.
      int const rows = i * kRowsApart;
      constexpr int kPitch = S::kSharesBlocks ? 128 : S::kRowBytes;
      return (first ^ (rows & 7) * 16) + rows * kPitch;
    } else {
      return place(row + i * kRowsApart, column);
    }
  }
};

/// What a thread copies: the same column of every kRowsApart-th row.
template <class P>
class Source {
  using S = Sizes<P>;
  using C = Chunks<P>;
  static constexpr bool kIndexed = P::kKind == GemmKind::kIndexed;

 public:
  __device__ __forceinline__ Source(GemmArguments const& args, TileRows const& rows, int expert,
                                    int thread)
      : args_(args),
        rows_(rows),
        order_(args.order + Index(expert) * ((args.k + kUnitK - 1) / kUnitK * kUnitK)),
        row_(thread / C::kPerRow),
        column_(thread % C::kPerRow * 16),
        place_(C::place(row_, thread % C::kPerRow)),
        first_(args.x + (rows.first + row_) * args.x_stride),
        apart_(C::kRowsApart * args.x_stride) {
    keep(column_);
    keep(place_);
    if constexpr (!kIndexed) {
      keep(first_);
      keep(apart_);
    }
  }

  /// Calls visit(number, where in a stage, address in global memory, bytes that are there). Rows past
  /// the last are zeros.
  template <class Visit>
  __device__ __forceinline__ void chunks(int stage, Visit&& visit) const {
    int const at = stage * S::kRowBytes + int(column_);  // K is an int, and so are its bytes
    // Rows are padded with zeros to whole chunks.
    int const there = at * 8 < args_.k * P::Activation::kBits ? 16 : 0;
    u8 const* from = (kIndexed ? args_.x : first_) + (there != 0 ? at : 0);
#pragma unroll
    for (int i = 0; i < C::kPerThread; ++i) {
      int const row = row_ + i * C::kRowsApart;
      if (C::kAll % S::kTeamThreads != 0 && row >= S::kTileM) break;
      if constexpr (kIndexed) {
        int const source = rows_.sources[row];
        u32 const stride = static_cast<u32>(args_.x_stride);
        u64 const offset = u64(stride) * static_cast<u32>(source < 0 ? 0 : source);
        visit(i, place(i), from + offset, source < 0 ? 0 : there);
      } else {
        if (S::kTileM == 8 && row > last_row<P>(rows_)) continue;
        visit(i, place(i), from, row < rows_.count ? there : 0);
        from += apart_;
      }
    }
  }

  /// Calls visit(number, where in a stage) per chunk.
  template <class Visit>
  __device__ __forceinline__ void places(Visit&& visit) const {
#pragma unroll
    for (int i = 0; i < C::kPerThread; ++i) {
      int const row = row_ + i * C::kRowsApart;
      if (C::kAll % S::kTeamThreads != 0 && row >= S::kTileM) break;
      if (S::kTileM == 8 && row > last_row<P>(rows_)) continue;
      visit(i, place(i));
    }
  }

  /// The chunks of a stage whose columns are those that `order` names, one element at a time.
  template <class Visit>
  __device__ __forceinline__ void gathered(int stage, Visit&& visit) const {
    constexpr int kBits = P::Activation::kBits;
    constexpr int kElements = 128 / kBits;
    i32 const* const order = order_ + Index(stage) * S::kStageK + column_ / 16 * kElements;
#pragma unroll
    for (int i = 0; i < C::kPerThread; ++i) {
      int const row = row_ + i * C::kRowsApart;
      if (C::kAll % S::kTeamThreads != 0 && row >= S::kTileM) break;
      if (S::kTileM == 8 && row > last_row<P>(rows_)) continue;
      Index const source = source_of<P>(rows_, row);
      u32 words[4] = {0, 0, 0, 0};
      if (P::kKind != GemmKind::kIndexed || source >= 0) {
        u8 const* const from = args_.x + source * args_.x_stride;
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          i32 const column = order[e];
          if (column >= 0) words[e * kBits / 32] |= element(from, column) << e * kBits % 32;
        }
      }
      visit(i, words);
    }
  }

 private:
  __device__ __forceinline__ u32 place(int i) const { return C::next(i, row_, column_ / 16, place_); }

  static __device__ __forceinline__ u32 element(u8 const* row, i32 column) {
    if constexpr (P::Activation::kBits == 16) {
      return reinterpret_cast<u16 const*>(row)[column];
    } else if constexpr (P::Activation::kBits == 8) {
      return row[column];
    } else {
      return row[column / 2] >> 4 * (column % 2) & 15;
    }
  }

  GemmArguments const& args_;
  TileRows const& rows_;
  i32 const* order_;
  int row_;
  u32 column_;       // in bytes
  u32 place_;        // of the thread's first chunk
  u8 const* first_;  // the thread's first row
  i64 apart_;        // bytes from a row of its to the next
};

/// The stages of a team's units in their order: numbers of pieces of K as long as a stage.
template <class P>
class StageOrder {
  static constexpr int kPerUnit = 2 / P::kStageBlocks;

 public:
  __device__ __forceinline__ StageOrder(int first, int units)
      : next_(first * kPerUnit), left_(units * kPerUnit) {}

  __device__ __forceinline__ bool is_over() const { return left_ == 0; }
  __device__ __forceinline__ int number() const { return next_; }

  __device__ __forceinline__ void step() {
    // Behind the last stage of a unit come those of the other teams.
    next_ += next_ % kPerUnit == kPerUnit - 1 ? (P::kWarpsK - 1) * kPerUnit + 1 : 1;
    --left_;
  }

 private:
  int next_, left_;
};

/// A team's ring, filled by asynchronous copies.
template <class P, bool kAsync>
class Ring {
  using S = Sizes<P>;

 public:
  static constexpr int kStages = P::kStages;
  static_assert(kStages >= 2, "Ring: at least two stages");

  /// Of `units` units from `first` on, each kWarpsK further; requests the first stage.
  __device__ __forceinline__ Ring(Source<P> const& source, u32 base, int first, int units)
      : source_(source), base_(base), order_(first, units), filled_(0) {
    fill();
  }

  /// Requests as many more as the ring has room for.
  __device__ __forceinline__ void prefetch() {
#pragma unroll
    for (int i = 1; i < kStages - 1; ++i) fill();
  }

  /// Waits for the oldest stage of this thread, then (in `barrier`) for the others', and requests
  /// another in the place of the one before.
  template <class Barrier>
  __device__ __forceinline__ void advance(Barrier&& barrier) {
    P::Copy::template wait<kStages - 2>();
    barrier();
    fill();
  }

 private:
  __device__ __forceinline__ void fill() {
    if (!order_.is_over()) {
      u32 const stage = base_ + filled_ * S::kStageBytes;
      source_.chunks(order_.number(), [&](int, u32 place, u8 const* from, int bytes) {
        P::Copy::copy16(stage + place, from, bytes);
      });
      filled_ = filled_ + 1 == kStages ? 0 : filled_ + 1;
      order_.step();
    }
    P::Copy::commit();  // an empty group, too: wait() counts them
  }

  Source<P> source_;
  u32 base_;
  StageOrder<P> order_;
  int filled_;
};

/// A ring of two stages, filled through registers: where there are no asynchronous copies, or they
/// can't gather.
template <class P>
class Ring<P, false> {
  using S = Sizes<P>;

 public:
  static constexpr int kStages = 2;

  __device__ __forceinline__ Ring(Source<P> const& source, u32 base, int first, int units)
      : source_(source), base_(base), order_(first, units), filled_(0) {
    fetch();
  }

  __device__ __forceinline__ void prefetch() {
    put();
    fetch();
  }

  template <class Barrier>
  __device__ __forceinline__ void advance(Barrier&& barrier) {
    barrier();
    put();
    fetch();
  }

 private:
  __device__ __forceinline__ void fetch() {
    held_ = !order_.is_over();
    if (!held_) return;
    if constexpr (P::kHasOrder) {
      source_.gathered(order_.number(), [&](int i, u32 const(&words)[4]) {
#pragma unroll
        for (int w = 0; w < 4; ++w) registers_[i][w] = words[w];
      });
    } else {
      source_.chunks(order_.number(), [&](int i, u32, u8 const* from, int bytes) {
        typename P::Copy copy;
        copy.fetch(from, bytes);
#pragma unroll
        for (int w = 0; w < 4; ++w) registers_[i][w] = copy.r[w];
      });
    }
    order_.step();
  }

  __device__ __forceinline__ void put() {
    if (!held_) return;
    u32 const stage = base_ + filled_ * S::kStageBytes;
    source_.places([&](int i, u32 place) { store_shared_128(stage + place, registers_[i]); });
    filled_ ^= 1;
  }

  Source<P> source_;
  u32 base_;
  StageOrder<P> order_;
  int filled_;
  bool held_;
  u32 registers_[Chunks<P>::kPerThread][4];
};

/// Operands of a warp from a stage, `kSteps` steps of a block at a time.
template <class P, int kSteps>
class Operands {
  using S = Sizes<P>;
  static constexpr int kChunks = 2 * kSteps;  // in a row
  static constexpr int kMatrices = S::kTokenTiles * kChunks;

 public:
  /// Registers 2 * step and 2 * step + 1 of token tile t are [t * kChunks + 2 * step] and the next.
  using Registers = u32[kMatrices];

  __device__ __forceinline__ Operands(TileRows const& rows, int warp_m, int lane) {
    int const matrix = lane >> 3;
    int const tile = kChunks == 2 && kMatrices > 2 ? matrix >> 1 : 0;
    int const column = kChunks == 2 ? matrix & 1 : matrix;
    int row = warp_m * P::kTokens + tile * 8 + (lane & 7);
    if constexpr (S::kTileM == 8) row &= last_row<P>(rows);
    row_ = row * S::kRowBytes;
    column_ = (column ^ Chunks<P>::key(row)) * 16;
    if constexpr (S::kTokenTiles <= 2) {
      keep(row_);
      keep(column_);
    }
  }

  /// From step `first` of block `half` of a stage on.
  __device__ __forceinline__ void load(Registers& registers, int half, int first,
                                       u32 stage) const {
#pragma unroll
    for (int i = 0; i < kMatrices; i += 4) {
      int const column = 2 * (half * S::kSteps + first) + i % kChunks;
      u32 const from = stage + row_ + i / kChunks * (8 * S::kRowBytes) + (column >> 3) * 128 +
                       (column_ ^ (column & 7) * 16);
      if constexpr (kMatrices == 2) {
        ldmatrix_x2(registers, from);
      } else {
        ldmatrix_x4(registers + i, from);
      }
    }
  }

  static __device__ __forceinline__ void of(Registers const& registers, int token_tile, int step,
                                            u32 (&b)[2]) {
    b[0] = registers[token_tile * kChunks + 2 * step];
    b[1] = registers[token_tile * kChunks + 2 * step + 1];
  }

 private:
  u32 row_, column_;
};

}  // namespace humming
