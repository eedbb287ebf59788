// sm_90a: C[M,N] = A[M,K] * B[N,K]^T by wgmma: TMA into a ring of STAGES tiles guarded by mbarriers, one
// producer warpgroup, two consumer warpgroups of 64 rows each, result through shared memory and TMA.
// Persistent: work items blockIdx / CLUSTER, + gridDim / CLUSTER, ...
//
// -DTYPE=F16 BF16 E4M3 S8; C is f32 (S8: s32), with -DHALF_RESULT f16.
// -DCLUSTER=2: two CTAs share the rows of A, each loads half of them and sends it to both.
// -DA_REGISTERS: A goes through ldmatrix into registers. -DTRANSPOSED_B (16-bit types): B is [K,N].

#include "device.cuh"

#define F16 0
#define BF16 1
#define E4M3 2
#define S8 3
#ifndef TYPE
#define TYPE F16
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#ifndef STAGES
#define STAGES 4
#endif
#define BM 128
#define BN 64                                 // fixed by the asm operands of `multiply`
#define ROW_BYTES 128                         // of K: one row of the 128-byte swizzle
#define BK (TYPE <= BF16 ? 64 : 128)
#define STEPS 4                               // instructions per tile: 32 bytes of K each
#define CONSUMERS 2
#define CONSUMER_WARPS (CONSUMERS * 4)
#define THREADS ((CONSUMERS + 1) * 128)
#define A_BYTES (BM * ROW_BYTES)
#define B_BYTES (BN * ROW_BYTES)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#define RESULT_BYTES (64 * 128)               // what one warpgroup stores at a time
#ifdef HALF_RESULT
#define RESULT_COLUMNS 64
#else
#define RESULT_COLUMNS 32
#endif

#if TYPE == S8
typedef int Result;
#define ACCUMULATOR "+r"
#else
typedef float Result;
#define ACCUMULATOR "+f"
#endif
#if TYPE == F16
#define SHAPE_AND_TYPES "m64n64k16.f32.f16.f16"
#elif TYPE == BF16
#define SHAPE_AND_TYPES "m64n64k16.f32.bf16.bf16"
#elif TYPE == E4M3
#define SHAPE_AND_TYPES "m64n64k32.f32.e4m3.e4m3"
#else
#define SHAPE_AND_TYPES "m64n64k32.s32.s8.s8"
#endif
#ifdef TRANSPOSED_B
#define B_TRANSPOSE "1"
#define B_STEP (16 * 128 / 16)                // sixteen rows of k, in units of 16 bytes
#else
#define B_TRANSPOSE "0"
#define B_STEP 2
#endif
// Immediates after scale-d: signs of A and B, and for 16-bit types whether each is transposed.
#if TYPE == S8
#define IMMEDIATES ""
#elif TYPE == E4M3
#define IMMEDIATES ", 1, 1"
#elif defined A_REGISTERS
#define IMMEDIATES ", 1, 1, " B_TRANSPOSE
#else
#define IMMEDIATES ", 1, 1, 0, " B_TRANSPOSE
#endif

// Matrix descriptor: 128-byte swizzle, groups of eight rows 1024 bytes apart.
DEVICE u64 describe(u32 address) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define D8(i) ACCUMULATOR(d[i]), ACCUMULATOR(d[i + 1]), ACCUMULATOR(d[i + 2]), ACCUMULATOR(d[i + 3]), \
    ACCUMULATOR(d[i + 4]), ACCUMULATOR(d[i + 5]), ACCUMULATOR(d[i + 6]), ACCUMULATOR(d[i + 7])
#define D_LIST "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31}"

#ifdef A_REGISTERS
DEVICE void multiply(Result (&d)[32], const u32 (&a)[4], u64 b, int accumulate) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " " D_LIST
                 ", {%32,%33,%34,%35}, %36, p" IMMEDIATES "; }"
                 : D8(0), D8(8), D8(16), D8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
