// Vector operations of the loops, implemented once per instruction set.
//
// An instruction set is: U16, a register of kLanes 16-bit lanes; I32 and F32, of half as many 32-bit lanes; and
// the functions below. The digits (left, right) of a column travel as a pair in one 32-bit lane. Every float
// operation is rounded by itself, as in keyed.h. IET_PORTABLE builds the implementation for other processors.
#pragma once

#include <cstdint>
#include <cstring>

#if (defined(__SSE2__) || defined(_M_X64)) && !defined(IET_PORTABLE)
#define IET_SSE2
#include <immintrin.h>
#endif

#include "../keyed.h"
#include "../numeric.h"

namespace iet {
namespace {

#if defined(__AVX512BW__) && !defined(IET_PORTABLE)

constexpr int kLanes = 32;
using U16 = __m512i;
using I32 = __m512i;
using F32 = __m512;

inline U16 load16(const uint16_t* from) { return _mm512_loadu_si512(from); }
inline U16 set16(uint16_t x) { return _mm512_set1_epi16(static_cast<short>(x)); }
inline U16 add16(U16 x, U16 y) { return _mm512_add_epi16(x, y); }
inline U16 low_product(U16 x, U16 y) { return _mm512_mullo_epi16(x, y); }
inline U16 high_product(U16 x, U16 y) { return _mm512_mulhi_epu16(x, y); }
template <int kBits>
inline U16 fold(U16 x) {
  return _mm512_xor_si512(x, _mm512_srli_epi16(x, kBits));
}
inline U16 add_mod(U16 x, U16 y, U16 m) {
  const U16 sum = _mm512_add_epi16(x, y);
  return _mm512_min_epu16(sum, _mm512_sub_epi16(sum, m));
}

inline void store_pairs(uint32_t* to, U16 left, U16 right) {
  const I32 low = _mm512_unpacklo_epi16(left, right), high = _mm512_unpackhi_epi16(left, right);
  _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high));
  _mm512_storeu_si512(to + 16,
                      _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high));
}

inline I32 load32(const uint32_t* from) { return _mm512_loadu_si512(from); }
inline I32 set32(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
inline I32 add32(I32 x, I32 y) { return _mm512_add_epi32(x, y); }
inline I32 sub32(I32 x, I32 y) { return _mm512_sub_epi32(x, y); }
inline I32 low_product32(I32 x, I32 y) { return _mm512_mullo_epi32(x, y); }
inline I32 and32(I32 x, I32 y) { return _mm512_and_si512(x, y); }
inline I32 xor32(I32 x, I32 y) { return _mm512_xor_si512(x, y); }
inline I32 or32(I32 x, I32 y) { return _mm512_or_si512(x, y); }
inline I32 pair_products(I32 pairs, I32 factors) { return _mm512_madd_epi16(pairs, factors); }
template <int kBits>
inline I32 shift_left(I32 x) {
  return _mm512_slli_epi32(x, kBits);
}
template <int kBits>
inline I32 shift_right(I32 x) {  // unsigned
  return _mm512_srli_epi32(x, kBits);
}
inline void store32(uint32_t* to, I32 x) { _mm512_storeu_si512(to, x); }
inline I32 min32(I32 x, I32 y) { return _mm512_min_epu32(x, y); }  // unsigned
inline I32 or_equal(I32 x, I32 y, I32 z) {                         // x | (y == z ? ~0 : 0)
  return _mm512_mask_mov_epi32(x, _mm512_cmpeq_epi32_mask(y, z), _mm512_set1_epi32(-1));
}
inline I32 choose(I32 mask, I32 x, I32 y) { return _mm512_ternarylogic_epi32(mask, x, y, 0xCA); }
inline I32 xor_and(I32 x, I32 y, I32 z) { return _mm512_ternarylogic_epi32(x, y, z, 0x78); }  // x ^ (y & z)

inline F32 set_float(float x) { return _mm512_set1_ps(x); }
inline F32 to_float(I32 x) { return _mm512_cvtepi32_ps(x); }
inline I32 to_int(F32 x) { return _mm512_cvttps_epi32(x); }
inline F32 as_float(I32 x) { return _mm512_castsi512_ps(x); }
inline I32 as_bits(F32 x) { return _mm512_castps_si512(x); }
inline F32 fmul(F32 x, F32 y) { return _mm512_mul_ps(x, y); }
inline F32 fadd(F32 x, F32 y) { return _mm512_add_ps(x, y); }
// 1/4 - |x|·2^-32; the product is exact, so a fused operation gives the same result.
inline F32 quarter_less(F32 x) {
  return _mm512_fnmadd_ps(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-32f), _mm512_set1_ps(0.25f));
}
inline I32 nan_mask(F32 x) { return _mm512_movm_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)); }

