// Floating-point arithmetic, every operation rounded once to nearest even, as the device rounds it.
//
// float16 and bfloat16 are computed in float64 and rounded once from there. Approximate instructions
// (ex2.approx and the like) are missing: no result of this project may depend on them.
#include "rounding.h"

namespace ptx {
namespace {

// Define an instruction with and without .rn, because nearest even is the default rounding.
template <class... T, class F>
void define_rounded(const char* stem, F made) {
  define_each<T...>(stem, made);
  define_each<T...>(stem, "rn", made);
}

// `of` is a function of float64 that is exact or rounds to odd.
template <class T, class F>
T through_double(F of, T x, T y) {
  return narrowed<T>(of(f64(to_float(x)), f64(to_float(y))));
}
template <class T, class F>
Two<T> through_double(F of, Two<T> x, Two<T> y) {
  return {through_double(of, x.low, y.low), through_double(of, x.high, y.high)};
}

template <class T>
T fused(T x, T y, T z) {
  return narrowed<T>(exact_sum(f64(to_float(x)) * f64(to_float(y)), f64(to_float(z))));
}
template <>
f32 fused(f32 x, f32 y, f32 z) {
  return with_nan(std::fma(x, y, z));
}
template <class T>
Two<T> fused(Two<T> x, Two<T> y, Two<T> z) {
  return {fused(x.low, y.low, z.low), fused(x.high, y.high, z.high)};
}

template <class T>
T extreme(bool largest, T x, T y) {
  if (x != x) return with_nan(y);
  if (y != y) return x;
  if (x == 0 && y == 0) {
    const bool negative = largest ? std::signbit(x) && std::signbit(y) : std::signbit(x) || std::signbit(y);
    return negative ? T(-0.0) : T(0.0);
  }
  return (x > y) == largest ? x : y;
}

f32 compared(f16 x) { return to_float(x); }
f32 compared(f32 x) { return x; }
f64 compared(f64 x) { return x; }

template <class F>
void define_comparison(const char* name, F) {
  define_each<f16, f32, f64>(
      "setp.", name, []<class T>(T) { return [](T x, T y) { return bool(F{}(compared(x), compared(y))); }; });
}

// Comparisons whose name ends in `u` are true for NaN; all others are false, including `ne`.
void define_comparisons() {
  define_comparison("eq", [](auto x, auto y) { return x == y; });
  define_comparison("ne", [](auto x, auto y) { return x < y || x > y; });
  define_comparison("lt", [](auto x, auto y) { return x < y; });
  define_comparison("le", [](auto x, auto y) { return x <= y; });
  define_comparison("gt", [](auto x, auto y) { return x > y; });
  define_comparison("ge", [](auto x, auto y) { return x >= y; });
  define_comparison("equ", [](auto x, auto y) { return !(x < y || x > y); });
  define_comparison("neu", [](auto x, auto y) { return x != y; });
  define_comparison("ltu", [](auto x, auto y) { return !(x >= y); });
  define_comparison("leu", [](auto x, auto y) { return !(x > y); });
  define_comparison("gtu", [](auto x, auto y) { return !(x <= y); });
  define_comparison("geu", [](auto x, auto y) { return !(x < y); });
  define_comparison("num", [](auto x, auto y) { return x == x && y == y; });
  define_comparison("nan", [](auto x, auto y) { return x != x || y != y; });
}

// Instructions that only change signs.
template <class T>
void define_signs(const char* type, T) {
  constexpr T sign = T(u64(1) << (8 * sizeof(T) - 1));
  define("neg.", [](T x) { return T(x ^ sign); }, type);
  define("abs.", [](T x) { return T(x & ~sign); }, type);
}

}  // namespace

void define_floats() {
  define_rounded<f32, f64>("add.", []<class T>(T) { return [](T x, T y) { return with_nan(x + y); }; });
  define_rounded<f32, f64>("sub.", []<class T>(T) { return [](T x, T y) { return with_nan(x - y); }; });
  define_rounded<f32, f64>("mul.", []<class T>(T) { return [](T x, T y) { return with_nan(x * y); }; });
#define PTX_HALVES f16, bf16, Two<f16>, Two<bf16>
  define_rounded<PTX_HALVES>("add.", []<class T>(T) {
    return [](T x, T y) { return through_double([](f64 a, f64 b) { return exact_sum(a, b); }, x, y); };
  });
  define_rounded<PTX_HALVES>("sub.", []<class T>(T) {
    return [](T x, T y) { return through_double([](f64 a, f64 b) { return exact_sum(a, -b); }, x, y); };
  });
  define_rounded<PTX_HALVES>("mul.", []<class T>(T) {
    return [](T x, T y) { return through_double([](f64 a, f64 b) { return a * b; }, x, y); };
  });
  for (const char* name : {"fma.rn.", "mad.rn."}) {
    define_each<f32, PTX_HALVES>(name, []<class T>(T) { return [](T x, T y, T z) { return fused(x, y, z); }; });
  }
  define_each<f32, f64>("div.rn.", []<class T>(T) { return [](T x, T y) { return with_nan(x / y); }; });
  define_each<f32, f64>("sqrt.rn.", []<class T>(T) { return [](T x) { return with_nan(std::sqrt(x)); }; });
  define_each<f32, f64>("rcp.rn.", []<class T>(T) { return [](T x) { return with_nan(T(1) / x); }; });
  define_each<f32, f64>("min.", []<class T>(T) { return [](T x, T y) { return extreme(false, x, y); }; });
  define_each<f32, f64>("max.", []<class T>(T) { return [](T x, T y) { return extreme(true, x, y); }; });
  for (const char* half : {"f16", "bf16"}) define_signs(half, u16());
  define_signs("f32", u32());
  define_signs("f64", u64());
  for (const char* pair : {"f16x2", "bf16x2"}) {
    define("neg.", [](u32 x) { return x ^ 0x80008000; }, pair);
    define("abs.", [](u32 x) { return x & 0x7FFF7FFF; }, pair);
  }
  define_comparisons();
}

}  // namespace ptx
