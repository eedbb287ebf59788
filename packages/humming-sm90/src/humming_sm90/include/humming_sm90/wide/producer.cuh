// Who fills the ring: three threads that start bulk copies, each of another operand, so that none
// takes longer than the MMAs of few tokens; where rows of x are chosen by index, two warps copy those.
#pragma once

#include <humming_sm90/wide/plan.cuh>

namespace humming::sm90::wide {

/// Tokens of a tile that are multiplied.
template <class P>
__device__ __forceinline__ int multiplied(Tile const& tile) {
  if constexpr (P::kFits) {
    int const whole = (tile.count - 1) / Plan<P>::kChunk * Plan<P>::kChunk;
    return whole + P::Mma::width(tile.count - whole);
  } else {
    return P::kTokens;
  }
}

/// Copies boxes of x: as many as hold what is multiplied.
template <class P>
class TokenCopies {
  using L = Plan<P>;
  static constexpr int kBoxBytes = L::kBox * kRowBytes;

 public:
  __device__ __forceinline__ TokenCopies(Arguments const& args, Tile const& tile)
      : args_(args), first_(int(tile.first)) {
    if constexpr (P::kFits) boxes_ = (multiplied<P>(tile) + L::kBox - 1) / L::kBox;
  }

  __device__ __forceinline__ u32 bytes() const { return boxes_ * kBoxBytes; }

  __device__ __forceinline__ void start(Shared<P> const& shared, u32 stage, int step) const {
    u32 const to = shared.x(stage), full = shared.full(stage);
    int const k = step * L::kStepK;
    cp_async_bulk_tensor(to, args_.x, k, first_, full);
    if constexpr (P::kFits) {
#pragma unroll 1
      for (int box = 1; box < boxes_; ++box)
        cp_async_bulk_tensor(to + box * kBoxBytes, args_.x, k, first_ + box * L::kBox, full);
    }
  }

 private:
  Arguments const& args_;
  int first_, boxes_ = 1;
};

/// Copies the blocks of the tile's panels.
template <class P>
class CodeCopies {
  static constexpr int kBytes = Plan<P>::kCodeBytes;
  static constexpr int kBlocks = Plan<P>::kStepBlocks;

 public:
  __device__ __forceinline__ CodeCopies(Arguments const& args, Tile const& tile)
      : pair_(args, tile), panels_(args.panels()), blocks_(2 * args.units()) {
    from_ = args.weight + Index(tile.expert) * panels_ * blocks_ * Plan<P>::kBlockBytes;
  }

  __device__ __forceinline__ u32 bytes() const { return pair_.count * kBytes; }

  __device__ __forceinline__ void start(Shared<P> const& shared, u32 stage, int step) const {
    int const block = step * kBlocks, window = block / kWindow * kWindow, left = blocks_ - window;
    int const length = left < kWindow ? left : kWindow;
    int const inside = pair_.first * length + block - window;
    u8 const* const from = from_ + (Index(window) * panels_ + inside) * Plan<P>::kBlockBytes;
    u32 const to = shared.codes(stage), full = shared.full(stage);
    cp_async_bulk(to, from, kBytes, full);
    if (pair_.count == kPanels)
      cp_async_bulk(to + kBytes, from + length * Plan<P>::kBlockBytes, kBytes, full);
  }

 private:
  PanelPair pair_;
  int panels_, blocks_;
  u8 const* from_;
};

/// Copies scales and zero points of the tile's rows.
template <class P>
class RowCopies {
  using L = Plan<P>;

 public:
  __device__ __forceinline__ RowCopies(Arguments const& args, Tile const& tile)
      : pair_(args, tile), panels_(args.panels()) {
    Index const before = Index(tile.expert) * panels_;
    int const columns = args.units() * kUnitK;
    scales_ = args.scales + before * groups<P::kGroup>(columns) * L::kPanelScaleBytes;
    zeros_ = args.zeros + before * groups<P::kZeroGroup>(columns) * L::kPanelZeroBytes;
  }

  __device__ __forceinline__ u32 bytes() const {
    return pair_.count * (L::kPanelBytes - L::kCodeBytes);
  }

  __device__ __forceinline__ void start(Shared<P> const& shared, u32 stage, int step) const {
    u32 const full = shared.full(stage);
    if constexpr (L::kScaleBytes > 0)
      rows<P::kGroup, L::kScales, L::kPanelScaleBytes>(scales_, shared.scales(stage), step, full);
    if constexpr (L::kZeroBytes > 0)
      rows<P::kZeroGroup, L::kZeros, L::kPanelZeroBytes>(zeros_, shared.zeros(stage), step, full);
  }

 private:
  /// Groups of a row, padding included.
  template <int kGroup>
  static __device__ __forceinline__ int groups(int columns) {
    if constexpr (kGroup == 0) {
      return 0;
    } else {
      return (columns + (kGroup - 1)) / kGroup;
    }
  }

  /// Numbers of the rows for each interval of the step; those of both panels lie together.
  template <int kGroup, int kCount, int kBytes>
  __device__ __forceinline__ void rows(u8 const* from, u32 to, int step, u32 full) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      int const group = (step * L::kStepK + i * (L::kStepK / kCount)) / kGroup;
      cp_async_bulk(to + i * (kPanels * kBytes),
                    from + (Index(group) * panels_ + pair_.first) * kBytes, pair_.count * kBytes,
                    full);
    }
  }

  PanelPair pair_;
  int panels_;
  u8 const *scales_, *zeros_;
};

/// Fills the parts of stages that `Copies` knows. One thread calls it.
template <class P, class Copies>
__device__ __forceinline__ void fill(Arguments const& args, Items<P> const& items,
                                     Shared<P> const& shared) {
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    Copies const copies(args, item.tile);
    for (int step = item.begin; step < item.end; ++step) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      mbarrier_arrive_expect_tx(shared.full(ring.stage), copies.bytes());
      copies.start(shared, ring.stage, step);
      ring.advance();
    }
  });
}

/// Fills stages with rows of x that are chosen by index. Both warps call it, `warp` being 0 or 1.
template <class P>
__device__ __forceinline__ void gather(Arguments const& args, Items<P> const& items,
                                       Shared<P> const& shared, u32 warp) {
  int const row_bytes = args.k * P::Target::kBits / 8;
  typename Plan<P>::Gather const rows(args.choices, shared.distances(), warp);
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    rows.look_up(item.tile.first, item.tile.count);
    int const count = multiplied<P>(item.tile);
    for (int step = item.begin; step < item.end; ++step) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      rows.start(shared.x(ring.stage), count, step * kRowBytes, row_bytes, shared.full(ring.stage));
      ring.advance();
    }
  });
}

/// The part of the kernel for the warpgroup that copies.
template <class P>
__device__ __forceinline__ void produce(Arguments const& args, Items<P> const& items,
                                        Shared<P> const& shared) {
  int const warp = threadIdx.x / 32;
  if constexpr (Plan<P>::kIndexed) {
    if (warp == 0 || warp == 3) return gather<P>(args, items, shared, warp & 1);
  }
  if (threadIdx.x % 32 != 0) return;
  if constexpr (!Plan<P>::kIndexed) {
    if (warp == 0) fill<P, TokenCopies<P>>(args, items, shared);
  }
  if (warp == 1) fill<P, CodeCopies<P>>(args, items, shared);
  if constexpr (Plan<P>::kHasRows) {
    if (warp == 2) fill<P, RowCopies<P>>(args, items, shared);
  }
}

}  // namespace humming::sm90::wide