inline F32 load_floats(const float* from) { return _mm512_loadu_ps(from); }
inline void store_floats(float* to, F32 x) { _mm512_storeu_ps(to, x); }
inline F32 load_halves(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void store_halves(uint16_t* to, F32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline I32 widen16(const uint16_t* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline void narrow16(uint16_t* to, I32 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
}

#elif defined(__AVX2__) && !defined(IET_PORTABLE)

constexpr int kLanes = 16;
using U16 = __m256i;
using I32 = __m256i;
using F32 = __m256;

inline U16 load16(const uint16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline U16 set16(uint16_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
inline U16 add16(U16 x, U16 y) { return _mm256_add_epi16(x, y); }
inline U16 low_product(U16 x, U16 y) { return _mm256_mullo_epi16(x, y); }
inline U16 high_product(U16 x, U16 y) { return _mm256_mulhi_epu16(x, y); }
template <int kBits>
inline U16 fold(U16 x) {
  return _mm256_xor_si256(x, _mm256_srli_epi16(x, kBits));
}
inline U16 add_mod(U16 x, U16 y, U16 m) {
  const U16 sum = _mm256_add_epi16(x, y);
  return _mm256_min_epu16(sum, _mm256_sub_epi16(sum, m));
}
inline void store_pairs(uint32_t* to, U16 left, U16 right) {
  const I32 low = _mm256_unpacklo_epi16(left, right), high = _mm256_unpackhi_epi16(left, right);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute2x128_si256(low, high, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), _mm256_permute2x128_si256(low, high, 0x31));
}

inline I32 load32(const uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline I32 set32(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
inline I32 add32(I32 x, I32 y) { return _mm256_add_epi32(x, y); }
inline I32 sub32(I32 x, I32 y) { return _mm256_sub_epi32(x, y); }
inline I32 low_product32(I32 x, I32 y) { return _mm256_mullo_epi32(x, y); }
inline I32 and32(I32 x, I32 y) { return _mm256_and_si256(x, y); }
inline I32 xor32(I32 x, I32 y) { return _mm256_xor_si256(x, y); }
inline I32 or32(I32 x, I32 y) { return _mm256_or_si256(x, y); }
inline I32 pair_products(I32 pairs, I32 factors) { return _mm256_madd_epi16(pairs, factors); }
template <int kBits>
inline I32 shift_left(I32 x) {
  return _mm256_slli_epi32(x, kBits);
}
template <int kBits>
inline I32 shift_right(I32 x) {
  return _mm256_srli_epi32(x, kBits);
}
inline void store32(uint32_t* to, I32 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
inline I32 min32(I32 x, I32 y) { return _mm256_min_epu32(x, y); }
inline I32 or_equal(I32 x, I32 y, I32 z) { return _mm256_or_si256(x, _mm256_cmpeq_epi32(y, z)); }
inline I32 choose(I32 mask, I32 x, I32 y) { return xor32(and32(xor32(x, y), mask), y); }
inline I32 xor_and(I32 x, I32 y, I32 z) { return xor32(x, and32(y, z)); }

inline F32 set_float(float x) { return _mm256_set1_ps(x); }
inline F32 to_float(I32 x) { return _mm256_cvtepi32_ps(x); }
inline I32 to_int(F32 x) { return _mm256_cvttps_epi32(x); }
inline F32 as_float(I32 x) { return _mm256_castsi256_ps(x); }
inline I32 as_bits(F32 x) { return _mm256_castps_si256(x); }
inline F32 fmul(F32 x, F32 y) { return _mm256_mul_ps(x, y); }
inline F32 fadd(F32 x, F32 y) { return _mm256_add_ps(x, y); }
inline F32 quarter_less(F32 x) {
  const F32 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  return _mm256_fnmadd_ps(magnitude, _mm256_set1_ps(0x1p-32f), _mm256_set1_ps(0.25f));
}
inline I32 nan_mask(F32 x) { return as_bits(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

inline F32 load_floats(const float* from) { return _mm256_loadu_ps(from); }
inline void store_floats(float* to, F32 x) { _mm256_storeu_ps(to, x); }
inline F32 load_halves(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void store_halves(uint16_t* to, F32 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline I32 widen16(const uint16_t* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline void narrow16(uint16_t* to, I32 x) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}

#else

#if defined(IET_SSE2)

constexpr int kLanes = 8;
using U16 = __m128i;
using I32 = __m128i;
using F32 = __m128;

inline U16 load16(const uint16_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline U16 set16(uint16_t x) { return _mm_set1_epi16(static_cast<short>(x)); }
inline U16 add16(U16 x, U16 y) { return _mm_add_epi16(x, y); }
inline U16 low_product(U16 x, U16 y) { return _mm_mullo_epi16(x, y); }
inline U16 high_product(U16 x, U16 y) { return _mm_mulhi_epu16(x, y); }
template <int kBits>
inline U16 fold(U16 x) {
  return _mm_xor_si128(x, _mm_srli_epi16(x, kBits));
}
inline U16 add_mod(U16 x, U16 y, U16 m) {  // digits are below 2^15: signed comparisons will do
  const U16 sum = _mm_add_epi16(x, y);
  return _mm_sub_epi16(sum, _mm_andnot_si128(_mm_cmpgt_epi16(m, sum), m));
}
inline void store_pairs(uint32_t* to, U16 left, U16 right) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi16(left, right));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4), _mm_unpackhi_epi16(left, right));
}

inline I32 load32(const uint32_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline I32 set32(uint32_t x) { return _mm_set1_epi32(static_cast<int>(x)); }
inline I32 add32(I32 x, I32 y) { return _mm_add_epi32(x, y); }
inline I32 sub32(I32 x, I32 y) { return _mm_sub_epi32(x, y); }
inline I32 low_product32(I32 x, I32 y) {  // from two products of every other lane
  const I32 even = _mm_mul_epu32(x, y), odd = _mm_mul_epu32(_mm_srli_si128(x, 4), _mm_srli_si128(y, 4));
  return _mm_unpacklo_epi32(_mm_shuffle_epi32(even, 0x08), _mm_shuffle_epi32(odd, 0x08));
}
inline I32 and32(I32 x, I32 y) { return _mm_and_si128(x, y); }
inline I32 xor32(I32 x, I32 y) { return _mm_xor_si128(x, y); }
inline I32 or32(I32 x, I32 y) { return _mm_or_si128(x, y); }
inline I32 pair_products(I32 pairs, I32 factors) { return _mm_madd_epi16(pairs, factors); }
template <int kBits>
inline I32 shift_left(I32 x) {
  return _mm_slli_epi32(x, kBits);
}
template <int kBits>
inline I32 shift_right(I32 x) {
  return _mm_srli_epi32(x, kBits);
}
inline I32 where_less(I32 x, I32 y, I32 then, I32 otherwise) {  // x < y ? then : otherwise, signed
  const I32 less = _mm_cmpgt_epi32(y, x);
  return _mm_or_si128(_mm_and_si128(less, then), _mm_andnot_si128(less, otherwise));
}
inline void store32(uint32_t* to, I32 x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
inline I32 choose(I32 mask, I32 x, I32 y) { return xor32(and32(xor32(x, y), mask), y); }
inline I32 min32(I32 x, I32 y) {
  const I32 sign = _mm_set1_epi32(static_cast<int>(0x80000000u));
  return choose(_mm_cmpgt_epi32(_mm_xor_si128(x, sign), _mm_xor_si128(y, sign)), y, x);
}
inline I32 or_equal(I32 x, I32 y, I32 z) { return _mm_or_si128(x, _mm_cmpeq_epi32(y, z)); }
inline I32 xor_and(I32 x, I32 y, I32 z) { return xor32(x, and32(y, z)); }

inline F32 set_float(float x) { return _mm_set1_ps(x); }
inline F32 to_float(I32 x) { return _mm_cvtepi32_ps(x); }
inline I32 to_int(F32 x) { return _mm_cvttps_epi32(x); }
inline F32 as_float(I32 x) { return _mm_castsi128_ps(x); }
inline I32 as_bits(F32 x) { return _mm_castps_si128(x); }
inline F32 fmul(F32 x, F32 y) { return _mm_mul_ps(x, y); }
inline F32 fadd(F32 x, F32 y) { return _mm_add_ps(x, y); }
inline F32 quarter_less(F32 x) {
  const F32 magnitude = _mm_andnot_ps(_mm_set1_ps(-0.0f), x);
  return _mm_sub_ps(_mm_set1_ps(0.25f), _mm_mul_ps(magnitude, _mm_set1_ps(0x1p-32f)));
}
inline I32 nan_mask(F32 x) { return as_bits(_mm_cmpunord_ps(x, x)); }

inline F32 load_floats(const float* from) { return _mm_loadu_ps(from); }
inline void store_floats(float* to, F32 x) { _mm_storeu_ps(to, x); }
inline I32 widen16(const uint16_t* from) {
  return _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), _mm_setzero_si128());
}
inline void narrow16(uint16_t* to, I32 x) {
  const I32 extended = _mm_srai_epi32(_mm_slli_epi32(x, 16), 16);  // SSE2 packs signed numbers only
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(extended, extended));
}

#else  // any other processor: arrays, which its compiler may vectorise

constexpr int kLanes = 8;
struct U16 {
  uint16_t at[8];
};
struct I32 {
  uint32_t at[4];
};
struct F32 {
  float at[4];
};

template <class V, class Op>
inline V map_lanes(Op op) {
  V result;
  for (unsigned i = 0; i < sizeof result.at / sizeof result.at[0]; ++i) result.at[i] = op(i);
  return result;
}

inline U16 load16(const uint16_t* from) {
  return map_lanes<U16>([=](unsigned i) { return from[i]; });
}
inline U16 set16(uint16_t x) {
  return map_lanes<U16>([=](unsigned) { return x; });
}
inline U16 add16(U16 x, U16 y) {
  return map_lanes<U16>([=](unsigned i) { return static_cast<uint16_t>(x.at[i] + y.at[i]); });
}
inline U16 low_product(U16 x, U16 y) {
  return map_lanes<U16>(
      [=](unsigned i) { return static_cast<uint16_t>(static_cast<uint32_t>(x.at[i]) * y.at[i]); });
}
inline U16 high_product(U16 x, U16 y) {
  return map_lanes<U16>([=](unsigned i) { return high_product(x.at[i], y.at[i]); });
}
template <int kBits>
inline U16 fold(U16 x) {
  return map_lanes<U16>([=](unsigned i) { return static_cast<uint16_t>(x.at[i] ^ (x.at[i] >> kBits)); });
}
inline U16 add_mod(U16 x, U16 y, U16 m) {
  return map_lanes<U16>([=](unsigned i) { return add_mod(x.at[i], y.at[i], m.at[i]); });
}
inline void store_pairs(uint32_t* to, U16 left, U16 right) {
  for (int i = 0; i < 8; ++i) to[i] = left.at[i] | static_cast<uint32_t>(right.at[i]) << 16;
}

inline I32 load32(const uint32_t* from) {
  return map_lanes<I32>([=](unsigned i) { return from[i]; });
}
inline I32 set32(uint32_t x) {
  return map_lanes<I32>([=](unsigned) { return x; });
}
inline I32 add32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] + y.at[i]; });
}
inline I32 sub32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] - y.at[i]; });
}
inline I32 low_product32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] * y.at[i]; });
}
inline I32 and32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] & y.at[i]; });
}
inline I32 xor32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] ^ y.at[i]; });
}
inline I32 or32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] | y.at[i]; });
}
inline I32 pair_products(I32 pairs, I32 factors) {
  return map_lanes<I32>([=](unsigned i) {
    const uint32_t x = pairs.at[i], y = factors.at[i];
    const auto low = [](uint32_t z) { return static_cast<int32_t>(static_cast<int16_t>(z & 0xFFFF)); };
    return static_cast<uint32_t>(low(x) * low(y)) + static_cast<uint32_t>(low(x >> 16) * low(y >> 16));
  });
}
template <int kBits>
inline I32 shift_left(I32 x) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] << kBits; });
}
template <int kBits>
inline I32 shift_right(I32 x) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] >> kBits; });
}
inline I32 where_less(I32 x, I32 y, I32 then, I32 otherwise) {
  return map_lanes<I32>([=](unsigned i) {
    return static_cast<int32_t>(x.at[i]) < static_cast<int32_t>(y.at[i]) ? then.at[i] : otherwise.at[i];
  });
}
inline void store32(uint32_t* to, I32 x) {
  for (int i = 0; i < kLanes / 2; ++i) to[i] = x.at[i];
}
inline I32 min32(I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] < y.at[i] ? x.at[i] : y.at[i]; });
}
inline I32 or_equal(I32 x, I32 y, I32 z) {
  return map_lanes<I32>([=](unsigned i) { return y.at[i] == z.at[i] ? ~0u : x.at[i]; });
}
inline I32 choose(I32 mask, I32 x, I32 y) {
  return map_lanes<I32>([=](unsigned i) { return ((x.at[i] ^ y.at[i]) & mask.at[i]) ^ y.at[i]; });
}
inline I32 xor_and(I32 x, I32 y, I32 z) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] ^ (y.at[i] & z.at[i]); });
}

