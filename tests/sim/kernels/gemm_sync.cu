// sm_75: C[M,N] = A[M,K] * B[N,K]^T with plain loads, two shared buffers and ldmatrix.
// f16 -> f32 by mma.m16n8k8, or with -DINT8 s8 -> s32 by mma.m8n8k16.
// Rows of A and B start `pitch` bytes apart (a multiple of 16), rows of C `ldc` elements (of 4).

#include "device.cuh"

#ifndef BM
#define BM 64
#define BN 64
#define WARPS_M 2
#define WARPS_N 2
#endif
#define THREADS (32 * WARPS_M * WARPS_N)
#define ROW_BYTES 64                    // of K in one tile
#define PITCH 80                        // of a tile's row: 64 and padding against bank conflicts
#define CHUNKS_A (BM * 4 / THREADS)     // 16-byte chunks that one thread moves per tile
#define CHUNKS_B (BN * 4 / THREADS)
#define WARP_M (BM / WARPS_M)
#define WARP_N (BN / WARPS_N)
#define TILES_M (WARP_M / 16)
#define TILES_N (WARP_N / 8)
#define EXCHANGE_PITCH 36               // floats: 32 columns and padding

#ifdef INT8
typedef int Result;
typedef u8 Element;
#else
typedef float Result;
typedef u16 Element;
#endif
typedef Result Accumulators[TILES_M][TILES_N][4];

