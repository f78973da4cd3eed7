// Conversions between widths of floating point, each rounded once. NaN has the bits of the device.
#pragma once
#include <cmath>

#include "lanes.h"

namespace ptx {

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The device has a single NaN of float32, and propagates those of float64.
inline f32 with_nan(f32 value) { return value == value ? value : bits_as<f32>(u32(0x7FFFFFFF)); }
inline f64 with_nan(f64 value) { return value; }

inline f32 to_float(f32 value) { return value; }
inline f32 to_float(bf16 value) { return bits_as<f32>(u32(value.bits) << 16); }
inline f32 to_float(f16 value) {
  const u32 sign = u32(value.bits & 0x8000) << 16, magnitude = value.bits & 0x7FFF;
  // Scale by a power of two, which is exact for subnormal numbers too.
  const f32 scaled = bits_as<f32>(magnitude << 13) * 0x1p112F;
  const u32 finite = bits_as<u32>(scaled), other = magnitude << 13 | 0x7F800000;
  return bits_as<f32>(sign | (magnitude < 0x7C00 ? finite : other));
}

// Round to odd. A second rounding, to fewer bits, then gives the result of a single rounding.
inline f32 narrowed_to_odd(f64 value) {
  const f32 single = f32(value);
  const u32 bits = bits_as<u32>(single);
  const f64 back = single;
  if (back == value || value - value != 0 || (bits & 1) != 0) return single;
  return bits_as<f32>(std::fabs(back) < std::fabs(value) ? bits + 1 : bits - 1);
}

// x + y rounded to odd in float64.
inline f64 exact_sum(f64 x, f64 y) {
  const f64 total = x + y, back = total - x;
  const f64 error = (x - (total - back)) + (y - back);
  const u64 bits = bits_as<u64>(total);
  if (error == 0 || total - total != 0 || (bits & 1) != 0) return total;
  return bits_as<f64>((error > 0) == (total > 0) ? bits + 1 : bits - 1);
}

inline bf16 to_bfloat(f32 value) {
  const u32 bits = bits_as<u32>(value);
  const u32 rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return {u16(value == value ? rounded : 0x7FFF)};
}

inline f16 to_half(f32 value) {
  const u32 bits = bits_as<u32>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  // Below 2^-14 its last bit is 2^-24: that of a float32 from 0.5 on.
  const u32 small = bits_as<u32>(bits_as<f32>(magnitude) + 0.5F) - 0x3F000000;
  const u32 normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - (112U << 23)) >> 13;
  const u32 finite = magnitude < 0x38800000 ? small : normal < 0x7C00 ? normal : 0x7C00;
  return {u16(magnitude > 0x7F800000 ? 0x7FFF : sign | finite)};
}

template <class T>
T narrowed(f64 value);  // exact, or rounded to odd
template <>
inline f32 narrowed<f32>(f64 value) {
  return with_nan(f32(value));
}
template <>
inline bf16 narrowed<bf16>(f64 value) {
  return to_bfloat(narrowed_to_odd(value));
}
template <>
inline f16 narrowed<f16>(f64 value) {
  return to_half(narrowed_to_odd(value));
}

}  // namespace ptx