inline F32 set_float(float x) {
  return map_lanes<F32>([=](unsigned) { return x; });
}
inline F32 to_float(I32 x) {
  return map_lanes<F32>([=](unsigned i) { return static_cast<float>(static_cast<int32_t>(x.at[i])); });
}
inline I32 to_int(F32 x) {
  return map_lanes<I32>([=](unsigned i) { return static_cast<uint32_t>(static_cast<int32_t>(x.at[i])); });
}
inline F32 as_float(I32 x) {
  return map_lanes<F32>([=](unsigned i) { return bits_to_float(x.at[i]); });
}
inline I32 as_bits(F32 x) {
  return map_lanes<I32>([=](unsigned i) { return float_to_bits(x.at[i]); });
}
inline F32 fmul(F32 x, F32 y) {
  return map_lanes<F32>([=](unsigned i) { return fmul(x.at[i], y.at[i]); });
}
inline F32 fadd(F32 x, F32 y) {
  return map_lanes<F32>([=](unsigned i) { return fadd(x.at[i], y.at[i]); });
}
inline F32 quarter_less(F32 x) {
  return map_lanes<F32>([=](unsigned i) { return fadd(0.25f, -fmul(magnitude(x.at[i]), 0x1p-32f)); });
}
inline I32 nan_mask(F32 x) {
  return map_lanes<I32>([=](unsigned i) { return x.at[i] != x.at[i] ? ~0u : 0u; });
}

