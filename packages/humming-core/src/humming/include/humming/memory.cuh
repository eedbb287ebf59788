// Loads, stores and barriers that every architecture has; one instruction each, named after it.
//
// They are volatile and clobber memory: neither compiler moves them over a barrier or one another.
#pragma once

#include <humming/std.cuh>

namespace humming {

/// cvta.to.shared: where in shared memory a pointer points to.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// Makes compilers keep a value in a register. Else they find it again for every stage, to have
/// registers that they don't need.
__device__ __forceinline__ void keep(u32& value) { asm volatile("" : "+r"(value)); }
__device__ __forceinline__ void keep(u8 const*& value) { asm volatile("" : "+l"(value)); }
__device__ __forceinline__ void keep(i64& value) { asm volatile("" : "+l"(value)); }

/// ld.global.v4.u32; the address is a multiple of 16.
__device__ __forceinline__ void load_128(u32* to, const void* from) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from)
               : "memory");
}

/// ld.global.L1::no_allocate.v4.u32: for what is read once.
__device__ __forceinline__ void load_128_once(u32* to, const void* from) {
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from)
               : "memory");
}

/// ld.global.u16
__device__ __forceinline__ u32 load_16(const void* from) {
  u16 value;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(from) : "memory");
  return value;
}

/// ld.global.u32; the address is a multiple of 4.
__device__ __forceinline__ u32 load_32(const void* from) {
  u32 value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// ld.global.v2.u32; the address is a multiple of 8.
__device__ __forceinline__ void load_64(u32* to, const void* from) {
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "l"(from)
               : "memory");
}

/// st.global.v4.u32
__device__ __forceinline__ void store_128(void* to, const u32* from) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}

/// ld.shared.v4.u32
__device__ __forceinline__ void load_shared_128(u32* to, u32 from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// st.shared.v4.u32
__device__ __forceinline__ void store_shared_128(u32 to, const u32* from) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]), "r"(from[1]),
               "r"(from[2]), "r"(from[3])
               : "memory");
}

/// ldmatrix.x4: lanes 8i to 8i + 7 give the rows, of 16 bytes, of matrix i.
__device__ __forceinline__ void ldmatrix_x4(u32* to, u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// ldmatrix.x2: lanes 0 to 15 give the rows.
__device__ __forceinline__ void ldmatrix_x2(u32* to, u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(from)
               : "memory");
}

/// bar.sync: `kThreads` threads of a CTA wait for one another at barrier `id`, 0 to 15.
template <int kThreads>
__device__ __forceinline__ void named_barrier(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace humming
