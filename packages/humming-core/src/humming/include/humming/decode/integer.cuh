// Integer codes to operands. A decoder has
//
//   Planes         where its codes lie, and so how many codes a register gets
//   kExponent      the value of a code is the decoded number times 2^kExponent
//   ZeroPoint      what a zero point is turned into, once for all codes that share it
//   zero_point(z)  does so; z is the stored integer, and ignored where the weight has none
//   unit(words, i, zero)   the register of unit i of a lane's group
//
// Costs in comments are machine instructions per register (2, 4 or 8 codes). A *field* costs a LOP3
// per plane, and a shift per plane unless the unit already lies right or shares it with another.
#pragma once

#include <humming/decode/fives.cuh>
#include <humming/decode/halves.cuh>
#include <humming/decode/planes.cuh>

namespace humming {

/// What integer codes mean: value = (code ^ kFlip) - zero point, or - kOffset if there is none.
template <class Format, Zero kZero>
struct IntegerCode {
  static_assert(kZero != Zero::kInteger || !Format::kSigned,
                "IntegerCode: only unsigned codes have integer zero points");
  static constexpr int kBits = Format::kBits;
  /// Makes the order of two's complement ascend.
  static constexpr u32 kFlip = Format::kSigned ? 1u << (kBits - 1) : 0u;
  static constexpr bool kCentred = Format::kSigned || kZero == Zero::kNone;
  static constexpr u32 kOffset = kCentred ? 1u << (kBits - 1) : 0u;
  /// The largest |value|.
  static constexpr int kLargest = kCentred ? 1 << (kBits - 1) : (1 << kBits) - 1;

  /// What is subtracted.
  static __device__ __forceinline__ u32 offset(u32 zero) {
    return kZero == Zero::kInteger ? zero : kOffset;
  }
};

/// Where codes of so many bits lie for 16-bit operands; twin of plane_layout() in humming/layouts.py.
template <int kBits>
using HalfPlanes = Chosen<kBits == 3, Fives, Planes<kBits, 2>>;

/// To f16: a code becomes the mantissa of a number, and one fma takes off what is too much. Exact. A
/// field and an fma: 2.25 for 4 bits, 2.5 for 8, 2.3 for 3.
///
/// m being the mantissa's bits, a code at its bit T makes 2^m + code * 2^T. T is free up to
/// m - bits; so several units of a word share one shift.
template <class Format, Zero kZero>
struct IntegerToF16 {
  using Planes = HalfPlanes<Format::kBits>;
  using Low = typename Planes::template Low<F16::kMantissa>;
  using Code = IntegerCode<Format, kZero>;
  static constexpr int kExponent = 0;

  /// -(2^(m - T) + zero point) for each T.
  struct ZeroPoint {
    u32 addend[Low::kPlaces];
  };

  static __device__ __forceinline__ ZeroPoint zero_point(u32 zero) {
    ZeroPoint made;
#pragma unroll
    for (int place = 0; place < Low::kPlaces; ++place) {
      int const to = Low::to(place);
      u32 const magic = 0x8000u | power_of_two<F16>(F16::kMantissa - to);
      made.addend[place] = twice(magic | Code::offset(zero) << to);
    }
    return made;
  }

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const ZeroPoint& zero) {
    int const place = Low::place(index), to = Low::to(place);
    u32 const magic = power_of_two<F16>(F16::kMantissa) ^ Code::kFlip << to;
    u32 const number = Planes::field(words, index, {0, Planes::kBits, to}, twice(magic));
    return fma_f16x2(number, twice(power_of_two<F16>(-to)), zero.addend[place]);
  }
};

/// To bf16, up to 2^6: the lowest 8 bits of a bf16 number are an integer times 2^-133, be it subnormal
/// or not. One fma brings that up and takes off the zero point. Exact. A field and an fma: 2.25 for
/// 4 bits, 2.5 for 8 and for 3.
///
/// A code may lie anywhere in those 8 bits; so several units of a word share one shift.
template <class Format, Zero kZero>
struct IntegerToBf16 {
  using Planes = HalfPlanes<Format::kBits>;
  using Low = typename Planes::template Low<8>;
  using Code = IntegerCode<Format, kZero>;
  static constexpr int kExponent = 6;  // what 2^127, the largest factor, leaves of 2^133

  /// -zero point * 2^-kExponent.
  struct ZeroPoint {
    u32 addend;
  };