inline F32 load_floats(const float* from) {
  return map_lanes<F32>([=](unsigned i) { return from[i]; });
}
inline void store_floats(float* to, F32 x) { std::memcpy(to, x.at, sizeof x.at); }
inline I32 widen16(const uint16_t* from) {
  return map_lanes<I32>([=](unsigned i) { return static_cast<uint32_t>(from[i]); });
}
inline void narrow16(uint16_t* to, I32 x) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint16_t>(x.at[i]);
}

#endif

// Without instructions for half: the integer arithmetic of numeric.h in map_lanes lane.
inline F32 load_halves(const uint16_t* from) {
  const I32 stored = widen16(from);
  const I32 size = shift_left<13>(and32(stored, set32(0x7FFF)));
  const I32 sign = shift_left<16>(and32(stored, set32(0x8000)));
  const I32 finite = as_bits(fmul(as_float(size), set_float(0x1p112f)));
  return as_float(or32(sign, where_less(size, set32(0x0F800000), finite, or32(size, set32(0x7F800000)))));
}

inline void store_halves(uint16_t* to, F32 x) {
  const I32 bits = as_bits(x), size = and32(bits, set32(0x7FFFFFFF));
  const I32 subnormal = add32(as_bits(fadd(as_float(size), set_float(0.5f))), set32(0u - 0x3F000000u));
  const I32 even = and32(shift_right<13>(size), set32(1));
  const I32 normal = shift_right<13>(add32(add32(size, set32(0xFFFu - 0x38000000u)), even));
  const I32 finite = where_less(size, set32(0x38800000), subnormal, normal);
  const I32 large = where_less(set32(0x7F800000), size, set32(0x7E00), set32(0x7C00));
  const I32 rounded = where_less(size, set32(0x477FF000), finite, large);
  narrow16(to, or32(and32(shift_right<16>(bits), set32(0x8000)), rounded));
}

#endif

}  // namespace
}  // namespace iet
