// mma.sync as a policy: Mma<A, B, Accumulator, kSm> multiplies 16 x k by k x 8, k times bits = 256.
//
// The registers are those of the largest shape: a[r] holds row lane / 4 + 8 * (r & 1), b[r] column
// lane / 4, and of k what lies at (128 / bits) * (r >> 1) + (32 / bits) * (lane % 4), for b with r
// in place of r >> 1. SM75 has smaller shapes only, which take the same registers one by one.
#pragma once

#include <humming/format.cuh>

namespace humming::sm75_sm89 {

/// As an accumulator: sums are kept as f16, two to a register.
using Half = F16;

// --------------------------------------------------------------------------------- instructions
//
// One each, named after it: shape, type of the sums, types of A and B; d = c + a * b. They are
// volatile because all lanes of a warp must come to them together: none may be moved into a branch.
// d and c are apart, so that sums which start from 0 need no registers set to 0.

__device__ __forceinline__ void mma_m16n8k16_f32_f16(float (&d)[4], float const (&c)[4],
                                                     u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k16_f32_bf16(float (&d)[4], float const (&c)[4],
                                                      u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k16_f16_f16(u32 (&d)[2], u32 const (&c)[2],
                                                     u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
      "{%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%8, %9};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "r"(c[0]), "r"(c[1]));
}

__device__ __forceinline__ void mma_m16n8k8_f32_f16(float (&d)[4], float const (&c)[4], u32 a0,
                                                    u32 a1, u32 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a0), "r"(a1), "r"(b),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k8_f16_f16(u32 (&d)[2], u32 const (&c)[2], u32 a0, u32 a1,
                                                    u32 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 "
      "{%0, %1}, {%2, %3}, {%4}, {%5, %6};"
      : "=r"(d[0]), "=r"(d[1])
      : "r"(a0), "r"(a1), "r"(b),
        "r"(c[0]), "r"(c[1]));
}

__device__ __forceinline__ void mma_m16n8k32_s32_s8(i32 (&d)[4], i32 const (&c)[4],
                                                    u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k64_s32_s4(i32 (&d)[4], i32 const (&c)[4],
                                                    u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

__device__ __forceinline__ void mma_m8n8k16_s32_s8(i32& c0, i32& c1, u32 a, u32 b) {
  asm volatile(
      "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(c0), "+r"(c1)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void mma_m8n8k32_s32_s4(i32& c0, i32& c1, u32 a, u32 b) {
  asm volatile(
      "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(c0), "+r"(c1)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void mma_m16n8k32_f32_e4m3_e4m3(float (&d)[4], float const (&c)[4],
                                                           u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k32_f32_e4m3_e5m2(float (&d)[4], float const (&c)[4],
                                                           u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k32_f32_e5m2_e4m3(float (&d)[4], float const (&c)[4],
                                                           u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

__device__ __forceinline__ void mma_m16n8k32_f32_e5m2_e5m2(float (&d)[4], float const (&c)[4],
                                                           u32 const (&a)[4], u32 const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),
        "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

/// cvt.f32.f16 of the lower or upper half of a register.
__device__ __forceinline__ float half_to_float(u32 pair, int which) {
  u16 const bits = u16(pair >> 16 * which);
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// ------------------------------------------------------------------------------- sums of a lane

struct FloatSums {
  float c[4];
};

struct IntegerSums {
  i32 c[4];
};

struct HalfSums {
  u32 c[2];
};

__device__ __forceinline__ float sum_value(FloatSums const& sums, int i) { return sums.c[i]; }
__device__ __forceinline__ float sum_value(IntegerSums const& sums, int i) {
  return float(sums.c[i]);
}
__device__ __forceinline__ float sum_value(HalfSums const& sums, int i) {
  return half_to_float(sums.c[i / 2], i % 2);
}

template <class Accumulator>
struct SumsOf {
  static_assert(always_false<Accumulator>, "Mma: sums are float, i32 or Half");
};
template <>
struct SumsOf<float> {
  using type = FloatSums;
};
template <>
struct SumsOf<i32> {
  using type = IntegerSums;
};
template <>
struct SumsOf<Half> {
  using type = HalfSums;
};

// ---------------------------------------------------------------- what each generation multiplies
//
// An overload per combination; the first two arguments are the types of A and B as tags.

using A4 = u32 const (&)[4];
using B2 = u32 const (&)[2];

struct Sm75 {
  static __device__ __forceinline__ void multiply(F16, F16, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k8_f32_f16(sums.c, sums.c, a[0], a[1], b[0]);
    mma_m16n8k8_f32_f16(sums.c, sums.c, a[2], a[3], b[1]);
  }

  static __device__ __forceinline__ void multiply(F16, F16, HalfSums& sums, A4 a, B2 b) {
    mma_m16n8k8_f16_f16(sums.c, sums.c, a[0], a[1], b[0]);
    mma_m16n8k8_f16_f16(sums.c, sums.c, a[2], a[3], b[1]);
  }

  static __device__ __forceinline__ void multiply(Signed<8>, Signed<8>, IntegerSums& sums, A4 a,
                                                  B2 b) {
    // Both halves of the rows before the second half of k: neighbours don't wait for each other.
    mma_m8n8k16_s32_s8(sums.c[0], sums.c[1], a[0], b[0]);
    mma_m8n8k16_s32_s8(sums.c[2], sums.c[3], a[1], b[0]);
    mma_m8n8k16_s32_s8(sums.c[0], sums.c[1], a[2], b[1]);
    mma_m8n8k16_s32_s8(sums.c[2], sums.c[3], a[3], b[1]);
  }

  static __device__ __forceinline__ void multiply(Signed<4>, Signed<4>, IntegerSums& sums, A4 a,
                                                  B2 b) {
    mma_m8n8k32_s32_s4(sums.c[0], sums.c[1], a[0], b[0]);
    mma_m8n8k32_s32_s4(sums.c[2], sums.c[3], a[1], b[0]);
    mma_m8n8k32_s32_s4(sums.c[0], sums.c[1], a[2], b[1]);
    mma_m8n8k32_s32_s4(sums.c[2], sums.c[3], a[3], b[1]);
  }
};

struct Sm80 {
  static __device__ __forceinline__ void multiply(F16, F16, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k16_f32_f16(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(Bf16, Bf16, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k16_f32_bf16(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(F16, F16, HalfSums& sums, A4 a, B2 b) {
    mma_m16n8k16_f16_f16(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(Signed<8>, Signed<8>, IntegerSums& sums, A4 a,
                                                  B2 b) {
    mma_m16n8k32_s32_s8(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(Signed<4>, Signed<4>, IntegerSums& sums, A4 a,
                                                  B2 b) {
    mma_m16n8k64_s32_s4(sums.c, sums.c, a, b);
  }
};

struct Sm89 : Sm80 {
  using Sm80::multiply;
  static __device__ __forceinline__ void multiply(E4m3fn, E4m3fn, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k32_f32_e4m3_e4m3(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(E4m3fn, E5m2, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k32_f32_e4m3_e5m2(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(E5m2, E4m3fn, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k32_f32_e5m2_e4m3(sums.c, sums.c, a, b);
  }
  static __device__ __forceinline__ void multiply(E5m2, E5m2, FloatSums& sums, A4 a, B2 b) {
    mma_m16n8k32_f32_e5m2_e5m2(sums.c, sums.c, a, b);
  }
};

template <int kSm>
struct GenerationOf {
  static_assert(kSm == 75, "Mma: kSm is 75, 80 or 89");
  using type = Sm75;
};
template <>
struct GenerationOf<80> {
  using type = Sm80;
};
template <>
struct GenerationOf<89> {
  using type = Sm89;
};

// --------------------------------------------------------------------------------------- policy

/// A, B: formats of the operands. Accumulator: float; i32 for s8 and s4; Half for f16. kSm: the
/// oldest generation that runs it, 75, 80 or 89.
template <class A, class B, class Accumulator, int kSm>
struct Mma {
  static_assert(is_half<A> || is_small_integer<A> || is_small_float<A>,
                "Mma: A is f16, bf16, e4m3fn, e5m2, s8 or s4");
  static_assert(is_same<A, B> || (is_small_float<A> && is_small_float<B>),
                "Mma: A and B have one format, or are any of e4m3fn and e5m2");
  static_assert(is_same<Accumulator, i32> == is_small_integer<A>,
                "Mma: sums are i32 for integers, and for nothing else");
  static_assert(!is_same<Accumulator, Half> || is_same<A, F16>,
                "Mma: sums are f16 for f16, and for nothing else");
  static_assert(!is_same<A, Bf16> || kSm >= 80, "Mma: bf16 needs kSm 80 or 89");
  static_assert(!is_small_float<A> || kSm >= 89, "Mma: e4m3fn and e5m2 need kSm 89");

  using Sums = typename SumsOf<Accumulator>::type;

  /// Numbers of k in one multiply.
  static constexpr int kStep = 256 / A::kBits;

  /// sums += A (16 x kStep) * B (kStep x 8). All lanes of a warp call it together.
  static __device__ __forceinline__ void multiply(Sums& sums, u32 const (&a)[4],
                                                  u32 const (&b)[2]) {
    GenerationOf<kSm>::type::multiply(A{}, B{}, sums, a, b);
  }

  /// Sum i of a lane, 0 to 3: row lane / 4 + 8 * (i / 2), column 2 * (lane % 4) + i % 2.
  static __device__ __forceinline__ float value(Sums const& sums, int i) {
    return sum_value(sums, i);
  }
};

}  // namespace humming::sm75_sm89
