// Who fills the ring: threads that start bulk copies of x and of codes, and a warp that copies scales
// and zero points. A thread starts some nine bulk copies per microsecond (H200), and memory has a stage
// of 4-bit codes every 0.27 us: nobody may have more than two of them to start for it.
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

  __device__ __forceinline__ void start(Shared<P> const& shared, u32 stage, int step, bool) const {
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

/// Copies the blocks of the tile's panels from number kFrom to kTo - 1, those of them that are there.
template <class P, int kFrom, int kTo>
class CodeCopies {
  static constexpr int kBytes = Plan<P>::kCodeBytes;
  static constexpr int kBlockBytes = Plan<P>::kBlockBytes;
  static constexpr int kBlocks = Plan<P>::kStepBlocks;

 public:
  __device__ __forceinline__ CodeCopies(Arguments const& args, Tile const& tile)
      : panels_(args.panels()), blocks_(2 * args.units()) {
    PanelPair const pair(args, tile);
    count_ = (pair.count < kTo ? pair.count : kTo) - kFrom;
    panel_ = pair.first + kFrom;
    first_ = args.weight + Index(tile.expert) * panels_ * blocks_ * kBlockBytes;
  }

  __device__ __forceinline__ u32 bytes() const { return count_ > 0 ? count_ * kBytes : 0; }

  /// Steps come one after the other.
  __device__ __forceinline__ void start(Shared<P> const& shared, u32 stage, int step, bool once) {
    if (count_ <= 0) return;
    if (next_ == nullptr || step * kBlocks % kWindow == 0) seek(step * kBlocks);
    u32 const to = shared.codes(stage) + kFrom * kBytes, full = shared.full(stage);
    cp_async_bulk(to, next_, kBytes, full, once);
    if constexpr (kTo - kFrom == 2) {
      if (count_ == 2)
        cp_async_bulk(to + kBytes, next_ + length_ * kBlockBytes, kBytes, full, once);
    }
    next_ += kBytes;
  }

 private:
  static_assert(kTo - kFrom <= 2, "CodeCopies: a thread with too much to start");

  /// Finds a block; behind it are the others of its window.
  __device__ __forceinline__ void seek(int block) {
    int const window = block / kWindow * kWindow, left = blocks_ - window;
    length_ = left < kWindow ? left : kWindow;
    int const inside = panel_ * length_ + block - window;
    next_ = first_ + (Index(window) * panels_ + inside) * kBlockBytes;
  }

  int count_, panel_, panels_, blocks_;
  int length_ = 0;  // of the window, in blocks
  u8 const* first_;
  u8 const* next_ = nullptr;
};

/// Copies scales and zero points of the tile's rows: 16 bytes at a time, each lane of a warp others,
/// since those of an interval are too few for a bulk copy.
template <class P>
class RowCopies {
  using L = Plan<P>;

 public:
  __device__ __forceinline__ RowCopies(Arguments const& args, Tile const& tile)
      : pair_(args, tile), panels_(args.panels()) {
    Index const before = Index(tile.expert) * panels_;
    int const columns = args.units() * kUnitK;
    scales_ = args.scales +
              (before * groups<P::kGroup>(columns) + pair_.first) * L::kPanelScaleBytes;
    zeros_ = args.zeros +
             (before * groups<P::kZeroGroup>(columns) + pair_.first) * L::kPanelZeroBytes;
  }

  __device__ __forceinline__ void start(Shared<P> const& shared, u32 stage, int step) const {
    if constexpr (L::kScaleBytes > 0)
      rows<P::kGroup, L::kScales, L::kPanelScaleBytes>(scales_, shared.scales(stage), step);
    if constexpr (L::kZeroBytes > 0)
      rows<P::kZeroGroup, L::kZeros, L::kPanelZeroBytes>(zeros_, shared.zeros(stage), step);
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
  __device__ __forceinline__ void rows(u8 const* from, u32 to, int step) const {
    constexpr int kChunks = kPanels * kBytes / 16;  // of an interval
    int const lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < kCount * kChunks; first += 32) {
      int const chunk = first + lane, i = chunk / kChunks, offset = chunk % kChunks * 16;
      if (i >= kCount || offset >= pair_.count * kBytes) continue;
      u32 const group = u32(step * L::kStepK + i * (L::kStepK / kCount)) / kGroup;
      u8 const* const source = from + u64(group) * u32(panels_ * kBytes) + offset;
      cp_async_16(to + chunk * 16, reinterpret_cast<u64>(source), false);
    }
  }

  PanelPair pair_;
  int panels_;
  u8 const *scales_, *zeros_;
};

/// Fills the parts of stages that `Copies` knows, and tells items if kTells. One thread calls it.
template <class P, class Copies, bool kTells = false>
__device__ __forceinline__ void fill(Arguments const& args, Items<P> const& items,
                                     Shared<P> const& shared) {
  bool const once = items.read_once();
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    Copies copies(args, item.tile);
    for (int step = item.begin; step < item.end; ++step) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      if (kTells && step == item.begin) items.tell(shared, ring.stage, item.tile);
      mbarrier_arrive_expect_tx(shared.full(ring.stage), copies.bytes());
      copies.start(shared, ring.stage, step, once);
      ring.advance();
    }
  });
}

/// Fills the parts of stages that RowCopies knows. A warp calls it.
template <class P>
__device__ __forceinline__ void fill_rows(Arguments const& args, Items<P> const& items,
                                          Shared<P> const& shared) {
  Ring<P::kStages> ring;
  items.for_each([&](Item const& item) {
    RowCopies<P> const copies(args, item.tile);
    for (int step = item.begin; step < item.end; ++step) {
      mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
      copies.start(shared, ring.stage, step);
      cp_async_mbarrier_arrive_noinc(shared.full(ring.stage));
      ring.advance();
    }
  });
}

/// The part of the kernel for the warpgroup that copies.
template <class P>
__device__ __forceinline__ void produce(Arguments const& args, Items<P> const& items,
                                        Shared<P> const& shared) {
  int const warp = threadIdx.x / 32;
  if constexpr (Plan<P>::kHasRows) {
    if (warp == 2) return fill_rows<P>(args, items, shared);
  }
  if (threadIdx.x % 32 != 0) return;
  if (warp == 0) fill<P, TokenCopies<P>>(args, items, shared);
  if (warp == 1) fill<P, CodeCopies<P, 0, 1>, true>(args, items, shared);
  if (warp == 3) fill<P, CodeCopies<P, 1, kPanels>>(args, items, shared);
}

}  // namespace humming::sm90::wide
