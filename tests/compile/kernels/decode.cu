// Decodes the first units of a group of codes per lane, for tests; a kernel per decoder is added.
#include <humming/decode/decoder.cuh>

#define KERNEL_PARAMETERS \
  const humming::u32 *words, const humming::u32 *zeros, humming::u32 *operands, int *exponent

template <class Decoder, int kUnits>
__device__ __forceinline__ void decode(KERNEL_PARAMETERS) {
  using Planes = typename Decoder::Planes;
  humming::u32 const lane = blockIdx.x * blockDim.x + threadIdx.x;
  humming::u32 group[Planes::kWords];
#pragma unroll
  for (int i = 0; i < Planes::kWords; ++i) group[i] = words[lane * Planes::kWords + i];
  typename Decoder::ZeroPoint const zero = Decoder::zero_point(zeros[lane]);
  humming::for_constants<kUnits>([&](auto i) {
    operands[lane * kUnits + i] = Decoder::unit(group, i.value, zero);
  });
  *exponent = Decoder::kExponent;
}

