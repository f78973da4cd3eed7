// cvt: from each type to each other, with the rounding that the instruction names.
#include <limits>

#include "rounding.h"

namespace ptx {
namespace {

f64 to_double(f64 value) { return value; }
template <class T>
f64 to_double(T value) {
  return to_float(value);
}

// Define cvt.<modifiers>.To.From.
template <class To, class From, class F>
void define_conversion(const char* modifiers, F of) {
  char name[32];
  std::snprintf(name, sizeof name, "cvt.%s%s.", modifiers, Type<To>::name);
  define(name, of, Type<From>::name);
}

template <class To, class... From>
void define_between_integers() {
  (define_conversion<To, From>("", [](From x) { return To(x); }), ...);
  // Values out of range become the nearest one in range.
  (define_conversion<To, From>("sat.",
                               [](From x) {
                                 using Limits = std::numeric_limits<To>;
                                 const __int128 value = x, low = Limits::min(), high = Limits::max();
                                 return To(value < low ? low : value > high ? high : value);
                               }),
   ...);
}

struct Nearest {
  static constexpr const char* name = "rni.";
  static f64 of(f64 x) { return std::rint(x); }
};
struct Truncated {
  static constexpr const char* name = "rzi.";
  static f64 of(f64 x) { return std::trunc(x); }
};
struct Down {
  static constexpr const char* name = "rmi.";
  static f64 of(f64 x) { return std::floor(x); }
};
struct Up {
  static constexpr const char* name = "rpi.";
  static f64 of(f64 x) { return std::ceil(x); }
};

// NaN becomes the number with only the highest bit set if the source or the target has 64 bits, else 0.
template <class To, class From>
To to_integer(f64 value) {
  using Limits = std::numeric_limits<To>;
  if (value != value) {
    return sizeof(To) < 8 && sizeof(From) < 8 ? To(0) : To(u64(1) << (8 * sizeof(To) - 1));
  }
  if (value >= f64(Limits::max())) return Limits::max();
  return value <= f64(Limits::min()) ? Limits::min() : To(value);
}

template <class Rounded, class From, class... To>
void define_to_integers() {
  (define_conversion<To, From>(Rounded::name,
                               [](From x) { return to_integer<To, From>(Rounded::of(to_double(x))); }),
   ...);
}

template <class Rounded>
void define_to_integers() {
#define PTX_INTEGERS u8, u16, u32, u64, s8, s16, s32, s64
  define_to_integers<Rounded, f16, PTX_INTEGERS>();
  define_to_integers<Rounded, f32, PTX_INTEGERS>();
  define_to_integers<Rounded, f64, PTX_INTEGERS>();
  define_conversion<f16, f16>(Rounded::name, [](f16 x) { return to_half(f32(Rounded::of(to_float(x)))); });
  define_conversion<f32, f32>(Rounded::name, [](f32 x) { return with_nan(f32(Rounded::of(x))); });
  define_conversion<f64, f64>(Rounded::name, [](f64 x) { return Rounded::of(x); });
}

// float64 to float32 towards zero, down or up.
f32 towards_zero(f64 value) {
  const f32 single = f32(value);
  return std::fabs(f64(single)) > std::fabs(value) ? std::nextafter(single, 0.0F) : single;
}
f32 downwards(f64 value) {
  const f32 single = f32(value);
  return f64(single) > value ? std::nextafter(single, -std::numeric_limits<f32>::infinity()) : single;
}
f32 upwards(f64 value) {
  const f32 single = f32(value);
  return f64(single) < value ? std::nextafter(single, std::numeric_limits<f32>::infinity()) : single;
}

template <class... From>
void define_directed() {
  (define_conversion<f32, From>("rz.", [](From x) { return with_nan(towards_zero(f64(x))); }), ...);
  (define_conversion<f32, From>("rm.", [](From x) { return with_nan(downwards(f64(x))); }), ...);
  (define_conversion<f32, From>("rp.", [](From x) { return with_nan(upwards(f64(x))); }), ...);
}

template <class... From>
void define_from_integers() {
  (define_conversion<f32, From>("rn.", [](From x) { return f32(x); }), ...);
  (define_conversion<f64, From>("rn.", [](From x) { return f64(x); }), ...);
}

template <class... From>
void define_halves_from_integers() {
  (define_conversion<f16, From>("rn.", [](From x) { return narrowed<f16>(f64(x)); }), ...);
  (define_conversion<bf16, From>("rn.", [](From x) { return narrowed<bf16>(f64(x)); }), ...);
}

template <class... To>
void define_between_integers_of() {
  (define_between_integers<To, PTX_INTEGERS>(), ...);
}

}  // namespace

void define_conversions() {
  define_between_integers_of<PTX_INTEGERS>();
  define_to_integers<Nearest>();
  define_to_integers<Truncated>();
  define_to_integers<Down>();
  define_to_integers<Up>();
  define_from_integers<PTX_INTEGERS>();
  define_halves_from_integers<u8, u16, u32, s8, s16, s32>();
  define_directed<u8, u16, u32, s8, s16, s32, f64>();
  define("cvt.f32.f16", [](f16 x) { return with_nan(to_float(x)); });
  define("cvt.f32.bf16", [](bf16 x) { return with_nan(to_float(x)); });
  define("cvt.f64.f16", [](f16 x) { return f64(to_float(x)); });
  define("cvt.f64.bf16", [](bf16 x) { return f64(to_float(x)); });
  define("cvt.f64.f32", [](f32 x) { return f64(x); });
  define("cvt.rn.f32.f64", [](f64 x) { return with_nan(f32(x)); });
  define("cvt.rn.f16.f32", [](f32 x) { return to_half(x); });
  define("cvt.rn.f16.f64", [](f64 x) { return narrowed<f16>(x); });
  define("cvt.rn.bf16.f32", [](f32 x) { return to_bfloat(x); });
  // The first operand is the upper half.
  define("cvt.rn.f16x2.f32", [](f32 high, f32 low) { return Two<f16>{to_half(low), to_half(high)}; });
  define("cvt.rn.bf16x2.f32", [](f32 high, f32 low) { return Two<bf16>{to_bfloat(low), to_bfloat(high)}; });
}

}  // namespace ptx
