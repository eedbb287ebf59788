// tcgen05 under short names (sm_100a and later of its family). GROUP names the CTA group.

// Shared-memory descriptor: bit 46 is constant; swizzle 0 is none, 2 is 128 bytes.
DEVICE u64 describe(u32 address, u32 leading_bytes, u32 stride_bytes, u32 swizzle) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading_bytes >> 4) << 16 |
           (u64)(stride_bytes >> 4) << 32 | (u64)1 << 46 | (u64)swizzle << 61;
}

DEVICE void fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
DEVICE void fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

template <int COLUMNS> DEVICE void tensor_allocate(u32 shared) {
    asm volatile("tcgen05.alloc." GROUP ".sync.aligned.shared::cta.b32 [%0], %1;"
                 :: "r"(shared), "n"(COLUMNS) : "memory");
}
DEVICE void tensor_relinquish() {
    asm volatile("tcgen05.relinquish_alloc_permit." GROUP ".sync.aligned;");
}
template <int COLUMNS> DEVICE void tensor_free(u32 tensor) {
    asm volatile("tcgen05.dealloc." GROUP ".sync.aligned.b32 %0, %1;" :: "r"(tensor), "n"(COLUMNS));
}

// One atom of scales (32 rows of 16 bytes) to four columns, in all four lane quarters.
DEVICE void copy_scales(u32 column, u32 shared) {
    asm volatile("tcgen05.cp." GROUP ".32x128b.warpx4 [%0], %1;"
                 :: "r"(column), "l"(describe(shared, 16, 128, 0)) : "memory");
}

// The barrier's phase ends when what this thread has issued so far is done.
DEVICE void commit(u32 barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];"
                 :: "r"(barrier) : "memory");
}
DEVICE void commit_pair(u32 barrier, u16 mask) {
    asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
                 " [%0], %1;" :: "r"(barrier), "h"(mask) : "memory");
}

#define EIGHT(c, i) c(r[i]), c(r[i + 1]), c(r[i + 2]), c(r[i + 3]), c(r[i + 4]), c(r[i + 5]), c(r[i + 6]), \
    c(r[i + 7])
#define R32(c) EIGHT(c, 0), EIGHT(c, 8), EIGHT(c, 16), EIGHT(c, 24)
#define R_LIST "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31}"

// 32 columns of the warp's 32 lanes; the registers may be read after tensor_load_wait.
DEVICE void tensor_load_columns(u32 (&r)[32], u32 tensor) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 " R_LIST ", [%32];"
                 : R32("=r") : "r"(tensor) : "memory");
}
DEVICE void tensor_load_wait(u32 (&r)[32]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" : R32("+r") :: "memory");
}
DEVICE void tensor_store_columns(u32 tensor, const u32 (&r)[32]) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], " R_LIST ";"
                 :: R32("r"), "r"(tensor) : "memory");
}
DEVICE void tensor_store_wait() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