  static __device__ __forceinline__ ZeroPoint zero_point(u32 zero) {
    float const addend = -0x1p-6f * static_cast<float>(Code::offset(zero));
    return {__byte_perm(__float_as_uint(addend), 0, 0x3232)};
  }

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const ZeroPoint& zero) {
    int const to = Low::to(Low::place(index));
    u32 const number = Planes::field(words, index, {0, Planes::kBits, to}, twice(Code::kFlip << to));
    return fma_bf16x2(number, twice(power_of_two<Bf16>(127 - to)), zero.addend);
  }
};

/// To s8 and s4, up to 2^-kExponent: what is centred goes to the top of its slot, whose low bits
/// stay 0. A field, 1.5 for 4 bits; no instruction at all for s8 to s8 and s4 to s4. A code that is
/// not centred stays low; an integer zero point is taken off it in a field and 2.
template <class Format, class Target, Zero kZero>
struct IntegerToInteger {
  using Planes = humming::Planes<Format::kBits, 32 / Target::kBits>;
  using Code = IntegerCode<Format, kZero>;
  static constexpr int kSlot = Target::kBits;
  static constexpr int kUnused = kSlot - Planes::kBits;
  static_assert(Code::kCentred || kUnused > 0,
                "IntegerToInteger: without an offset, codes as wide as the operand don't fit it");
  static constexpr int kExponent = Code::kCentred ? -kUnused : 0;

  /// The zero point in each slot.
  struct ZeroPoint {
    u32 subtrahend;
  };

  static __device__ __forceinline__ ZeroPoint zero_point(u32 zero) {
    return {Code::offset(zero) * spread(1, kSlot)};
  }

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const ZeroPoint& zero) {
    constexpr u32 kTop = spread(1u << (kSlot - 1), kSlot);
    constexpr int kTo = Code::kCentred ? kUnused : 0;
    constexpr u32 kOnto = Format::kSigned || kZero == Zero::kFloat ? 0u : kTop;
    u32 const code = Planes::field(words, index, {0, Planes::kBits, kTo}, kOnto);
    if constexpr (kZero == Zero::kInteger) {
      return (code - zero.subtrahend) ^ kTop;  // the top bits keep slots from borrowing
    } else {
      return code;
    }
  }
};

/// To e4m3 and e5m2, whose codes up to 2^(mantissa + 1) ascend evenly: sign and magnitude are all
/// it takes. Two fields and 2: 5.5 for 4 bits. With a zero point a field and 6; without offset: a field.
template <class Format, class Target, Zero kZero>
struct IntegerToSmallFloat {
  using Planes = humming::Planes<Format::kBits, 4>;
  using Code = IntegerCode<Format, kZero>;
  static_assert(Code::kLargest <= 2 << Target::kMantissa,
                "IntegerToSmallFloat: the operand's format does not have every value; use another");
  static constexpr int kExponent = Target::kBias - 1 + Target::kMantissa;

  /// The zero point in each slot.
  struct ZeroPoint {
    u32 subtrahend;
  };

  static __device__ __forceinline__ ZeroPoint zero_point(u32 zero) {
    return {Code::offset(zero) * spread(1, 8)};
  }

  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords], int index,
                                             const ZeroPoint& zero) {
    constexpr u32 kTop = spread(0x80, 8);
    if constexpr (kZero == Zero::kFloat && !Format::kSigned) {
      return Planes::field(words, index, {0, Planes::kBits, 0}, 0);
    } else if constexpr (Code::kCentred) {
      // -v is what the low bits lack of all ones, and 1. Multiplications are another pipe's.
      constexpr int kLow = Planes::kBits - 1;
      constexpr u32 kOne = spread(1, 8);
      u32 const negative =
          Planes::field(words, index, {kLow, Planes::kBits, 0}, Format::kSigned ? 0 : kOne);
      u32 const low = Planes::field(words, index, {0, kLow, 0}, negative * ((1u << kLow) - 1));
      return negative * 0x81 + low;
    } else {
      u32 const code =
          Planes::field(words, index, {0, Planes::kBits, 0}, kTop ^ spread(Code::kFlip, 8));
      u32 const above = code - zero.subtrahend;  // 128 + value
      u32 const sign = and_xor(above, kTop, kTop);
      u32 const one = sign >> 7;
      u32 const ones = sign - one;  // 127 where negative
      return and_xor(above, ~kTop, ones) + one + sign;
    }
  }
};

}  // namespace humming
