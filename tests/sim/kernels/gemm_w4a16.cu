// sm_80: C[M,N] f32 = A[M,K] f16 * W[N,K]^T, W in 4 bits with an f16 scale per row and GROUP elements
// of K, unpacked in registers. With -DSPLIT_K, gridDim.z CTAs share K and add in a fixed order: each
// waits for its turn at a semaphore in global memory and hands its sum on through `partials`.
//
// W: packed[block of 32 k][block of 8 n][lane]: one word per lane, the fragments of two mma steps.
// Nibble p and p + 4 of a word are a pair of neighbours along K: pair 0 and 1 are the two registers of
// the first step, 2 and 3 those of the second. A weight is worth (nibble - 8) * scale.
// scales[K / GROUP][N].

#include "device.cuh"

#define BM 32
#define BN 64
#define BK 64
#ifndef STAGES
#define STAGES 3
#endif
#ifndef GROUP
#define GROUP 64
#endif
#define THREADS 128                     // four warps side by side along N
#define WARP_N (BN / 4)
#define TILES_M (BM / 16)
#define TILES_N (WARP_N / 8)
#define A_BYTES (BM * BK * 2)
#define W_BYTES (BN * BK / 2)
#define STAGE_BYTES (A_BYTES + W_BYTES)
#define BLOCK_BYTES 128                 // of 32 k x 8 n weights

typedef float Accumulators[TILES_M][TILES_N][4];

DEVICE u32 slot_offset(u32 row, u32 slot) { return row * (BK * 2) + (slot ^ (row & 7)) * 16; }

DEVICE void copy_stage(u32 stage, const u16* A, const u32* W, int m0, int n0, int k0, int M, int N, int K,
                       int lda) {
    #pragma unroll
    for (int i = 0; i < BM * 8 / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS, row = index / 8, slot = index % 8;
        const int k = k0 + slot * 8;
        const bool inside = m0 + row < M && k < K;
        const u16* source = inside ? A + (s64)(m0 + row) * lda + k : A;
        copy_async_16(stage + slot_offset(row, slot), source, inside ? min(K - k, 8) * 2 : 0);
    }
    const int n_blocks = ceil_div(N, 8), k_blocks = ceil_div(K, 32);
    #pragma unroll
    for (int i = 0; i < W_BYTES / 16 / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS, block = index / 8, slot = index % 8;
        const int nb = n0 / 8 + block % (BN / 8), kb = k0 / 32 + block / (BN / 8);
        const bool inside = nb < n_blocks && kb < k_blocks;
        const u32* source = inside ? W + ((s64)kb * n_blocks + nb) * (BLOCK_BYTES / 4) + slot * 4 : W;
        copy_async_16(stage + A_BYTES + block * BLOCK_BYTES + slot * 16, source, inside ? 16 : 0);
    }
}

// Nibbles 0, 4 (shift 0) and 1, 5 (shift 1) of a word as two halves: 1024 + q and 1024 + 16 q by their
// bits, then the integer q - 8 by one operation each.
template <int SHIFT> DEVICE u32 unpack_pair(u32 word) {
    u32 bits, pair;
    if constexpr (SHIFT == 0) {
        asm("lop3.b32 %0, %1, 0x000f000f, 0x64006400, 0xea;" : "=r"(bits) : "r"(word));
        asm("sub.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(bits), "r"(0x64086408));
    } else {
        asm("lop3.b32 %0, %1, 0x00f000f0, 0x64006400, 0xea;" : "=r"(bits) : "r"(word));
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(bits), "r"(0x2c002c00), "r"(0xd480d480));
    }
    return pair;
}

DEVICE u32 scaled(u32 pair, u32 scale) {
    u32 product;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(scale));
    return product;
}

DEVICE u32 both_halves(u16 half) { return __byte_perm(half, 0, 0x1010); }

