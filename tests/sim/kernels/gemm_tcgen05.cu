// sm_100a, sm_103a: C[M,N] = A[M,K] * B[N,K]^T by tcgen05. Warps 0-3 store results, warp 4 loads tiles by
// TMA, warp 5 issues the products; two accumulators in tensor memory let them overlap. Persistent.
//
// -DKIND=F16 BF16 F8F6F4 I8 MXF8F6F4 MXF4 NVF4 -DA_FORMAT= -DB_FORMAT= (codes of the instruction
// descriptor); C is f32 (I8: s32). F8F6F4 and MXF8F6F4 take -DA_BITS=8 6 4 and the same for B; TMA
// spreads 4- and 6-bit elements over one byte each.
// -DPAIR: clusters of two CTAs work on 256 rows. -DA_TMEM (16-bit kinds): warps 6-9 carry A into tensor
// memory. -DTRANSPOSED_B (16-bit kinds): B is [K,N]. -DK96 (NVF4, sm_103a): 96 elements per instruction.
// Block scales: atoms of 128 rows x 4 scales, 512 bytes: [block of 128 rows][block of 4 scales][512].

#include "device.cuh"

#define F16 0
#define BF16 1
#define F8F6F4 2
#define I8 3
#define MXF8F6F4 4
#define MXF4 5
#define NVF4 6

#ifndef KIND
#define KIND F16
#endif
#ifndef A_BITS
#define A_BITS 8
#define B_BITS 8
#endif
#ifndef BN
#define BN 128
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifdef PAIR
#define CTAS 2
#define GROUP "cta_group::2"
#else
#define CTAS 1
#define GROUP "cta_group::1"
#endif
#include "tcgen05.cuh"

#if KIND <= BF16
#define KIND_TEXT "kind::f16"
#elif KIND == F8F6F4
#define KIND_TEXT "kind::f8f6f4"
#elif KIND == I8
#define KIND_TEXT "kind::i8"
#elif KIND == MXF8F6F4
#define KIND_TEXT "kind::mxf8f6f4.block_scale.block32"
#elif KIND == MXF4
#define KIND_TEXT "kind::mxf4.block_scale.block32"
#else
#define KIND_TEXT "kind::mxf4nvf4.block_scale.block16"
#endif

#define SCALED (KIND >= MXF8F6F4)
#define PACKED4 (KIND >= MXF4)
#define BITS_A (KIND <= BF16 ? 16 : PACKED4 ? 4 : KIND == I8 ? 8 : A_BITS)
#define BITS_B (KIND <= BF16 ? 16 : PACKED4 ? 4 : KIND == I8 ? 8 : B_BITS)
#ifdef K96
#define ROW_BYTES 192                             // of K per tile: twelve columns of 16 bytes
#define STEP_BYTES 48
#else
#define ROW_BYTES 128                             // one row of the 128-byte swizzle
#define STEP_BYTES 32
#endif
#define STEPS 4
#define BK (KIND <= BF16 ? ROW_BYTES / 2 : PACKED4 ? ROW_BYTES * 2 : ROW_BYTES)
#define BM 128                                    // rows of one CTA
#define ROWS_B (BN / CTAS)                        // of B that one CTA holds
#define A_BYTES (BM * ROW_BYTES)
#define B_BYTES (ROWS_B * ROW_BYTES)
#define SCALE_K (KIND == NVF4 ? 16 : 32)
#define STEP_SCALES (BK / STEPS / SCALE_K)
#define ATOMS (SCALED ? BK / (4 * SCALE_K) : 0)   // of scales per 128 rows in one tile
#define BLOCKS_N ((BN + 127) / 128)
#define SCALE_BYTES (ATOMS * 512 * (1 + BLOCKS_N))
#define STAGE_BYTES (A_BYTES + B_BYTES + (SCALE_BYTES + 1023) / 1024 * 1024)
// TMA counts what it reads, without the padding of 4- and 6-bit elements.
#define LOADED_BYTES (BM * BK * BITS_A / 8 + ROWS_B * BK * BITS_B / 8 + SCALE_BYTES)

