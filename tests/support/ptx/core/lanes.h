// Definitions of operations on 32 lanes at a time, and their lookup by name.
//
// An operation is a function of single values. Its name is the PTX opcode; its operand types are those of the
// function. The decoder rejects instructions without a definition.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;
using f64 = double;
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
template <class T>  // of two to a register, the lower one first
struct Two {
  T low, high;
};

inline constexpr int WARP = 32, OPERANDS = 5;

using Work = void (*)(void* result, const void* const* operands);  // of one warp

struct Operation {
  struct Type {
    char kind;  // u, s or f; b: bfloat16; p: a predicate
    u8 bytes;
  };
  char name[32];
  Work work;
  int operands;
  bool divides;              // the second operand must not be 0
  Type types[1 + OPERANDS];  // the result's first
};

void add(const char* stem, const char* rest, Work work, const Operation::Type* types, int operands,
         bool divides);

template <class T>
struct Type;
#define PTX_TYPE(type, letter, words)          \
  template <>                                  \
  struct Type<type> {                          \
    static constexpr char kind = letter;       \
    static constexpr const char* name = words; \
  };
PTX_TYPE(bool, 'p', "pred")
PTX_TYPE(u8, 'u', "u8")
PTX_TYPE(u16, 'u', "u16")
PTX_TYPE(u32, 'u', "u32")
PTX_TYPE(u64, 'u', "u64")
PTX_TYPE(s8, 's', "s8")
PTX_TYPE(s16, 's', "s16")
PTX_TYPE(s32, 's', "s32")
PTX_TYPE(s64, 's', "s64")
PTX_TYPE(f16, 'f', "f16")
PTX_TYPE(bf16, 'b', "bf16")
PTX_TYPE(f32, 'f', "f32")
PTX_TYPE(f64, 'f', "f64")
PTX_TYPE(Two<u16>, 'u', "u16x2")
PTX_TYPE(Two<s16>, 's', "s16x2")
PTX_TYPE(Two<f16>, 'f', "f16x2")
PTX_TYPE(Two<bf16>, 'b', "bf16x2")
#undef PTX_TYPE

template <class F, class R, class... A, std::size_t... I>
void each_lane(void* result, const void* const* operands, std::index_sequence<I...>) {
  auto* const to = static_cast<R*>(result);
  // The result may alias an operand, lane by lane.
#pragma GCC ivdep
  for (int i = 0; i < WARP; i++) to[i] = F{}(static_cast<const A*>(operands[I])[i]...);
}

template <class F, class R, class... A>
void define(const char* stem, const char* type, bool divides, R (F::*)(A...) const) {
  const Operation::Type types[] = {{Type<R>::kind, sizeof(R)}, {Type<A>::kind, sizeof(A)}...};
  const Work work = [](void* result, const void* const* operands) {
    each_lane<F, R, A...>(result, operands, std::index_sequence_for<A...>{});
  };
  add(stem, type, work, types, sizeof...(A), divides);
}

// Define an operation by a lambda of its operands.
template <class F>
void define(const char* stem, F, const char* type = "", bool divides = false) {
  define<F>(stem, type, divides, &F::operator());
}

// Define an operation for each type: `made` gets a value of the type, and returns the lambda.
template <class... T, class F>
void define_each(const char* stem, F made, bool divides = false) {
  (define(stem, made(T{}), Type<T>::name, divides), ...);
}

// The same with a stem of two parts, such as "setp." and "lt".
template <class... T, class F>
void define_each(const char* stem, const char* part, F made) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%s.", stem, part);
  define_each<T...>(name, made);
}

void define_integers();
void define_floats();
void define_conversions();

}  // namespace ptx
