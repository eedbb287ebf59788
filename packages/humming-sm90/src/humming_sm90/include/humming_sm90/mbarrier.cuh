// Barriers in shared memory that count arrivals and bytes, and the ring of stages they guard.
#pragma once

#include <humming/memory.cuh>

namespace humming::sm90 {

/// mbarrier.init
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// fence.mbarrier_init: what is initialised before is so for asynchronous copies too.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// mbarrier.arrive
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// mbarrier.arrive.expect_tx: an arrival, and so many bytes that asynchronous copies will bring.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// cp.async.mbarrier.arrive.noinc: an arrival once all earlier cp.async of this thread are done.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// mbarrier.try_wait.parity: whether the phase of this parity is complete; may wait a while.
__device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 complete;
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
      "selp.u32 %0, 1, 0, complete;\n"
      "}"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

/// mbarrier.test_wait.parity: whether the phase of this parity is complete; does not wait.
__device__ __forceinline__ bool mbarrier_test_wait(u32 barrier, u32 parity) {
  u32 complete;
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 complete, [%1], %2;\n"
      "selp.u32 %0, 1, 0, complete;\n"
      "}"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
  return complete != 0;
}

/// Waits until the phase of this parity is complete.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

/// The place of one who fills or empties `kStages` buffers in turns, again and again.
template <int kStages>
struct Ring {
  u32 stage = 0;
  u32 parity = 0;  // of the phase that is being filled and emptied

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace humming::sm90
