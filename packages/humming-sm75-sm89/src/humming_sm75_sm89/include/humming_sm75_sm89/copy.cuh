// Copy<kSm>: 16 bytes at a time from global to shared memory, or zeros in their place.
#pragma once

#include <humming/memory.cuh>

namespace humming::sm75_sm89 {

/// From SM80 on a copy is asynchronous, and done by one call:
///
///   Copy<kSm>::copy16(to, from, bytes);
///   Copy<kSm>::commit();           // closes a group of them
///   ...
///   Copy<kSm>::wait<1>();          // for all groups of this thread but the last one
///   ... a barrier; then all threads may read ...
///
/// On SM75 it goes through registers, see below. Addresses are multiples of 16, and `bytes` is 16,
/// or 0 for zeros, where nothing is read.
template <int kSm>
struct Copy {
  static_assert(kSm >= 80, "Copy: kSm is 75, or 80 and up");
  static constexpr bool kAsync = true;

  /// cp.async.cg.shared.global, which is not there before wait().
  static __device__ __forceinline__ void copy16(u32 shared_address, void const* global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global),
                 "r"(bytes)
                 : "memory");
  }

  /// cp.async.commit_group.
  static __device__ __forceinline__ void commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  /// cp.async.wait_group: at most kPending groups of this thread are under way.
  template <int kPending>
  static __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }
};

/// Holds 16 bytes on their way, which the caller stores when it likes.
template <>
struct Copy<75> {
  static constexpr bool kAsync = false;

  u32 r[4];

  __device__ __forceinline__ void fetch(void const* global, int bytes) {
    // Not `bytes == 16`: where that number came from a minimum, ptxas 13.0 tests the wrong
    // predicate for sm_90 (seen on an H200, 2026-11-29; rows were zeros).
    if (bytes != 0) {
      load_128(r, global);
    } else {
      r[0] = r[1] = r[2] = r[3] = 0;
    }
  }
};

}  // namespace humming::sm75_sm89
