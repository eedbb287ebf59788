// What surrounds wgmma.mma_async: descriptors, fences, groups, registers. The instruction itself,
// of one shape and one pair of types, is written by templates/wgmma.cu.j2.
#pragma once

#include <humming/memory.cuh>

namespace humming::sm90 {

/// Bytes of K in a row of an operand: one row of the 128-byte swizzle, four MMAs.
inline constexpr int kRowBytes = 128;
inline constexpr int kMmas = kRowBytes / 32;
/// What a descriptor grows by from one of these MMAs to the next, and from one row to the next.
/// Rows go in eights.
inline constexpr int kMmaStep = 32 / 16;
inline constexpr int kRowStep = kRowBytes / 16;

/// Describes rows of 128 bytes with the 128-byte swizzle, eights of them 1024 bytes apart; the
/// address is a multiple of 1024.
__device__ __forceinline__ u64 swizzled_rows(u32 address) {
  return u64(address >> 4 & 0x3fff) | u64(1) << 16 | u64(1024 / 16) << 32 | u64(1) << 62;
}

/// wgmma.fence: registers that the next MMAs take are written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// wgmma.commit_group
__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// wgmma.wait_group: all groups but the latest `kPending` are done.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// fence.proxy.async: what was written to shared memory is there for wgmma.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Ties sums to the wait before it: the compiler does not know what writes them, and when.
__device__ __forceinline__ void after_wait(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }
__device__ __forceinline__ void after_wait(i32& sum) { asm volatile("" : "+r"(sum)::"memory"); }
template <class Number, int kCount>
__device__ __forceinline__ void after_wait(Number (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) after_wait(sums[i]);
}

/// setmaxnreg.dec
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// setmaxnreg.inc
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace humming::sm90
