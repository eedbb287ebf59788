// Asynchronous copies to shared memory: boxes of tensors, runs of bytes, single words.
#pragma once

#include <humming/memory.cuh>

namespace humming::sm90 {

/// What the driver encodes of a tensor.
struct alignas(64) TensorMap {
  u64 words[16];
};
static_assert(sizeof(TensorMap) == 128, "as the driver has it");

/// prefetch.tensormap
__device__ __forceinline__ void prefetch_tensormap(TensorMap const* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// cp.async.bulk.tensor.2d, global to shared; what lies outside of the tensor becomes zero.
__device__ __forceinline__ void cp_async_bulk_tensor(u32 to, TensorMap const* map, i32 x, i32 y,
                                                     u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

/// What createpolicy.fractional.L2::evict_first gives for all of a copy (ptxas 13.0, sm_90a): what is read
/// with it leaves L2 first. Made by that instruction it takes registers that who copies does not have.
inline constexpr u64 kEvictFirst = 0x12F0000000000000;

/// cp.async.bulk.tensor.5d, from the beginning of the inner two dimensions on. What is read `once` leaves
/// L2 first. Otherwise there is no cache policy: with one of createpolicy's evict_normal, products of 256
/// experts took 20 % longer (H200; why is not known).
__device__ __forceinline__ void cp_async_bulk_tensor(u32 to, TensorMap const* map, i32 third, i32 fourth,
                                                     i32 fifth, u32 barrier, bool once) {
  if (once) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %2, %3, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(map), "r"(0), "r"(third), "r"(fourth), "r"(fifth), "r"(barrier), "l"(kEvictFirst)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(map), "r"(0), "r"(third), "r"(fourth), "r"(fifth), "r"(barrier)
        : "memory");
  }
}

/// cp.async.bulk, global to shared; addresses and bytes are multiples of 16. `once`: as above.
__device__ __forceinline__ void cp_async_bulk(u32 to, void const* from, u32 bytes, u32 barrier,
                                              bool once) {
  if (once) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(kEvictFirst)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
  }
}

/// cp.async.ca of 4 bytes
__device__ __forceinline__ void cp_async_4(u32 to, void const* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/// cp.async.wait_all
__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

/// cp.async.cg of 16 bytes, or zeros in their place.
__device__ __forceinline__ void cp_async_16(u32 to, u64 from, bool zeros) {
  asm volatile(
      "{\n"
      ".reg .pred zeros;\n"
      "setp.ne.u32 zeros, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, zeros;\n"
      "}" ::"r"(to),
      "l"(from), "r"(u32(zeros))
      : "memory");
}

}  // namespace humming::sm90
