// The few things of <cstdint>, <type_traits> and <utility> that kernels here use; including those
// headers would take longer to compile than a whole kernel.
#pragma once

namespace humming {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "the sizes of integers");

/// Whether two types are the same.
template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

/// False for every type, but not before the template is used: for static_assert.
template <class...>
inline constexpr bool always_false = false;

/// The first of two types if the condition holds, else the second.
template <bool kCondition, class First, class Second>
struct ChosenOf {
  using type = First;
};
template <class First, class Second>
struct ChosenOf<false, First, Second> {
  using type = Second;
};
template <bool kCondition, class First, class Second>
using Chosen = typename ChosenOf<kCondition, First, Second>::type;

/// A type as a value, so that a function can choose it.
template <class T>
struct Type {
  using type = T;
};

/// A number as a type, so that an argument can be a constant.
template <int kNumber>
struct Constant {
  static constexpr int value = kNumber;
  __host__ __device__ constexpr operator int() const { return kNumber; }
};

template <int... kNumbers>
struct Numbers {};

/// Numbers<0, ..., kCount - 1>; the compilers' own words for it differ.
template <int kCount, int... kNumbers>
struct CountUp : CountUp<kCount - 1, kCount - 1, kNumbers...> {};
template <int... kNumbers>
struct CountUp<0, kNumbers...> {
  using type = Numbers<kNumbers...>;
};

/// Calls `body` with Constant<0>, ..., Constant<kCount - 1>: a loop whose index is a constant.
template <int kCount, class Body>
__device__ __forceinline__ constexpr void for_constants(Body&& body) {
  [&]<int... kNumbers>(Numbers<kNumbers...>) {
    (body(Constant<kNumbers>{}), ...);
  }(typename CountUp<kCount>::type{});
}

}  // namespace humming
