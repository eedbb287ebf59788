// Integer codes to operands. A decoder has
//
//   Planes         where its codes lie, and so how many codes a register gets
//   kExponent      the value of a code is the decoded number times 2^kExponent
//   ZeroPoint      what a zero point is turned into, once for all codes that share it
//   zero_point(z)  does so; z is the stored integer, and ignored where the weight has none
//   unit<i>(words, zero)   the register of unit i of a lane's group
//
// Costs in comments are machine instructions per register (2, 4 or 8 codes). A *field* costs a LOP3
// per plane, and a shift per plane unless the unit already lies right or shares it with another.
#pragma once

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

/// To f16 and bf16: a code becomes the mantissa of a number, and one fma takes off what is too
/// much. Exact. A field and an fma: 2.25 for 4 bits to f16, 2.75 to bf16, 2.5 for 8 bits to f16.
///
/// m being the mantissa's bits, a code at its bit T makes 2^m + code * 2^T. T is free up to
/// m - bits; so several units of a word, a *run*, share one shift of the widest plane.
template <class Format, class Half, Zero kZero>
struct IntegerToHalf {
  using Planes = humming::Planes<Format::kBits, 2>;
  using Code = IntegerCode<Format, kZero>;
  static_assert(Planes::kBits <= Half::kMantissa, "IntegerToHalf: codes wider than the mantissa");
  static constexpr int kExponent = 0;

  static constexpr int kPlane = Planes::width(0);
  static constexpr int kPerWord = Planes::kSlot / kPlane;
  static constexpr int kRun = (Half::kMantissa - Planes::kBits) / kPlane + 1;
  static constexpr int kPlaces = kRun < kPerWord ? kRun : kPerWord;

  /// -(2^(m - T) + zero point) for each T.
  struct ZeroPoint {
    u32 addend[kPlaces];
  };

  static __device__ __forceinline__ ZeroPoint zero_point(u32 zero) {
    ZeroPoint made;
    for_constants<kPlaces>([&](auto place) {
      constexpr int kTo = kPlane * place.value;
      constexpr u32 kMagic = 0x8000u | power_of_two<Half>(Half::kMantissa - kTo);
      made.addend[place.value] = twice(kMagic | Code::offset(zero) << kTo);
    });
    return made;
  }

  template <int kIndex>
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords],
                                             const ZeroPoint& zero) {
    constexpr int kPlace = kIndex % kPerWord % kRun;
    constexpr int kTo = kPlane * kPlace;
    constexpr u32 kMagic = power_of_two<Half>(Half::kMantissa) ^ Code::kFlip << kTo;
    u32 const number = Planes::template field<kIndex, 0, Planes::kBits, kTo>(words, twice(kMagic));
    return Halves<Half>::fma(number, twice(power_of_two<Half>(-kTo)), zero.addend[kPlace]);
  }
};

/// 8 bits to bf16, whose mantissa has 7: the low bits make 128 + low, the high bit chooses between
/// -256 and -128 by being the last bit of an exponent; the sum is code - 128. Exact. Two fields and
/// an fma, 3.5 in all; one fma more unless the zero point is 128.
template <class Format, Zero kZero>
struct Integer8ToBf16 {
  using Planes = humming::Planes<8, 2>;
  using Code = IntegerCode<Format, kZero>;
  static constexpr int kExponent = 0;

  /// 128 - zero point.
  struct ZeroPoint {
    u32 addend;
  };

  static __device__ __forceinline__ ZeroPoint zero_point(u32 zero) {
    float const addend = 128.0f - static_cast<float>(Code::offset(zero));
    return {twice(__float_as_uint(addend) >> 16)};
  }

  template <int kIndex>
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords],
                                             const ZeroPoint& zero) {
    constexpr u32 kOne = twice(power_of_two<Bf16>(0));
    constexpr u32 kHigh = (0x8000u | power_of_two<Bf16>(8)) ^ Code::kFlip;
    constexpr u32 kLow = power_of_two<Bf16>(7);
    u32 const low = Planes::template field<kIndex, 0, 7, 0>(words, twice(kLow));
    u32 const high = Planes::template field<kIndex, 7, 8, 7>(words, twice(kHigh));
    u32 const centred = fma_bf16x2(low, kOne, high);
    return Code::kCentred ? centred : fma_bf16x2(centred, kOne, zero.addend);
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

  template <int kIndex>
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords],
                                             const ZeroPoint& zero) {
    constexpr u32 kTop = spread(1u << (kSlot - 1), kSlot);
    constexpr int kTo = Code::kCentred ? kUnused : 0;
    constexpr u32 kOnto = Format::kSigned || kZero == Zero::kFloat ? 0u : kTop;
    u32 const code = Planes::template field<kIndex, 0, Planes::kBits, kTo>(words, kOnto);
    if constexpr (kZero == Zero::kInteger) {
      return (code - zero.subtrahend) ^ kTop;  // the top bits keep slots from borrowing
    } else {
      return code;
    }
  }
};

/// To e4m3 and e5m2, whose codes up to 2^(mantissa + 1) ascend evenly: sign and magnitude are all
/// it takes. A field and 6: 7.5 for 4 bits. Without offset: a field.
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

  template <int kIndex>
  static __device__ __forceinline__ u32 unit(const u32 (&words)[Planes::kWords],
                                             const ZeroPoint& zero) {
    constexpr u32 kTop = spread(0x80, 8);
    if constexpr (kZero == Zero::kFloat && !Format::kSigned) {
      return Planes::template field<kIndex, 0, Planes::kBits, 0>(words, 0);
    } else {
      u32 const code = Planes::template field<kIndex, 0, Planes::kBits, 0>(
          words, kTop ^ spread(Code::kFlip, 8));
      u32 const above = code - zero.subtrahend;  // 128 + value
      u32 const sign = and_xor(above, kTop, kTop);
      u32 const one = sign >> 7;
      u32 const ones = sign - one;  // 127 where negative
      return and_xor(above, ~kTop, ones) + one + sign;
    }
  }
};

}  // namespace humming
