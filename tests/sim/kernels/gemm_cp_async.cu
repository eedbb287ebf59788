// sm_80 and later, sm_120a: C[M,N] = A[M,K] * B[N,K]^T, tiles by cp.async in STAGES buffers, ldmatrix,
// mma.sync. Everything is counted in bytes, so that one kernel serves every element type.
//
// -DKIND=F16 BF16 S8 (sm_80), FP8 (sm_89), F8F6F4 MXF8F6F4 MXF4 NVF4 (sm_120a).
// -DA_TYPE=e4m3 -DA_BITS=8 and the same for B name the elements of FP8, F8F6F4 and MXF8F6F4.
// Block scales: one byte per SCALE_K elements of K, rows `pitch_sa`, `pitch_sb` bytes apart.
// -DINDEXED: rows[] names the row of A (id / TOP_K) and of C (id) for each row of the problem, -1 for
// none; experts[] names the matrix of B for each block of BM rows, -1 for none.

#include "device.cuh"

#define F16 0
#define BF16 1
#define S8 2
#define FP8 3
#define F8F6F4 4
#define MXF8F6F4 5
#define MXF4 6
#define NVF4 7

#ifndef KIND
#define KIND F16
#endif
#ifndef A_TYPE
#define A_TYPE e4m3
#define A_BITS 8
#define B_TYPE e4m3
#define B_BITS 8
#endif
#ifndef BM
#define BM 64
#define BN 64
#define WARPS_M 2
#define WARPS_N 2
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef TOP_K
#define TOP_K 1
#endif

#define SCALED (KIND >= MXF8F6F4)
#define PADDED (KIND == F8F6F4 || KIND == MXF8F6F4)  // 4- and 6-bit elements in 16-byte slots of 16
#if KIND == F16 || KIND == BF16
#define SLOT_ELEMENTS 8
#elif KIND == MXF4 || KIND == NVF4
#define SLOT_ELEMENTS 32
#else
#define SLOT_ELEMENTS 16
#endif
#if PADDED
#define BITS_A A_BITS
#define BITS_B B_BITS
#else
#define BITS_A (128 / SLOT_ELEMENTS)
#define BITS_B BITS_A
#endif
#define THREADS (32 * WARPS_M * WARPS_N)
#define SLOTS 4                                  // of 16 bytes in a tile's row
#define BK (SLOTS * SLOT_ELEMENTS)
#define STEPS 2                                  // mma instructions along K in a tile: 32 bytes each
#define SCALE_K (KIND == NVF4 ? 16 : 32)
#define STEP_SCALES (BK / STEPS / SCALE_K)       // scales per row that one mma takes: 1, 2 or 4
#define SCALE_ONE (KIND == NVF4 ? 0x38 : 127)
#define WARP_M (BM / WARPS_M)
#define WARP_N (BN / WARPS_N)
#define TILES_M (WARP_M / 16)
#define TILES_N (WARP_N / 8)
#define STAGE_BYTES ((BM + BN) * SLOTS * 16)

#if KIND == S8
typedef int Result;
#else
typedef float Result;
#endif
typedef Result Accumulators[TILES_M][TILES_N][4];

// Four neighbouring slots lie in different banks for any eight consecutive rows.
DEVICE u32 slot_offset(u32 row, u32 slot) { return row * (SLOTS * 16) + (slot ^ (row >> 1 & 3)) * 16; }

template <int BITS> DEVICE void copy_slot(u32 shared, const u8* source, int elements) {
    const int copied = min(max(elements, 0), SLOT_ELEMENTS);
    const int valid = copied * BITS / 8;
    if constexpr (BITS * SLOT_ELEMENTS == 128) {
        copy_async_16(shared, source, valid);
    } else if constexpr (BITS * SLOT_ELEMENTS == 64) {
        copy_async_8(shared, source, valid);
    } else {  // 12 bytes
        #pragma unroll
        for (int i = 0; i < 12; i += 4)
            copy_async_4(shared + i, source + i, min(max(valid - i, 0), 4));
    }
}

// One operand's part of a stage. `row_of(r)` is the row of the matrix, negative for none.
template <int BITS, int ROWS, class RowOf>
DEVICE void copy_tile(u32 tile, const u8* matrix, int pitch, int k0, int K, RowOf row_of) {
    #pragma unroll
    for (int i = 0; i < ROWS * SLOTS / THREADS; i++) {
        const int index = threadIdx.x + i * THREADS;
        const int row = row_of(index / SLOTS), slot = index % SLOTS;
        const int k = k0 + slot * SLOT_ELEMENTS;
        const bool inside = row >= 0 && k < K;
        const u8* source = inside ? matrix + (s64)row * pitch + k * BITS / 8 : matrix;
        copy_slot<BITS>(tile + slot_offset(index / SLOTS, slot), source, inside ? K - k : 0);
    }
}