// 16 bytes of one row, with zeros beyond the matrix.
DEVICE uint4 fetch(const u8* matrix, int pitch, int row, int rows, int offset, int row_bytes) {
    u32 words[4] = {0, 0, 0, 0};
    const int left = row_bytes - offset;
    if (row < rows && left > 0) {
        const u8* source = matrix + (s64)row * pitch + offset;
        if (left >= 16) return *(const uint4*)source;
        constexpr int PER_WORD = 4 / sizeof(Element);
        #pragma unroll
        for (int i = 0; i < 4 * PER_WORD; i++) {
            if (i * (int)sizeof(Element) < left) {
                const u32 element = ((const Element*)source)[i];
                words[i / PER_WORD] |= element << (i % PER_WORD * 8 * sizeof(Element));
            }
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <int COUNT>
DEVICE void fetch_tile(uint4 (&chunks)[COUNT], const u8* matrix, int pitch, int first, int rows,
                       int offset, int row_bytes) {
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int index = threadIdx.x + i * THREADS;
        chunks[i] = fetch(matrix, pitch, first + index / 4, rows, offset + index % 4 * 16, row_bytes);
    }
}

template <int COUNT> DEVICE void store_tile(u8* tile, const uint4 (&chunks)[COUNT]) {
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const int index = threadIdx.x + i * THREADS;
        *(uint4*)(tile + index / 4 * PITCH + index % 4 * 16) = chunks[i];
    }
}

// One 16-byte step along K for a 16 x 8 block of C.
DEVICE void multiply(Result (&c)[4], u32 a_low, u32 a_high, u32 b) {
#ifdef INT8
    asm volatile("mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(c[0]), "+r"(c[1]) : "r"(a_low), "r"(b));
    asm volatile("mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+r"(c[2]), "+r"(c[3]) : "r"(a_high), "r"(b));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
                 " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a_low), "r"(a_high), "r"(b));
#endif
}

DEVICE void multiply_tile(Accumulators& c, u32 tile_a, u32 tile_b) {
    const u32 lane = lane_index();
    #pragma unroll
    for (int step = 0; step < ROW_BYTES / 16; step++) {
        u32 a[TILES_M / 2][4], b[TILES_N / 4][4];
        #pragma unroll
        for (int i = 0; i < TILES_M / 2; i++)
            load_matrices(a[i], tile_a + (i * 32 + lane) * PITCH + step * 16);
        #pragma unroll
        for (int j = 0; j < TILES_N / 4; j++)
            load_matrices(b[j], tile_b + (j * 32 + lane) * PITCH + step * 16);
        #pragma unroll
        for (int i = 0; i < TILES_M; i++)
            #pragma unroll
            for (int j = 0; j < TILES_N; j++)
                multiply(c[i][j], a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1], b[j / 4][j % 4]);
    }
}

// Each warp turns 16 x 32 blocks from fragments to rows in its own piece of shared memory.
DEVICE void store_result(const Accumulators& c, Result* exchange, Result* C, int ldc, int m0, int n0,
                         int M, int N) {
    const u32 lane = lane_index();
    #pragma unroll
    for (int i = 0; i < TILES_M; i++) {
        #pragma unroll
        for (int block = 0; block < WARP_N / 32; block++) {
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                Result* to = exchange + lane / 4 * EXCHANGE_PITCH + j * 8 + lane % 4 * 2;
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    to[half * 8 * EXCHANGE_PITCH] = c[i][block * 4 + j][half * 2];
                    to[half * 8 * EXCHANGE_PITCH + 1] = c[i][block * 4 + j][half * 2 + 1];
                }
            }
            __syncwarp();  // written before read
            #pragma unroll
            for (int r = 0; r < 4; r++) {
                const int row = lane / 8 + r * 4, column = lane % 8 * 4;
                const Result* from = exchange + row * EXCHANGE_PITCH + column;
                const int m = m0 + i * 16 + row, n = n0 + block * 32 + column;
                if (m >= M) continue;
                Result* to = C + (s64)m * ldc + n;
                if (n + 4 <= N) {
                    *(int4*)to = *(const int4*)from;
                } else {
                    for (int e = 0; e < 4; e++)
                        if (n + e < N) to[e] = from[e];
                }
            }
            __syncwarp();  // read before written again
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const u8* __restrict__ A, const u8* __restrict__ B, Result* __restrict__ C, int M, int N, int K,
     int pitch_a, int pitch_b, int ldc) {
    __shared__ __align__(16) u8 tiles[2][(BM + BN) * PITCH];
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int warp_m = warp_index() / WARPS_N * WARP_M, warp_n = warp_index() % WARPS_N * WARP_N;
    const int row_bytes = K * sizeof(Element);
    const int k_tiles = ceil_div(row_bytes, ROW_BYTES);

    Accumulators c;
    #pragma unroll
    for (int i = 0; i < TILES_M; i++)
        #pragma unroll
        for (int j = 0; j < TILES_N; j++)
            #pragma unroll
            for (int e = 0; e < 4; e++) c[i][j][e] = 0;

    uint4 a[CHUNKS_A], b[CHUNKS_B];
    fetch_tile(a, A, pitch_a, m0, M, 0, row_bytes);
    fetch_tile(b, B, pitch_b, n0, N, 0, row_bytes);
    store_tile(tiles[0], a);
    store_tile(tiles[0] + BM * PITCH, b);
    __syncthreads();  // first tile ready
    for (int k = 0; k < k_tiles; k++) {
        const bool more = k + 1 < k_tiles;
        if (more) {
            fetch_tile(a, A, pitch_a, m0, M, (k + 1) * ROW_BYTES, row_bytes);
            fetch_tile(b, B, pitch_b, n0, N, (k + 1) * ROW_BYTES, row_bytes);
        }
        const u32 tile = shared_address(tiles[k & 1]);
        multiply_tile(c, tile + warp_m * PITCH, tile + (BM + warp_n) * PITCH);
        if (more) {
            store_tile(tiles[~k & 1], a);
            store_tile(tiles[~k & 1] + BM * PITCH, b);
        }
        __syncthreads();  // next tile ready, this one free
    }
    Result* exchange = (Result*)tiles + warp_index() * 16 * EXCHANGE_PITCH;
    store_result(c, exchange, C, ldc, m0 + warp_m, n0 + warp_n, M, N);
}