// Tensor memory columns: accumulators, then scales or A.
#define ACCUMULATORS (BN > 128 ? 1 : 2)
#define COLUMN_SCALES_A (ACCUMULATORS * BN)
#define COLUMN_SCALES_B (COLUMN_SCALES_A + ATOMS * 4)
#define COLUMN_A COLUMN_SCALES_A
#ifdef A_TMEM
#define COLUMNS_USED (COLUMN_A + 32)
#else
#define COLUMNS_USED (COLUMN_SCALES_B + ATOMS * 4 * BLOCKS_N)
#endif
#define COLUMNS (COLUMNS_USED <= 128 ? 128 : COLUMNS_USED <= 256 ? 256 : 512)

#define LOADER 4
#define ISSUER 5
#ifdef A_TMEM
#define THREADS 320
#else
#define THREADS 192
#endif

// Instruction descriptor, without the scale ids.
#ifdef TRANSPOSED_B
#define MAJOR_B 1
#else
#define MAJOR_B 0
#endif
#ifdef K96
#define K_CODE 1u
#else
#define K_CODE 0u
#endif
#define INSTRUCTION_COMMON (A_FORMAT << 7 | B_FORMAT << 10 | MAJOR_B << 16 | (BN >> 3) << 17)
#if SCALED
#define INSTRUCTION \
    (INSTRUCTION_COMMON | (KIND == NVF4 ? 0 : 1) << 23 | (BM * CTAS >> 7) << 27 | K_CODE << 31)
#else
#define INSTRUCTION (INSTRUCTION_COMMON | (KIND == I8 ? 2 : 1) << 4 | (BM * CTAS >> 4) << 24)
#endif

struct Barriers {
    u32 first;
    DEVICE u32 full(u32 stage) const { return first + stage * 8; }
    DEVICE u32 empty(u32 stage) const { return first + (STAGES + stage) * 8; }
    DEVICE u32 result(u32 i) const { return first + (2 * STAGES + i) * 8; }
    DEVICE u32 result_free(u32 i) const { return first + (2 * STAGES + ACCUMULATORS + i) * 8; }
    DEVICE u32 a_ready() const { return first + (2 * STAGES + 2 * ACCUMULATORS) * 8; }
    DEVICE u32 a_free() const { return a_ready() + 8; }
};
#define BARRIERS (2 * STAGES + 2 * ACCUMULATORS + 2)

struct Work {
    int m, n;
    DEVICE Work(int item, int N, u32 rank) {
        const int across = ceil_div(N, BN);
        m = item / across * (BM * CTAS) + rank * BM;
        n = item % across * BN;
    }
};
DEVICE int work_items(int M, int N) { return ceil_div(M, BM * CTAS) * ceil_div(N, BN); }

// ---------------------------------------------------------------------------------------- descriptors

template <int ROWS> DEVICE u64 describe_operand(u32 tile) {
#ifdef K96
    return describe(tile, ROWS * 16, 128, 0);  // 16-byte columns, ROWS * 16 bytes apart
#else
    return describe(tile, 16, 1024, 2);        // groups of eight rows 1024 bytes apart
#endif
}
template <int ROWS> DEVICE u32 step_offset(int step) {  // in units of 16 bytes
#ifdef K96
    return step * 3 * ROWS;
#else
    return step * (STEP_BYTES / 16);
#endif
}
DEVICE u64 describe_b(u32 tile, int step) {
#ifdef TRANSPOSED_B
    // Blocks of 64 columns, each 64 rows of 128 bytes; eight rows of k are 1024 bytes.
    return describe(tile, 64 * 128, 1024, 2) + step * (16 * 128 / 16);
#else
    return describe_operand<ROWS_B>(tile) + step_offset<ROWS_B>(step);
#endif
}

// ---------------------------------------------------------------------------------------- loader warp

struct Maps {
    const TensorMap *a, *b;
#if SCALED && defined PAIR
    const TensorMap *scales_a, *scales_b;
#else
    const u8 *scales_a, *scales_b;
#endif
};

