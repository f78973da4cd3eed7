// Load and store of float, half and bfloat16 on the host. One value at a time; cpu/lanes.h and cuda/device.h
// convert many.
#pragma once

#include <cstdint>
#include <cstring>

namespace iet {

enum class DType : int32_t { float32 = 0, float16 = 1, bfloat16 = 2 };

namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// For each type: `load` widens exactly; `store` rounds once, to nearest even, and keeps NaN.
struct Float32 {
  using Storage = float;
  static constexpr float kLargest = 0x1.fffffep+127f;
  static float load(float stored) { return stored; }
  static float store(float value) { return value; }
};

struct BFloat16 {
  using Storage = uint16_t;
  static constexpr float kLargest = 0x1.fep+127f;
  static float load(uint16_t stored) { return bits_to_float(static_cast<uint32_t>(stored) << 16); }
  static uint16_t store(float value) {
    const uint32_t bits = float_to_bits(value);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = ((bits >> 16) & 0x8000u) | 0x7FC0u;
    return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
};

struct Float16 {
  using Storage = uint16_t;
  static constexpr float kLargest = 65504.0f;
  static float load(uint16_t stored) {
    // Shift exponent and fraction into place, then scale by 2^112: exact for normal and subnormal numbers.
    const uint32_t magnitude = static_cast<uint32_t>(stored & 0x7FFFu) << 13;
    const uint32_t sign = static_cast<uint32_t>(stored & 0x8000u) << 16;
    const uint32_t finite = float_to_bits(bits_to_float(magnitude) * 0x1p112f);
    return bits_to_float(sign | ((stored & 0x7C00u) == 0x7C00u ? magnitude | 0x7F800000u : finite));
  }
  static uint16_t store(float value) {
    const uint32_t bits = float_to_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    // Subnormal results: adding 0.5 aligns the fraction at 2^-24 and rounds it to nearest even.
    const uint32_t subnormal = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    // 65520 and above round to infinity; a NaN becomes the quiet one.
    const uint32_t large = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    return static_cast<uint16_t>(sign | (magnitude >= 0x477FF000u ? large : finite));
  }
};

}  // namespace
}  // namespace iet
