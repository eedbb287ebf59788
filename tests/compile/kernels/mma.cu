// Multiplies fragments that lie in memory as lanes hold them; a kernel per combination is added.
#include <humming/memory.cuh>
#include <humming_sm75_sm89/mma.cuh>

using namespace humming;
using namespace humming::sm75_sm89;

#define KERNEL_PARAMETERS u32 const *a, u32 const *b, float *values, int steps

template <class Policy>
__device__ __forceinline__ void multiply(KERNEL_PARAMETERS) {
  int const lane = int(threadIdx.x);
  typename Policy::Sums sums{};
  for (int step = 0; step < steps; ++step) {
    u32 rows[4], columns[2];
    load_128(rows, a + (step * 32 + lane) * 4);
    load_64(columns, b + (step * 32 + lane) * 2);
    Policy::multiply(sums, rows, columns);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) values[lane * 4 + i] = Policy::value(sums, i);
}