DEVICE void load(u32 shared, const TensorMap* map, int x, int y, u32 barrier) {
#ifdef PAIR
    tensor_load_pair(shared, map, x, y, barrier);
#else
    tensor_load(shared, map, x, y, barrier);
#endif
}
template <int ROWS> DEVICE void load_operand(u32 tile, const TensorMap* map, int k, int row, u32 barrier) {
#ifdef K96
    for (int column = 0; column < ROW_BYTES / 16; column++)
        load(tile + column * ROWS * 16, map, k + column * 32, row, barrier);
#else
    load(tile, map, k, row, barrier);
#endif
}
#if SCALED
// The atoms of one block of 128 rows for one tile.
template <class Source>
DEVICE void load_scales(u32 shared, const Source* source, int block, int k, int k_atoms, u32 barrier) {
    const int atom = block * k_atoms + k / (4 * SCALE_K);
#ifdef PAIR
    load(shared, source, 0, atom, barrier);
#else
    bulk_load(shared, source + (s64)atom * 512, ATOMS * 512, barrier);
#endif
}
#endif

DEVICE void load_tiles(Maps maps, u32 tiles, Barriers barriers, int M, int N, int K, u32 rank) {
    Ring<STAGES> ring;
    for (int item = blockIdx.x / CTAS; item < work_items(M, N); item += gridDim.x / CTAS) {
        const Work work(item, N, rank);
        for (int k = 0; k < K; k += BK) {
            const u32 tile = tiles + ring.stage * STAGE_BYTES;
            barrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
            if (rank == 0) barrier_expect(barriers.full(ring.stage), LOADED_BYTES * CTAS);
#ifdef PAIR
            const u32 full = address_in_cta(barriers.full(ring.stage), 0);
#else
            const u32 full = barriers.full(ring.stage);
#endif
            load_operand<BM>(tile, maps.a, k, work.m, full);
#ifdef TRANSPOSED_B
            for (int n = 0; n < ROWS_B; n += 64)
                load(tile + A_BYTES + n * 128, maps.b, work.n + rank * ROWS_B + n, k, full);
#else
            load_operand<ROWS_B>(tile + A_BYTES, maps.b, k, work.n + rank * ROWS_B, full);
#endif
#if SCALED
            const int k_atoms = ceil_div(K, BK) * ATOMS;
            const u32 scales = tile + A_BYTES + B_BYTES;
            load_scales(scales, maps.scales_a, work.m / 128, k, k_atoms, full);
            for (int block = 0; block < BLOCKS_N; block++)
                load_scales(scales + (1 + block) * ATOMS * 512, maps.scales_b, work.n / 128 + block, k,
                            k_atoms, full);
#endif
            ring.advance();
        }
    }
    for (int stage = 0; stage < STAGES; stage++) {  // no arrival may come after the CTA's end
        barrier_wait(barriers.empty(ring.stage), ring.parity ^ 1);
        ring.advance();
    }
}

// ---------------------------------------------------------------------------------------- issuing warp

DEVICE void multiply(u32 d, u64 a, u64 b, u32 instruction, u32 accumulate, u32 scale_a, u32 scale_b) {
#if SCALED
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma." GROUP "." KIND_TEXT " [%0], %1, %2, %3, [%5], [%6], p; }"
                 :: "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(accumulate), "r"(scale_a), "r"(scale_b)
                 : "memory");
#elif defined A_TMEM
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma." GROUP "." KIND_TEXT " [%0], [%1], %2, %3, p; }"
                 :: "r"(d), "r"((u32)a), "l"(b), "r"(instruction), "r"(accumulate) : "memory");
#else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma." GROUP "." KIND_TEXT " [%0], %1, %2, %3, p; }"
                 :: "r"(d), "l"(a), "l"(b), "r"(instruction), "r"(accumulate) : "memory");
#endif
}
DEVICE void commit_all(u32 barrier) {
#ifdef PAIR
    commit_pair(barrier, 3);
#else
    commit(barrier);
#endif
}

