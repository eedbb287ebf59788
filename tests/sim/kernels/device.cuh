// What the test kernels share: short names for PTX instructions, one function each. No CUDA header.
// Shared-memory addresses are 32-bit offsets into the CTA's window (u32), as PTX takes them.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

struct alignas(64) TensorMap { u64 words[16]; };

#define DEVICE __device__ __forceinline__
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
DEVICE u32 lane_index() { return threadIdx.x & 31; }
DEVICE u32 warp_index() { return threadIdx.x >> 5; }
DEVICE int ceil_div(int a, int b) { return (a + b - 1) / b; }

// ---------------------------------------------------------------- warp matrices (sm_75 and later)

DEVICE void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

DEVICE void store_matrices(u32 address, u32 r0, u32 r1, u32 r2, u32 r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :: "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
}

DEVICE u32 pack_halves(float low, float high) {
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// ------------------------------------------------------------------------ cp.async (sm_80)

// Copies `valid` bytes and fills up to 16 with zeros.
DEVICE void copy_async_16(u32 shared, const void* global, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared), "l"(global), "r"(valid) : "memory");
}
DEVICE void copy_async_8(u32 shared, const void* global, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(shared), "l"(global), "r"(valid) : "memory");
}
DEVICE void copy_async_4(u32 shared, const void* global, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared), "l"(global), "r"(valid) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

// ------------------------------------------------------------------------ mbarriers (sm_90)

DEVICE void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
DEVICE void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// The address of `shared` in another CTA of the cluster.
DEVICE u32 address_in_cta(u32 shared, u32 rank) {
    u32 mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared), "r"(rank));
    return mapped;
}
DEVICE void barrier_arrive_remote(u32 barrier, u32 rank) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
                 :: "r"(address_in_cta(barrier, rank)) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
}

// Position in a ring of `STAGES` buffers; `parity` is that of the phase being filled or drained.
template <int STAGES> struct Ring {
    u32 stage = 0;
    u32 parity = 0;
    DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// ------------------------------------------------------------------------ TMA (sm_90)

DEVICE void tensor_load(u32 shared, const TensorMap* map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2,%3}], [%4];"
                 :: "r"(shared), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
DEVICE void tensor_load_multicast(u32 shared, const TensorMap* map, int x, int y, u32 barrier,
                                  u16 mask) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2,%3}], [%4], %5;"
                 :: "r"(shared), "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(mask) : "memory");
}
// For pairs of CTAs: the barrier may be the other CTA's.
DEVICE void tensor_load_pair(u32 shared, const TensorMap* map, int x, int y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile"
                 ".mbarrier::complete_tx::bytes [%0], [%1, {%2,%3}], [%4];"
                 :: "r"(shared), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
DEVICE void tensor_store(const TensorMap* map, int x, int y, u32 shared) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1,%2}], [%3];"
                 :: "l"(map), "r"(x), "r"(y), "r"(shared) : "memory");
}
DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1], %2, [%3];"
                 :: "r"(shared), "l"(global), "r"(bytes), "r"(barrier) : "memory");
}
DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(LEFT) : "memory");
}
DEVICE void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// ------------------------------------------------------------------------ warps, CTAs, clusters

DEVICE bool elect_one() {
    u32 chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }"
                 : "=r"(chosen));
    return chosen != 0;
}
DEVICE void named_barrier(u32 id, u32 threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
DEVICE u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
template <int COUNT> DEVICE void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> DEVICE void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
