// What compute-sanitizer's racecheck does not see: a __syncwarp() before one lane arrives at an
// mbarrier for its whole warp. Both kernels below are right by construction: a bulk copy overwrites a
// buffer once the warp that read it has arrived. Where one lane arrives, racecheck reports the reads
// of the other 31; where all 32 arrive, it reports nothing.
//
//   nvcc -arch=sm_90a -lineinfo -o racecheck_elected tools/racecheck_elected.cu
//   compute-sanitizer --tool racecheck ./racecheck_elected
#include <cstdint>
#include <cstdio>

constexpr int kRounds = 16, kWords = 128;

__device__ uint32_t address(void const* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
          address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

template <int kArrivals>
__global__ void stream(int const* from, int* out) {
  __shared__ alignas(128) int words[kWords];
  __shared__ uint64_t full, empty;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full)));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&empty)), "n"(kArrivals));
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncthreads();
  int const lane = threadIdx.x % 32;
  if (threadIdx.x == 32) {
    for (int i = 0; i < kRounds; ++i) {
      wait(&empty, i % 2 ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full)),
                   "n"(4 * kWords)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(address(words)),
          "l"(from + i * kWords), "n"(4 * kWords), "r"(address(&full))
          : "memory");
    }
  } else if (threadIdx.x < 32) {
    int sum = 0;
    for (int i = 0; i < kRounds; ++i) {
      wait(&full, i % 2);
      for (int j = lane; j < kWords; j += 32) sum += words[j];
      __syncwarp();
      if (kArrivals == 32 || lane == 0) arrive(&empty);
    }
    out[lane] = sum;
  }
}

template <int kArrivals>
void run(int const* from, int* out) {
  stream<kArrivals><<<1, 64>>>(from, out);
  printf("%d arrive: %s\n", kArrivals, cudaGetErrorString(cudaDeviceSynchronize()));
  fflush(stdout);
}

int main() {
  int *from, *out;
  cudaMalloc(&from, 4 * kRounds * kWords);
  cudaMemset(from, 0, 4 * kRounds * kWords);
  cudaMalloc(&out, 4 * 32);
  run<32>(from, out);
  run<1>(from, out);
}