template <int BITS> DEVICE void load_fragments(u32 (&r)[4], u32 address) {
#if PADDED
    if constexpr (BITS == 4) {
        asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
        #pragma unroll
        for (int i = 0; i < 4; i++) r[i] <<= 2;  // mma wants four bits in the middle of the byte
        return;
    }
    if constexpr (BITS == 6) {
        asm volatile("ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b6x16_p32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
        return;
    }
#endif
    load_matrices(r, address);
}

#if KIND == F16
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#elif KIND == BF16
#define INSTRUCTION "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#elif KIND == S8
#define INSTRUCTION "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"
#elif KIND == FP8
#define INSTRUCTION "mma.sync.aligned.m16n8k32.row.col.f32." TEXT(A_TYPE) "." TEXT(B_TYPE) ".f32"
#elif KIND == F8F6F4
#define INSTRUCTION \
    "mma.sync.aligned.kind::f8f6f4.m16n8k32.row.col.f32." TEXT(A_TYPE) "." TEXT(B_TYPE) ".f32"
#elif KIND == MXF8F6F4
#define INSTRUCTION "mma.sync.aligned.kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32." \
    TEXT(A_TYPE) "." TEXT(B_TYPE) ".f32.ue8m0"
#elif KIND == MXF4
#define INSTRUCTION "mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col" \
    ".f32.e2m1.e2m1.f32.ue8m0"
#else
#define INSTRUCTION "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col" \
    ".f32.e2m1.e2m1.f32.ue4m3"
#endif

// Which byte of the scale registers and which threads of each four supply the scales of `step`.
#define SCALE_BYTE(step) (KIND == NVF4 ? 0 : (step) * STEP_SCALES)
#define SCALE_THREAD_A(step) (KIND == NVF4 ? (step) : 0)
#define SCALE_THREAD_B(step) (KIND == NVF4 ? (step) + 1 : 3)

DEVICE void multiply(Result (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, u32 scale_a, u32 scale_b,
                     int step) {
#if KIND == S8
    asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif SCALED
    asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3},"
                 " {%10}, {%12,%13}, {%11}, {%14,%15};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1),
                   "r"(scale_a), "r"(scale_b), "h"((u16)SCALE_BYTE(step)),
                   "h"((u16)SCALE_THREAD_A(step)), "h"((u16)SCALE_BYTE(step)),
                   "h"((u16)SCALE_THREAD_B(step)));
#else
    asm volatile(INSTRUCTION " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

#if SCALED
// The scale register of one row for tile `k_tile`. NVF4 takes four scales per step: the threads of a
// step hold that step's word. The others take one word per tile: STEP_SCALES bytes for each step.
DEVICE u32 scale_word(const u8* scales, int pitch, int row, int rows, int k_tile, int step, int K) {
    constexpr int COUNT = KIND == NVF4 ? 4 : STEP_SCALES * STEPS;
    const int first = k_tile * (BK / SCALE_K) + (KIND == NVF4 ? step * 4 : 0);
    const int columns = ceil_div(K, SCALE_K);
    u32 word = 0;
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const bool inside = row >= 0 && row < rows && first + i < columns;
        const u32 scale = inside ? scales[(s64)row * pitch + first + i] : SCALE_ONE;
        word |= scale << (8 * i);
    }
    return word;
}
#endif

struct Scales { u32 a[TILES_M], b[TILES_N]; };

DEVICE void multiply_tile(Accumulators& c, u32 tile, u32 warp_m, u32 warp_n, const Scales& scales) {
    const u32 lane = lane_index();
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        u32 a[TILES_M][4], b[TILES_N / 2][4];
        #pragma unroll
        for (int i = 0; i < TILES_M; i++) {
            const u32 row = warp_m + i * 16 + lane % 16;
            load_fragments<BITS_A>(a[i], tile + slot_offset(row, step * 2 + lane / 16));
        }
        #pragma unroll
        for (int j = 0; j < TILES_N / 2; j++) {
            const u32 row = warp_n + j * 16 + lane / 16 * 8 + lane % 8;
            load_fragments<BITS_B>(b[j], tile + BM * SLOTS * 16 + slot_offset(row, step * 2 + lane / 8 % 2));
        }
        #pragma unroll
        for (int i = 0; i < TILES_M; i++)
            #pragma unroll
            for (int j = 0; j < TILES_N; j++)
                multiply(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], scales.a[i],
                         scales.b[j], step);
    }
}