#if SCALED
DEVICE void copy_tile_scales(u32 tensor, u32 scales) {
    for (int atom = 0; atom < ATOMS; atom++) {
        copy_scales(tensor + COLUMN_SCALES_A + atom * 4, scales + atom * 512);
        for (int block = 0; block < BLOCKS_N; block++)
            copy_scales(tensor + COLUMN_SCALES_B + (atom * BLOCKS_N + block) * 4,
                        scales + ((1 + block) * ATOMS + atom) * 512);
    }
}
#endif

DEVICE void multiply_tile(u32 tensor, u32 d, u32 tile, bool first, int n) {
#if SCALED
    copy_tile_scales(tensor, tile + A_BYTES + B_BYTES);
#endif
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
#ifdef A_TMEM
        const u64 a = tensor + COLUMN_A + step * (STEP_BYTES / 4);
#else
        const u64 a = describe_operand<BM>(tile) + step_offset<BM>(step);
#endif
        const u64 b = describe_b(tile + A_BYTES, step);
        const u32 scale = step * STEP_SCALES, id = scale % 4, atom = scale / 4;
        const u32 instruction = INSTRUCTION | (SCALED ? id << 4 | id << 29 : 0);
        // Half an atom of B's rows belongs to a block of 64 columns.
        const u32 scale_b = tensor + COLUMN_SCALES_B + atom * BLOCKS_N * 4 + n % 128 / 32;
        multiply(d, a, b, instruction, !(first && step == 0), tensor + COLUMN_SCALES_A + atom * 4, scale_b);
    }
}

DEVICE void issue(u32 tensor, u32 tiles, Barriers barriers, int M, int N, int K) {
    Ring<STAGES> ring;
    Ring<ACCUMULATORS> results;
    Ring<1> a_buffer;
    for (int item = blockIdx.x / CTAS; item < work_items(M, N); item += gridDim.x / CTAS) {
        const Work work(item, N, 0);
        barrier_wait(barriers.result_free(results.stage), results.parity ^ 1);
        for (int k = 0; k < K; k += BK) {
            barrier_wait(barriers.full(ring.stage), ring.parity);
#ifdef A_TMEM
            barrier_wait(barriers.a_ready(), a_buffer.parity);
            a_buffer.advance();
#endif
            fence_after();
            multiply_tile(tensor, tensor + results.stage * BN, tiles + ring.stage * STAGE_BYTES, k == 0,
                          work.n);
            commit_all(barriers.empty(ring.stage));
#ifdef A_TMEM
            commit_all(barriers.a_free());
#endif
            ring.advance();
        }
        commit_all(barriers.result(results.stage));
        results.advance();
    }
}

// ---------------------------------------------------------------------------------------- other warps

#ifdef A_TMEM
DEVICE void carry_a(u32 tensor, u32 tiles, Barriers barriers, int M, int N, int K) {
    Ring<STAGES> ring;
    Ring<1> a_buffer;
    const u32 quarter = warp_index() % 4, row = quarter * 32 + lane_index();
    for (int item = blockIdx.x; item < work_items(M, N); item += gridDim.x) {
        for (int k = 0; k < K; k += BK) {
            barrier_wait(barriers.full(ring.stage), ring.parity);
            u32 r[32];
            #pragma unroll
            for (int slot = 0; slot < 8; slot++)
                asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                             : "=r"(r[slot * 4]), "=r"(r[slot * 4 + 1]), "=r"(r[slot * 4 + 2]),
                               "=r"(r[slot * 4 + 3])
                             : "r"(tiles + ring.stage * STAGE_BYTES + row * 128 + (slot ^ (row & 7)) * 16)
                             : "memory");
            barrier_wait(barriers.a_free(), a_buffer.parity ^ 1);  // products with A are done
            fence_after();
            tensor_store_columns(tensor + COLUMN_A + (quarter * 32 << 16), r);
            tensor_store_wait();
            fence_before();
            barrier_arrive(barriers.a_ready());
            ring.advance();
            a_buffer.advance();
        }
    }
    barrier_wait(barriers.a_free(), a_buffer.parity ^ 1);
}
#endif