#else
DEVICE void multiply(Result (&d)[32], u64 a, u64 b, int accumulate) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " " D_LIST
                 ", %32, %33, p" IMMEDIATES "; }"
                 : D8(0), D8(8), D8(16), D8(24) : "l"(a), "l"(b), "r"(accumulate));
}
#endif
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
// The compiler knows nothing of asynchronous writes: no read of `d` may move above a wait.
DEVICE void accumulators_fence(Result (&d)[32]) {
    asm volatile("" : D8(0), D8(8), D8(16), D8(24) :: "memory");
}

struct Barriers {
    u32 first;
    DEVICE u32 full(u32 stage) const { return first + stage * 8; }
    DEVICE u32 empty(u32 stage) const { return first + (STAGES + stage) * 8; }
};

// Work items: pairs of blocks side by side along N for a cluster of two.
struct Work {
    int m, n;
    DEVICE Work(int item, int N, u32 rank) {
        const int across = ceil_div(N, BN * CLUSTER);
        m = item / across * BM;
        n = (item % across * CLUSTER + rank) * BN;
    }
};
DEVICE int work_items(int M, int N) { return ceil_div(M, BM) * ceil_div(N, BN * CLUSTER); }

DEVICE void produce(const TensorMap* map_a, const TensorMap* map_b, u32 tiles, Barriers barriers, int M,
                    int N, int K, u32 rank) {
    Ring<STAGES> ring;
    for (int item = blockIdx.x / CLUSTER; item < work_items(M, N); item += gridDim.x / CLUSTER) {
        const Work work(item, N, rank);
        for (int k = 0; k < K; k += BK) {
            const u32 full = barriers.full(ring.stage), tile = tiles + ring.stage * STAGE_BYTES;
            barrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
            barrier_expect(full, STAGE_BYTES);
#if CLUSTER > 1
            const int half = rank * (BM / CLUSTER);
            tensor_load_multicast(tile + half * ROW_BYTES, map_a, k, work.m + half, full,
                                  (1 << CLUSTER) - 1);
#else
            tensor_load(tile, map_a, k, work.m, full);
#endif
#ifdef TRANSPOSED_B
            tensor_load(tile + A_BYTES, map_b, work.n, k, full);
#else
            tensor_load(tile + A_BYTES, map_b, k, work.n, full);
#endif
            ring.advance();
        }
    }
}

DEVICE void release(Barriers barriers, u32 stage) {
    __syncwarp();
#if CLUSTER > 1
    const u32 receivers = CLUSTER;
    if (lane_index() < receivers) barrier_arrive_remote(barriers.empty(stage), lane_index());
#else
    if (lane_index() == 0) barrier_arrive(barriers.empty(stage));
#endif
}

// The consumers' main loop for one work item.
DEVICE void accumulate(Result (&d)[32], u32 tiles, Barriers barriers, Ring<STAGES>& ring, int K, u32 group) {
    u32 previous = 0;
    for (int k = 0; k < K; k += BK) {
        const u32 tile = tiles + ring.stage * STAGE_BYTES;
        const u64 b = describe(tile + A_BYTES);
        barrier_wait(barriers.full(ring.stage), ring.parity);
#ifdef A_REGISTERS
        u32 a[STEPS][4];
        const u32 lane = lane_index(), row = group * 64 + warp_index() % 4 * 16 + lane % 16;
        #pragma unroll
        for (int step = 0; step < STEPS; step++)
            load_matrices(a[step], tile + row * ROW_BYTES + ((step * 2 + lane / 16) ^ (row & 7)) * 16);
        wgmma_fence();  // A and the sums are in their registers
        #pragma unroll
        for (int step = 0; step < STEPS; step++) multiply(d, a[step], b + step * B_STEP, (k | step) != 0);
        wgmma_commit();
        wgmma_wait<0>();  // the next tile's A takes the same registers
        release(barriers, ring.stage);
#else
        const u64 a = describe(tile + group * 64 * ROW_BYTES);
        wgmma_fence();  // the sums are in their registers
        #pragma unroll
        for (int step = 0; step < STEPS; step++)
            multiply(d, a + step * 2, b + step * B_STEP, (k | step) != 0);
        wgmma_commit();
        wgmma_wait<1>();  // the previous tile has been read
        if (k > 0) release(barriers, previous);
#endif
        previous = ring.stage;
        ring.advance();
    }
#ifndef A_REGISTERS
    wgmma_wait<0>();
    release(barriers, previous);
#endif
    accumulators_fence(d);
}