DEVICE void store_pair(Result* to, Result first, Result second, int n, int N) {
    if (n + 1 < N) {
        *(int2*)to = make_int2(*(int*)&first, *(int*)&second);
    } else if (n < N) {
        *to = first;
    }
}

template <class RowOf>
DEVICE void store_result(const Accumulators& c, Result* C, int ldc, int m0, int n0, int N, RowOf row_of) {
    const u32 lane = lane_index();
    #pragma unroll
    for (int i = 0; i < TILES_M; i++) {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row_of(m0 + i * 16 + half * 8 + lane / 4);
            if (row < 0) continue;
            #pragma unroll
            for (int j = 0; j < TILES_N; j++) {
                const int n = n0 + j * 8 + lane % 4 * 2;
                store_pair(C + (s64)row * ldc + n, c[i][j][half * 2], c[i][j][half * 2 + 1], n, N);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const u8* __restrict__ A, const u8* __restrict__ B, Result* __restrict__ C, int M, int N, int K,
     int pitch_a, int pitch_b, int ldc
#if SCALED
     , const u8* __restrict__ SA, const u8* __restrict__ SB, int pitch_sa, int pitch_sb
#endif
#ifdef INDEXED
     , const int* __restrict__ rows, const int* __restrict__ experts
#endif
) {
    extern __shared__ __align__(128) u8 dynamic_shared[];
    const u32 tiles = shared_address(dynamic_shared);
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const u32 warp_m = warp_index() / WARPS_N * WARP_M, warp_n = warp_index() % WARPS_N * WARP_N;
    const int k_tiles = ceil_div(K, BK);

#ifdef INDEXED
    __shared__ int ids[BM];
    if (experts[blockIdx.y] < 0) return;
    B += (s64)experts[blockIdx.y] * N * pitch_b;
    for (int i = threadIdx.x; i < BM; i += THREADS) ids[i] = m0 + i < M ? rows[m0 + i] : -1;
    __syncthreads();  // ids ready
    auto row_of_a = [&](int r) { return ids[r] < 0 ? -1 : ids[r] / TOP_K; };
    auto row_of_c = [&](int r) { return ids[r]; };
#else
    auto row_of_a = [&](int r) { return m0 + r < M ? m0 + r : -1; };
    auto row_of_c = [&](int r) { return m0 + r < M ? m0 + r : -1; };
#endif
    auto row_of_b = [&](int r) { return n0 + r < N ? n0 + r : -1; };
    auto copy_stage = [&](int k_tile) {
        const u32 tile = tiles + k_tile % STAGES * STAGE_BYTES;
        copy_tile<BITS_A, BM>(tile, A, pitch_a, k_tile * BK, K, row_of_a);
        copy_tile<BITS_B, BN>(tile + BM * SLOTS * 16, B, pitch_b, k_tile * BK, K, row_of_b);
    };

    Accumulators c;
    #pragma unroll
    for (int i = 0; i < TILES_M; i++)
        #pragma unroll
        for (int j = 0; j < TILES_N; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) c[i][j][e] = 0;

    for (int k = 0; k < STAGES - 1; k++) {
        if (k < k_tiles) copy_stage(k);
        copy_async_commit();
    }
    for (int k = 0; k < k_tiles; k++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();  // tile k is there for all, who are done with tile k - 1
        if (k + STAGES - 1 < k_tiles) copy_stage(k + STAGES - 1);
        copy_async_commit();
        Scales scales = {};
#if SCALED
        const u32 lane = lane_index();
        #pragma unroll
        for (int i = 0; i < TILES_M; i++)
            scales.a[i] = scale_word(SA, pitch_sa, m0 + warp_m + i * 16 + lane % 2 * 8 + lane / 4, M, k,
                                     lane % 4 / 2, K);
        #pragma unroll
        for (int j = 0; j < TILES_N; j++)
            scales.b[j] = scale_word(SB, pitch_sb, n0 + warp_n + j * 8 + lane / 4, N, k,
                                     (lane + 3) % 4 % 2, K);
#endif
        const u32 tile = tiles + k % STAGES * STAGE_BYTES;
        multiply_tile(c, tile, warp_m, warp_n, scales);
    }
    store_result(c, C, ldc, warp_m, n0 + warp_n, N, row_of_c);
}