DEVICE void store_results(u32 tensor, u32* C, int ldc, Barriers barriers, int M, int N, u32 rank) {
    Ring<ACCUMULATORS> results;
    const u32 lanes = warp_index() * 32;
    for (int item = blockIdx.x / CTAS; item < work_items(M, N); item += gridDim.x / CTAS) {
        const Work work(item, N, rank);
        const int m = work.m + lanes + lane_index();
        barrier_wait(barriers.result(results.stage), results.parity);
        fence_after();  // before loading sums
        for (int column = 0; column < BN; column += 32) {
            u32 r[32];
            tensor_load_columns(r, tensor + results.stage * BN + column + (lanes << 16));
            tensor_load_wait(r);
            if (m < M) {
                u32* to = C + (s64)m * ldc + work.n + column;
                #pragma unroll
                for (int i = 0; i < 32; i += 4) {
                    const int n = work.n + column + i;
                    if (n + 4 <= N) {
                        *(uint4*)(to + i) = make_uint4(r[i], r[i + 1], r[i + 2], r[i + 3]);
                    } else {
                        #pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (n + e < N) to[i + e] = r[i + e];
                    }
                }
            }
        }
        fence_before();
        __syncwarp();
        if (lane_index() == 0) {
#ifdef PAIR
            barrier_arrive_remote(barriers.result_free(results.stage), 0);
#else
            barrier_arrive(barriers.result_free(results.stage));
#endif
        }
        results.advance();
    }
}

DEVICE void everyone() {
#ifdef PAIR
    cluster_barrier();
#else
    __syncthreads();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, u32* __restrict__ C,
     int M, int N, int K, int ldc
#if SCALED && defined PAIR
     , const __grid_constant__ TensorMap scales_a, const __grid_constant__ TensorMap scales_b
#elif SCALED
     , const u8* __restrict__ scales_a, const u8* __restrict__ scales_b
#endif
) {
    extern __shared__ __align__(1024) u8 dynamic_shared[];
    __shared__ __align__(8) u64 storage[BARRIERS];
    __shared__ u32 allocated;
    const u32 tiles = shared_address(dynamic_shared);
    const Barriers barriers{shared_address(storage)};
    const u32 warp = warp_index();
    const u32 rank = CTAS > 1 ? cluster_rank() : 0;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(barriers.full(stage), 1);
            barrier_init(barriers.empty(stage), 1);
        }
        for (int i = 0; i < ACCUMULATORS; i++) {
            barrier_init(barriers.result(i), 1);
            barrier_init(barriers.result_free(i), 4 * CTAS);
        }
        barrier_init(barriers.a_ready(), 128);
        barrier_init(barriers.a_free(), 1);
        barrier_init_fence();
    }
#ifdef PAIR
    cluster_barrier();  // both CTAs run before either takes part in the pair's allocation
#endif
    if (warp == ISSUER) {
        tensor_allocate<COLUMNS>(shared_address(&allocated));
        tensor_relinquish();
    }
    fence_before();
    everyone();  // barriers and tensor memory ready
    fence_after();
    const u32 tensor = allocated;

    if (warp == LOADER) {
#if SCALED && defined PAIR
        const Maps maps{&map_a, &map_b, &scales_a, &scales_b};
#elif SCALED
        const Maps maps{&map_a, &map_b, scales_a, scales_b};
#else
        const Maps maps{&map_a, &map_b};
#endif
        if (elect_one()) load_tiles(maps, tiles, barriers, M, N, K, rank);
    } else if (warp == ISSUER) {
        if (rank == 0 && elect_one()) issue(tensor, tiles, barriers, M, N, K);
#ifdef A_TMEM
    } else if (warp > ISSUER) {
        carry_a(tensor, tiles, barriers, M, N, K);
#endif
    } else {
        store_results(tensor, C, ldc, barriers, M, N, rank);
    }
    __syncwarp();
    fence_before();
    everyone();  // results have been read
    fence_after();
    if (warp == ISSUER) tensor_free<COLUMNS>(tensor);
}