DEVICE void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
                 " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void multiply_stage(Accumulators& c, const u8* stage, const u16* scales, int n0, int k0, int N,
                           int K) {
    const u32 lane = lane_index(), tile_a = shared_address(stage);
    #pragma unroll
    for (int half = 0; half < BK / 32; half++) {
        if (k0 + half * 32 >= K) break;
        u32 a[2][TILES_M][4];
        #pragma unroll
        for (int step = 0; step < 2; step++)
            #pragma unroll
            for (int i = 0; i < TILES_M; i++)
                load_matrices(a[step][i], tile_a + slot_offset(i * 16 + lane % 16,
                                                               half * 4 + step * 2 + lane / 16));
        #pragma unroll
        for (int j = 0; j < TILES_N; j++) {
            const u32 block = half * (BN / 8) + warp_index() * TILES_N + j;
            const u32 word = ((const u32*)(stage + A_BYTES))[block * 32 + lane];
            const int n = n0 + warp_index() * WARP_N + j * 8 + lane / 4;
            const u32 scale = both_halves(n < N ? scales[(s64)((k0 + half * 32) / GROUP) * N + n] : 0);
            const u32 b0 = scaled(unpack_pair<0>(word), scale);
            const u32 b1 = scaled(unpack_pair<1>(word), scale);
            const u32 b2 = scaled(unpack_pair<0>(word >> 8), scale);
            const u32 b3 = scaled(unpack_pair<1>(word >> 8), scale);
            #pragma unroll
            for (int i = 0; i < TILES_M; i++) {
                multiply(c[i][j], a[0][i], b0, b1);
                multiply(c[i][j], a[1][i], b2, b3);
            }
        }
    }
}

#ifdef SPLIT_K
DEVICE u32 load_acquire(const u32* address) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}
DEVICE void store_release(u32* address, u32 value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(address), "r"(value) : "memory");
}

// Adds the sums of the CTAs before this one; true in the last CTA, whose sum is the result.
DEVICE bool add_in_turn(Accumulators& c, float* partials, u32* semaphores) {
    const u32 tile = blockIdx.y * gridDim.x + blockIdx.x;
    u32* semaphore = semaphores + tile;
    float* partial = partials + (s64)tile * (BM * BN) + threadIdx.x;
    const bool last = blockIdx.z == gridDim.z - 1;
    if (threadIdx.x == 0) {
        while (load_acquire(semaphore) != blockIdx.z) __nanosleep(20);
    }
    __syncthreads();  // our turn
    #pragma unroll
    for (int i = 0; i < TILES_M; i++)
        #pragma unroll
        for (int j = 0; j < TILES_N; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                float* at = partial + ((i * TILES_N + j) * 4 + e) * THREADS;
                if (blockIdx.z > 0) c[i][j][e] = *at + c[i][j][e];
                if (!last) *at = c[i][j][e];
            }
    __threadfence();
    __syncthreads();  // every thread's partials are written
    if (threadIdx.x == 0) store_release(semaphore, last ? 0 : blockIdx.z + 1);
    return last;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const u16* __restrict__ A, const u32* __restrict__ W, const u16* __restrict__ scales,
     float* __restrict__ C, int M, int N, int K, int lda, int ldc
#ifdef SPLIT_K
     , float* partials, u32* semaphores
#endif
) {
    extern __shared__ __align__(128) u8 stages[];
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int k_tiles = ceil_div(K, BK);
    const int first = k_tiles * (int)blockIdx.z / (int)gridDim.z;
    const int end = k_tiles * ((int)blockIdx.z + 1) / (int)gridDim.z;

    Accumulators c;
    #pragma unroll
    for (int i = 0; i < TILES_M; i++)
        #pragma unroll
        for (int j = 0; j < TILES_N; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) c[i][j][e] = 0;

    auto copy = [&](int k) {
        if (k < end)
            copy_stage(shared_address(stages) + k % STAGES * STAGE_BYTES, A, W, m0, n0, k * BK, M, N, K, lda);
        copy_async_commit();
    };
    for (int k = first; k < first + STAGES - 1; k++) copy(k);
    for (int k = first; k < end; k++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // tile k is there; everyone is done with tile k - 1
        copy(k + STAGES - 1);
        multiply_stage(c, stages + k % STAGES * STAGE_BYTES, scales, n0, k * BK, N, K);
    }
#ifdef SPLIT_K
    if (!add_in_turn(c, partials, semaphores)) return;
#endif

    const u32 lane = lane_index();
    #pragma unroll
    for (int i = 0; i < TILES_M; i++)
        #pragma unroll
        for (int j = 0; j < TILES_N; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const int m = m0 + i * 16 + e / 2 * 8 + lane / 4;
                const int n = n0 + warp_index() * WARP_N + j * 8 + lane % 4 * 2 + e % 2;
                if (m < M && n < N) C[(s64)m * ldc + n] = c[i][j][e];
            }
}
