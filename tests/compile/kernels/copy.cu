// What copy.cuh, and memory.cuh below it, move where a test can see it.
#include <humming_sm75_sm89/copy.cuh>

using namespace humming;
using namespace humming::sm75_sm89;

// Thread t brings bytes 16t and on if they are among the first `bytes`, else zeros, and writes what
// a thread of the other warp has brought.
template <int kSm>
__device__ void exchange(u8 const* from, u32* to, int bytes) {
  __shared__ alignas(16) u32 words[64 * 4];
  int const thread = int(threadIdx.x), other = thread ^ 32;
  int const there = 16 * thread < bytes ? 16 : 0;
  u32 const mine = shared_address(words + 4 * thread);
  if constexpr (Copy<kSm>::kAsync) {
    Copy<kSm>::copy16(mine, from + 16 * thread, there);
    Copy<kSm>::commit();
    Copy<kSm>::template wait<0>();
  } else {
    Copy<kSm> copy;
    copy.fetch(from + 16 * thread, there);
    store_shared_128(mine, copy.r);
  }
  named_barrier<64>(1);
  u32 r[4];
  load_shared_128(r, shared_address(words + 4 * other));
  for (int i = 0; i < 4; ++i) to[4 * other + i] = r[i];
}

extern "C" __global__ void exchange_75(u8 const* from, u32* to, int bytes) {
  exchange<75>(from, to, bytes);
}

#ifdef ASYNC
extern "C" __global__ void exchange_80(u8 const* from, u32* to, int bytes) {
  exchange<80>(from, to, bytes);
}

// Two groups under way: the first is there once no more than one is pending.
extern "C" __global__ void pending(u8 const* from, u32* to) {
  __shared__ alignas(16) u32 words[64 * 8];
  int const thread = int(threadIdx.x), other = thread ^ 32;
#pragma unroll
  for (int group = 0; group < 2; ++group) {
    Copy<80>::copy16(shared_address(words + 256 * group + 4 * thread),
                     from + 1024 * group + 16 * thread, 16);
    Copy<80>::commit();
  }
  Copy<80>::wait<1>();
  named_barrier<64>(2);
  for (int i = 0; i < 4; ++i) to[4 * other + i] = words[4 * other + i];
  Copy<80>::wait<0>();
  named_barrier<64>(2);
  for (int i = 0; i < 4; ++i) to[256 + 4 * other + i] = words[256 + 4 * other + i];
}
#endif

// Lane by lane the registers of x4 and x2, of rows in an order of their own.
extern "C" __global__ void matrices(u32 const* from, int const* order, u32* to) {
  __shared__ alignas(16) u32 words[32 * 4];
  int const lane = int(threadIdx.x);
  u32 r[4];
  load_128_once(r, from + 4 * lane);
  store_shared_128(shared_address(words + 4 * lane), r);
  __syncwarp();
  u32 const row = shared_address(words + 4 * order[lane]);
  u32 four[4], two[2];
  ldmatrix_x4(four, row);
  ldmatrix_x2(two, row);
  u32* mine = to + 6 * lane;
  for (int i = 0; i < 4; ++i) mine[i] = four[i];
  for (int i = 0; i < 2; ++i) mine[4 + i] = two[i];
}

// What each load from global memory gives.
extern "C" __global__ void loads(u8 const* from, u32* to) {
  u32 r[4];
  load_128(r, from);
  store_128(to, r);
  load_64(r, from + 24);
  for (int i = 0; i < 2; ++i) to[4 + i] = r[i];
}
