// Integer arithmetic, bits, comparison and selection.
#include "lanes.h"

namespace ptx {
namespace {

template <class T>
constexpr int BITS = 8 * sizeof(T);
template <class T>
constexpr bool SIGNED = T(-1) < T(0);

template <int bytes>
struct Integer;
template <>
struct Integer<2> {
  using Unsigned = u16;
  using WideSigned = s32;
  using WideUnsigned = u32;
};
template <>
struct Integer<4> {
  using Unsigned = u32;
  using WideSigned = s64;
  using WideUnsigned = u64;
};
template <>
struct Integer<8> {
  using Unsigned = u64;
  using WideSigned = __int128;
  using WideUnsigned = unsigned __int128;
};
template <class T>
using Unsigned = typename Integer<sizeof(T)>::Unsigned;
template <class T>
struct WideOf {
  using Type = typename Integer<sizeof(T)>::WideUnsigned;
};
template <>
struct WideOf<s16> {
  using Type = s32;
};
template <>
struct WideOf<s32> {
  using Type = s64;
};
template <>
struct WideOf<s64> {
  using Type = __int128;
};
template <class T>
using Wide = typename WideOf<T>::Type;

// Signed numbers wrap, so they are computed as unsigned ones, at least as wide as int.
template <class T>
T sum(T x, T y) {
  return T(u64(x) + u64(y));
}
template <class T>
T product(T x, T y) {
  return T(Unsigned<T>(x) * u64(Unsigned<T>(y)));
}
template <>
u32 product(u32 x, u32 y) {
  return x * y;
}
template <>
s32 product(s32 x, s32 y) {
  return s32(u32(x) * u32(y));
}
template <class T>
T upper(T x, T y) {
  return T(Wide<T>(x) * Wide<T>(y) >> BITS<T>);
}

// Division towards zero. The most negative number divided by -1 wraps. Idle lanes may hold any divisor.
template <class T>
T quotient(T x, T y) {
  using U = Unsigned<T>;
  if (y == 0) return 0;
  const U a = x < 0 ? U(0) - U(x) : U(x), b = y < 0 ? U(0) - U(y) : U(y);
  const U magnitude = a / b;
  return T((x < 0) != (y < 0) ? U(0) - magnitude : magnitude);
}

template <class T, class F>
Two<T> both(Two<T> x, Two<T> y, F function) {
  return {T(function(x.low, y.low)), T(function(x.high, y.high))};
}

u64 ones(u32 length) { return length < 64 ? (u64(1) << length) - 1 : ~u64(0); }

template <class T>
T extracted(T x, u32 start, u32 length) {
  start &= 0xFF;
  length = (length & 0xFF) < u32(BITS<T>) ? length & 0xFF : BITS<T>;
  if (!SIGNED<T>) return start < 64 ? T(u64(x) >> start & ones(length)) : T(0);
  if (length == 0) return 0;
  const s64 value = s64(x) >> (start < 63 ? start : 63);
  return T(s64(u64(value) << (64 - length)) >> (64 - length));
}

template <class T>
T inserted(T x, T into, u32 start, u32 length) {
  start &= 0xFF, length &= 0xFF;
  if (start >= 64) return into;
  const u64 mask = ones(length) << start;
  return T((u64(into) & ~mask) | (u64(x) << start & mask));
}

u32 permuted(u32 x, u32 y, u32 selection) {
  const u64 both = u64(y) << 32 | x;
  u32 value = 0;
  for (int i = 0; i < 4; i++) {
    const u32 nibble = selection >> 4 * i & 15;
    u32 byte = both >> (nibble & 7) * 8 & 0xFF;
    if (nibble & 8) byte = byte & 0x80 ? 0xFF : 0;  // its sign, eight times
    value |= byte << 8 * i;
  }
  return value;
}

u32 looked_up(u32 x, u32 y, u32 z, u32 table) {
  u32 value = 0;
  for (int i = 0; i < 8; i++) {
    if (table >> i & 1) value |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
  }
  return value;
}

template <class T>
T reversed(T x) {
  T value = 0;
  for (int i = 0; i < BITS<T>; i++) value = T(value << 1 | (x >> i & 1));
  return value;
}

template <class A, class B, class C>
C dot(u32 x, u32 y, C z) {
  u32 total = u32(z);
  for (int i = 0; i < 4; i++) total += u32(s32(A(x >> 8 * i)) * s32(B(y >> 8 * i)));
  return C(total);
}

void define_arithmetic() {
#define PTX_INTEGERS u16, u32, u64, s16, s32, s64
  define_each<PTX_INTEGERS>("add.", []<class T>(T) { return [](T x, T y) { return sum(x, y); }; });
  define_each<PTX_INTEGERS>("sub.", []<class T>(T) { return [](T x, T y) { return T(u64(x) - u64(y)); }; });
  define_each<PTX_INTEGERS>("min.", []<class T>(T) { return [](T x, T y) { return x < y ? x : y; }; });
  define_each<PTX_INTEGERS>("max.", []<class T>(T) { return [](T x, T y) { return x > y ? x : y; }; });
  define_each<Two<u16>, Two<s16>>("add.", []<class T>(Two<T>) {
    return [](Two<T> x, Two<T> y) { return both(x, y, [](T a, T b) { return a + b; }); };
  });
  define_each<Two<u16>, Two<s16>>("min.", []<class T>(Two<T>) {
    return [](Two<T> x, Two<T> y) { return both(x, y, [](T a, T b) { return a < b ? a : b; }); };
  });
  define_each<Two<u16>, Two<s16>>("max.", []<class T>(Two<T>) {
    return [](Two<T> x, Two<T> y) { return both(x, y, [](T a, T b) { return a > b ? a : b; }); };
  });
  define_each<PTX_INTEGERS>("mul.lo.", []<class T>(T) { return [](T x, T y) { return product(x, y); }; });
  define_each<PTX_INTEGERS>("mul.hi.", []<class T>(T) { return [](T x, T y) { return upper(x, y); }; });
  define_each<u16, u32, s16, s32>(
      "mul.wide.", []<class T>(T) { return [](T x, T y) { return Wide<T>(Wide<T>(x) * Wide<T>(y)); }; });
  define_each<PTX_INTEGERS>("mad.lo.",
                            []<class T>(T) { return [](T x, T y, T z) { return sum(product(x, y), z); }; });
  define_each<PTX_INTEGERS>("mad.hi.",
                            []<class T>(T) { return [](T x, T y, T z) { return sum(upper(x, y), z); }; });
  define_each<u16, u32, s16, s32>("mad.wide.", []<class T>(T) {
    return [](T x, T y, Wide<T> z) { return sum(Wide<T>(Wide<T>(x) * Wide<T>(y)), z); };
  });
  define_each<PTX_INTEGERS>("div.", []<class T>(T) { return [](T x, T y) { return quotient(x, y); }; }, true);
  define_each<PTX_INTEGERS>(
      "rem.", []<class T>(T) { return [](T x, T y) { return T(u64(x) - u64(product(quotient(x, y), y))); }; },
      true);
  define_each<s16, s32, s64>("neg.", []<class T>(T) { return [](T x) { return T(-u64(x)); }; });
  define_each<s16, s32, s64>("abs.", []<class T>(T) { return [](T x) { return x < 0 ? T(-u64(x)) : x; }; });
}

// PTX has untyped bits here: `b32` is `u32`.
template <class... T, class F>
void define_bits(const char* stem, F made) {
  char name[32];
  std::snprintf(name, sizeof name, "%sb", stem);
  (define(name, made(T{}), Type<T>::name + 1), ...);
}

void define_logic() {
  define_bits<u16, u32, u64>("and.", []<class T>(T) { return [](T x, T y) { return T(x & y); }; });
  define_bits<u16, u32, u64>("or.", []<class T>(T) { return [](T x, T y) { return T(x | y); }; });
  define_bits<u16, u32, u64>("xor.", []<class T>(T) { return [](T x, T y) { return T(x ^ y); }; });
  define_bits<u16, u32, u64>("not.", []<class T>(T) { return [](T x) { return T(~x); }; });
  define_bits<u16, u32, u64>("cnot.", []<class T>(T) { return [](T x) { return T(x == 0); }; });
  define("and.pred", [](bool x, bool y) { return x && y; });
  define("or.pred", [](bool x, bool y) { return x || y; });
  define("xor.pred", [](bool x, bool y) { return x != y; });
  define("not.pred", [](bool x) { return !x; });
  define("mov.pred", [](bool x) { return x; });
  const auto shifted = []<class T>(T) {
    return [](T x, u32 by) { return by < BITS<T> ? T(x >> by) : SIGNED<T> && x < 0 ? T(-1) : T(0); };
  };
  define_bits<u16, u32, u64>(
      "shl.", []<class T>(T) { return [](T x, u32 by) { return by < BITS<T> ? T(u64(x) << by) : T(0); }; });
  define_bits<u16, u32, u64>("shr.", shifted);
  define_each<PTX_INTEGERS>("shr.", shifted);
  define("shf.l.wrap.b32", [](u32 x, u32 y, u32 by) { return u32((u64(y) << 32 | x) << (by & 31) >> 32); });
  define("shf.r.wrap.b32", [](u32 x, u32 y, u32 by) { return u32((u64(y) << 32 | x) >> (by & 31)); });
  define("shf.l.clamp.b32",
         [](u32 x, u32 y, u32 by) { return u32((u64(y) << 32 | x) << (by < 32 ? by : 32) >> 32); });
  define("shf.r.clamp.b32",
         [](u32 x, u32 y, u32 by) { return u32((u64(y) << 32 | x) >> (by < 32 ? by : 32)); });
  define_each<u32, u64, s32, s64>("bfe.", []<class T>(T) {
    return [](T x, u32 start, u32 length) { return extracted(x, start, length); };
  });
  define_bits<u32, u64>("bfi.", []<class T>(T) {
    return [](T x, T into, u32 start, u32 length) { return inserted(x, into, start, length); };
  });
  define("prmt.b32", [](u32 x, u32 y, u32 selection) { return permuted(x, y, selection); });
  define("lop3.b32", [](u32 x, u32 y, u32 z, u32 table) { return looked_up(x, y, z, table); });
  define_bits<u32, u64>("popc.", []<class T>(T) { return [](T x) { return u32(__builtin_popcountll(x)); }; });
  define_bits<u32, u64>("clz.", []<class T>(T) {
    return [](T x) { return x ? u32(__builtin_clzll(x)) - (64 - BITS<T>) : u32(BITS<T>); };
  });
  define_each<u32, u64>(
      "bfind.", []<class T>(T) { return [](T x) { return x ? 63 - u32(__builtin_clzll(x)) : ~u32(0); }; });
  define_bits<u32, u64>("brev.", []<class T>(T) { return [](T x) { return reversed(x); }; });
  define("dp4a.u32.u32", [](u32 x, u32 y, u32 z) { return dot<u8, u8>(x, y, z); });
  define("dp4a.u32.s32", [](u32 x, u32 y, s32 z) { return dot<u8, s8>(x, y, z); });
  define("dp4a.s32.u32", [](u32 x, u32 y, s32 z) { return dot<s8, u8>(x, y, z); });
  define("dp4a.s32.s32", [](u32 x, u32 y, s32 z) { return dot<s8, s8>(x, y, z); });
}

void define_comparisons() {
  const auto equal = []<class T>(T) { return [](T x, T y) { return x == y; }; };
  const auto differ = []<class T>(T) { return [](T x, T y) { return x != y; }; };
  const auto less = []<class T>(T) { return [](T x, T y) { return x < y; }; };
  const auto at_most = []<class T>(T) { return [](T x, T y) { return x <= y; }; };
  const auto greater = []<class T>(T) { return [](T x, T y) { return x > y; }; };
  const auto at_least = []<class T>(T) { return [](T x, T y) { return x >= y; }; };
  define_each<PTX_INTEGERS>("setp.eq.", equal);
  define_each<PTX_INTEGERS>("setp.ne.", differ);
  define_bits<u16, u32, u64>("setp.eq.", equal);
  define_bits<u16, u32, u64>("setp.ne.", differ);
  define_each<PTX_INTEGERS>("setp.lt.", less);
  define_each<PTX_INTEGERS>("setp.le.", at_most);
  define_each<PTX_INTEGERS>("setp.gt.", greater);
  define_each<PTX_INTEGERS>("setp.ge.", at_least);
  define_each<u16, u32, u64>("setp.lo.", less);
  define_each<u16, u32, u64>("setp.ls.", at_most);
  define_each<u16, u32, u64>("setp.hi.", greater);
  define_each<u16, u32, u64>("setp.hs.", at_least);
}

}  // namespace

void define_integers() {
  define_arithmetic();
  define_logic();
  define_comparisons();
  // Instructions that only move bits accept all types of a width.
  for (const char type : {'b', 'u', 's', 'f'}) {
    char name[16];
    const auto named = [&](const char* stem, int bits) {
      std::snprintf(name, sizeof name, "%s.%c%d", stem, type, bits);
      return name;
    };
    define(named("mov", 16), [](u16 x) { return x; });
    define(named("mov", 32), [](u32 x) { return x; });
    define(named("mov", 64), [](u64 x) { return x; });
    define(named("selp", 16), [](u16 x, u16 y, bool chosen) { return chosen ? x : y; });
    define(named("selp", 32), [](u32 x, u32 y, bool chosen) { return chosen ? x : y; });
    define(named("selp", 64), [](u64 x, u64 y, bool chosen) { return chosen ? x : y; });
  }
  // Packing parts into a register, and extracting one by a shift to the right.
  define("pack.b32", [](u16 low, u16 high) { return u32(low | u32(high) << 16); });
  define("pack.b64", [](u32 low, u32 high) { return low | u64(high) << 32; });
  define("pack4.b64",
         [](u16 a, u16 b, u16 c, u16 d) { return a | u64(b) << 16 | u64(c) << 32 | u64(d) << 48; });
  define("part.b32", [](u32 x, u32 by) { return u16(x >> by); });
  define("part.b64", [](u64 x, u32 by) { return u32(x >> by); });
  define("part4.b64", [](u64 x, u32 by) { return u16(x >> by); });
}

}  // namespace ptx