// Thread t of a warpgroup holds rows 16 (t / 32) + t % 32 / 4 (+ 8), columns 8 j + 2 (t % 4) (+ 1).
DEVICE void write_block(u32 result, const Result (&d)[32], int block) {
    const u32 lane = lane_index(), warp_row = warp_index() % 4 * 16;
#ifdef HALF_RESULT
    #pragma unroll
    for (int j = 0; j < 8; j += 2) {
        const u32 row = warp_row + lane % 16, slot = j + lane / 16;
        store_matrices(result + row * 128 + (slot ^ (row & 7)) * 16,
                       pack_halves(d[j * 4], d[j * 4 + 1]), pack_halves(d[j * 4 + 2], d[j * 4 + 3]),
                       pack_halves(d[j * 4 + 4], d[j * 4 + 5]), pack_halves(d[j * 4 + 6], d[j * 4 + 7]));
    }
#else
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 row = warp_row + half * 8 + lane / 4, slot = j * 2 + lane % 4 / 2;
            const Result* pair = d + (block * 4 + j) * 4 + half * 2;
            const u32 low = *(const u32*)&pair[0], high = *(const u32*)&pair[1];
            asm volatile("st.shared.v2.b32 [%0], {%1,%2};"
                         :: "r"(result + row * 128 + (slot ^ (row & 7)) * 16 + lane % 2 * 8), "r"(low),
                            "r"(high) : "memory");
        }
    }
#endif
}

DEVICE void store_result(const TensorMap* map_c, u32 result, const Result (&d)[32], int m, int n,
                         u32 group) {
    const bool storer = threadIdx.x % 128 == 0;
    #pragma unroll
    for (int block = 0; block < BN / RESULT_COLUMNS; block++) {
        if (storer) bulk_wait_read<0>();  // the block before has left
        named_barrier(1 + group, 128);  // the buffer is free
        write_block(result, d, block);
        async_proxy_fence();
        named_barrier(1 + group, 128);  // the buffer is written
        if (storer) {
            tensor_store(map_c, n + block * RESULT_COLUMNS, m, result);
            bulk_commit();
        }
    }
}

DEVICE void consume(const TensorMap* map_c, u32 tiles, Barriers barriers, int M, int N, int K, u32 rank) {
    const u32 group = threadIdx.x / 128 - 1;
    const u32 result = tiles + STAGES * STAGE_BYTES + group * RESULT_BYTES;
    Ring<STAGES> ring;
    for (int item = blockIdx.x / CLUSTER; item < work_items(M, N); item += gridDim.x / CLUSTER) {
        const Work work(item, N, rank);
        Result d[32];
        #pragma unroll
        for (int i = 0; i < 32; i++) d[i] = 0;
        accumulate(d, tiles, barriers, ring, K, group);
        store_result(map_c, result, d, work.m + group * 64, work.n, group);
    }
    if (threadIdx.x % 128 == 0) bulk_wait_read<0>();  // all blocks have left
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b,
     const __grid_constant__ TensorMap map_c, int M, int N, int K) {
    extern __shared__ __align__(1024) u8 dynamic_shared[];
    __shared__ __align__(8) u64 storage[2 * STAGES];
    const u32 tiles = shared_address(dynamic_shared);
    const Barriers barriers{shared_address(storage)};
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(barriers.full(stage), 1);
            barrier_init(barriers.empty(stage), CONSUMER_WARPS * CLUSTER);
        }
        barrier_init_fence();
        prefetch_map(&map_a);
    }
#if CLUSTER > 1
    cluster_barrier();  // barriers ready in both CTAs
#else
    __syncthreads();  // barriers ready
#endif
    if (threadIdx.x < 128) {
        registers_down<40>();
        if (warp_index() == 0 && elect_one()) produce(&map_a, &map_b, tiles, barriers, M, N, K, rank);
        __syncwarp();  // the producer's lanes meet
    } else {
        registers_up<232>();
        consume(&map_c, tiles, barriers, M, N, K, rank);
        __syncwarp();
    }
#if CLUSTER > 1
    cluster_barrier();  // the other CTA still writes and arrives here
#endif
}
