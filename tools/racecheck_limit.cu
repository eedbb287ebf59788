// Where compute-sanitizer's racecheck loses count: this kernel is right by construction, and with
// teams that go through their loops unequally often it reports races across a __syncthreads().
//
//   nvcc -arch=sm_90a -lineinfo -o racecheck_limit tools/racecheck_limit.cu
//   compute-sanitizer --tool racecheck ./racecheck_limit
//
// H200, CUDA 13.0, 2026-11-30: hazards for 4 and 6 uneven teams of 128 threads, lines 26 and 28; none
// for the others.
#include <cstdio>

template <int kTeams, int kTeamThreads, int kUneven>
__global__ void meet(int* out) {
  __shared__ int words[kTeams * kTeamThreads];
  __shared__ int ring[kTeams][2][kTeamThreads];
  int const team = threadIdx.x / kTeamThreads, thread = threadIdx.x % kTeamThreads;
  int sum = 0;
  int const rounds = 8 + (kUneven ? team : 0);
  for (int i = 0; i < rounds; ++i) {
    ring[team][i % 2][thread] = i + thread;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(kTeamThreads) : "memory");
    sum += ring[team][i % 2][(thread + 33) % kTeamThreads];
  }
  __syncthreads();
  words[threadIdx.x] = sum;
  __syncthreads();
  out[threadIdx.x] = words[(threadIdx.x + kTeamThreads) % (kTeams * kTeamThreads)];
}

template <int kTeams, int kTeamThreads, int kUneven>
void run(int* out) {
  meet<kTeams, kTeamThreads, kUneven><<<1, kTeams * kTeamThreads>>>(out);
  char const* const state = cudaGetErrorString(cudaDeviceSynchronize());
  printf("%d teams of %d, uneven %d: %s\n", kTeams, kTeamThreads, kUneven, state);
  fflush(stdout);
}

int main() {
  int* out;
  cudaMalloc(&out, 4096);
  run<4, 128, 0>(out);
  run<4, 128, 1>(out);
  run<6, 128, 1>(out);
  run<4, 64, 1>(out);
  run<2, 128, 1>(out);
}
