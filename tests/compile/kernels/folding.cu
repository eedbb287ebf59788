// Decodes a group of each lane, multiplied by the lane's scale, one of a pair.
#include <humming/decode/folding.cuh>

using humming::u32;

#define KERNEL_PARAMETERS                                                                       \
  u32 const *words, int const *zeros, u32 const *scales, u32 *operands, int *exponent
#define ARGUMENTS words, zeros, scales, operands, exponent

template <class Decoder>
__device__ void fold(KERNEL_PARAMETERS) {
  using Planes = typename Decoder::Planes;
  int const lane = blockIdx.x * blockDim.x + threadIdx.x;
  u32 group[Planes::kWords];
#pragma unroll
  for (int i = 0; i < Planes::kWords; ++i) group[i] = words[lane * Planes::kWords + i];
  auto const factors = Decoder::factors(scales[lane], lane % 2, static_cast<u32>(zeros[lane]));
#pragma unroll
  for (int i = 0; i < Planes::kUnits; ++i)
    operands[lane * Planes::kUnits + i] = Decoder::unit(group, i, factors);
  if (lane == 0) *exponent = Decoder::kExponent;
}
