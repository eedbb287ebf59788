// Kernels that begin while the one before them in the stream still runs (programmatic dependent launch).
//
// Where there is such a thing, a kernel that calls await_earlier() is launched as soon as every CTA of the
// kernel before it has called let_next_begin() or has ended. Its launch then takes no time of its own, nor
// does what it does before the call. In return
//
//   - before the call a kernel neither reads nor writes memory that another kernel writes or reads: not
//     even counters of the workspace, and not its results, which others may still be reading;
//   - every thread makes the call on every way through the kernel, also where there is nothing to do. A
//     kernel counts as ended when its threads have, and that the kernels before it have ended too only
//     follows from its having waited for them: what comes next relies on it.
//
// Kernels of others need not know: theirs let nobody begin early unless they are made to, and wait, by the
// stream's order, for the end of ours. A kernel of ours that others let begin early waits all the same.
//
// Who calls let_next_begin() gives what is left of multiprocessors to CTAs that wait. Dense products do it
// at once, and so do kernels that are over soon, if they have few CTAs: where they have many, the next
// kernel's come to multiprocessors as these become free, neighbours no longer beside each other. Presumably
// L2 then delivers more often what neighbours read alike. FP8 products of 256 experts, 4096 x 7168, with
// 4096 tokens whose rows were ordered before took 3184 us so, not 2620, a whole layer 5207, not 4563.
// Products of experts don't: as their CTAs end one by one, the next kernel's would crowd where there is
// room first. Where that was measured, whole layers of experts took 2 us less for 64 tokens than if they
// did, and 1 us more for one.
#pragma once

#include <humming/std.cuh>

namespace humming {

/// In a binary this name says that its kernel calls await_earlier(); humming.launching looks for it.
template <class>
__device__ u8 kernels_await_earlier;

/// griddepcontrol.wait: until all earlier kernels have ended, and what they wrote can be read. A template,
/// so that the name above is there only if it is called.
template <class Called = void>
__device__ __forceinline__ void await_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::"l"(&kernels_await_earlier<Called>) : "memory");
#endif
}

/// griddepcontrol.launch_dependents: the next kernel may begin, as far as this CTA is concerned.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// let_next_begin() of a kernel whose CTAs are over soon, if it has few.
__device__ __forceinline__ void let_next_begin_if_few() {
  constexpr u32 kFew = 256;
  if (gridDim.x * gridDim.y <= kFew) let_next_begin();
}

/// cp.async.bulk.prefetch.L2, which others' writes don't mind: so it may come before await_earlier().
/// Address and bytes are multiples of 16.
__device__ __forceinline__ void prefetch_l2(void const* from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace humming
