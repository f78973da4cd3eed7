// The scheme: seed, permutation and perturbation. One definition for host and device.
//
// iet/native/reference.py is a readable implementation of the same functions; the known answers in
// tests/vectors/ test both. docs/internals/scheme.md is the specification. Every floating-point operation is
// rounded to nearest by itself: compile the host with -ffp-contract=off.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define IET_HD __host__ __device__ __forceinline__
#elif defined(_MSC_VER)
#define IET_HD inline
#else
#define IET_HD inline __attribute__((always_inline))
#endif

namespace iet {

constexpr uint32_t kSchemeVersion = 1;

// `Family.code` of iet/marks/families.py. Number 1 belonged to a family of a draft.
enum class Family : uint32_t { fourier = 0, gumbel = 2 };
constexpr Family kFamilies[] = {Family::fourier, Family::gumbel};

// The a x b grid on which [0, V) is permuted, b a multiple of 8. a*b barely exceeds V.
struct Grid {
  uint32_t vocab;
  uint16_t a, b;
};

// Internal linkage from here on: each instruction set compiles its own copy, which the linker must not merge.
namespace {

// ---------------------------------------------------------------- seed: h_pi(a, c) = SipHash-2-4

IET_HD uint64_t rotl(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

struct SipHash {
  uint64_t v0, v1, v2, v3;

  IET_HD SipHash(uint64_t k0, uint64_t k1)
      : v0(k0 ^ 0x736f6d6570736575ull),
        v1(k1 ^ 0x646f72616e646f6dull),
        v2(k0 ^ 0x6c7967656e657261ull),
        v3(k1 ^ 0x7465646279746573ull) {}
  IET_HD void round() {
    v0 += v1, v1 = rotl(v1, 13), v1 ^= v0, v0 = rotl(v0, 32);
    v2 += v3, v3 = rotl(v3, 16), v3 ^= v2;
    v0 += v3, v3 = rotl(v3, 21), v3 ^= v0;
    v2 += v1, v1 = rotl(v1, 17), v1 ^= v2, v2 = rotl(v2, 32);
  }
  IET_HD void absorb(uint64_t block) {
    v3 ^= block;
    round(), round();
    v0 ^= block;
  }
  IET_HD uint64_t finish() {
    v2 ^= 0xff;
    round(), round(), round(), round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

// A context of `context_len` ids fills context_len/2 + 1 blocks; the last one contains its length in bytes.
IET_HD uint64_t context_block(const uint32_t* ids, uint32_t context_len, uint32_t block) {
  const uint32_t i = 2 * block;
  uint64_t value = i < context_len ? ids[i] : 0;
  if (i + 1 < context_len) return value | static_cast<uint64_t>(ids[i + 1]) << 32;
  return value | static_cast<uint64_t>(context_len * 4) << 56;
}

// Additional bits of the last block for a repeated context: its number of earlier occurrences in the
// sequence, as 3 bytes after the ids. They use empty space, so the number of blocks stays the same.
IET_HD uint64_t count_bits(uint32_t context_len, uint32_t count) {
  if (count == 0) return 0;
  return static_cast<uint64_t>(count & 0xFFFFFFu) << (context_len & 1 ? 32 : 0) | 3ull << 56;
}

IET_HD uint64_t context_seed(const uint64_t* subkey, const uint32_t* ids, uint32_t context_len,
                             uint32_t count) {
  SipHash hash(subkey[0], subkey[1]);
  for (uint32_t block = 0; block < context_len / 2; ++block)
    hash.absorb(context_block(ids, context_len, block));
  hash.absorb(context_block(ids, context_len, context_len / 2) | count_bits(context_len, count));
  return hash.finish();
}

// ---------------------------------------------------------------- permute: P(k_pi, v)

IET_HD uint16_t high_product(uint16_t h, uint16_t m) {
  return static_cast<uint16_t>((static_cast<uint32_t>(h) * m) >> 16);
}

IET_HD uint16_t add_mod(uint16_t x, uint16_t y, uint16_t m) {
  const uint16_t sum = static_cast<uint16_t>(x + y);  // x, y < m <= 2^15: no wrap
  const uint16_t less = static_cast<uint16_t>(sum - m);
  return sum < less ? sum : less;  // an unsigned minimum: `less` wraps to a large value where sum < m
}

IET_HD uint16_t bmix(uint16_t x, uint16_t k, uint16_t m) {
  uint16_t h = static_cast<uint16_t>(x * 0x9E37u + k);
  h = static_cast<uint16_t>(h ^ (h >> 8));
  h = static_cast<uint16_t>(h * 0x88B5u);
  h = static_cast<uint16_t>(h ^ (h >> 7));
  h = static_cast<uint16_t>(h * 0xDB2Du);
  return high_product(h, m);
}

IET_HD uint16_t amix(uint16_t x, uint16_t k, uint16_t m) {
  uint16_t h = static_cast<uint16_t>(x * 0x9E37u + k);
  h = static_cast<uint16_t>(h ^ (h >> 7));
  h = static_cast<uint16_t>(h * 0x2C1Bu);
  return high_product(h, m);
}

struct RoundKeys {
  uint16_t k1, k2, k3, k4;

  IET_HD explicit RoundKeys(uint64_t seed)
      : k1(static_cast<uint16_t>(seed)),
        k2(static_cast<uint16_t>(seed >> 16)),
        k3(static_cast<uint16_t>(seed >> 32)),
        k4(static_cast<uint16_t>(seed >> 48)) {}
};

// Rounds 3 and 4, which every path shares; rounds 1 and 2 can be tabulated over a row of the grid.
IET_HD void last_rounds(uint16_t& left, uint16_t& right, uint16_t k3, uint16_t k4, const Grid& grid) {
  right = add_mod(right, amix(left, k3, grid.b), grid.b);
  left = add_mod(left, amix(right, k4, grid.a), grid.a);
}

IET_HD void rounds(uint16_t& left, uint16_t& right, const RoundKeys& keys, const Grid& grid) {
  right = add_mod(right, bmix(left, keys.k1, grid.b), grid.b);
  left = add_mod(left, bmix(right, keys.k2, grid.a), grid.a);
  last_rounds(left, right, keys.k3, keys.k4, grid);
}

// E: a bijection of [0, a*b).
IET_HD uint32_t mix(uint32_t v, const RoundKeys& keys, const Grid& grid) {
  uint16_t left = static_cast<uint16_t>(v / grid.b), right = static_cast<uint16_t>(v % grid.b);
  rounds(left, right, keys, grid);
  return static_cast<uint32_t>(left) * grid.b + right;
}

IET_HD uint32_t unmix(uint32_t r, const RoundKeys& keys, const Grid& grid) {
  uint16_t left = static_cast<uint16_t>(r / grid.b), right = static_cast<uint16_t>(r % grid.b);
  const auto sub_mod = [](uint16_t x, uint16_t y, uint16_t m) {
    return static_cast<uint16_t>(x >= y ? x - y : x + m - y);
  };
  left = sub_mod(left, amix(right, keys.k4, grid.a), grid.a);
  right = sub_mod(right, amix(left, keys.k3, grid.b), grid.b);
  left = sub_mod(left, bmix(right, keys.k2, grid.a), grid.a);
  right = sub_mod(right, bmix(left, keys.k1, grid.b), grid.b);
  return static_cast<uint32_t>(left) * grid.b + right;
}

// P: E is repeated until its result is in [0, V). A bijection of [0, V).
IET_HD uint32_t permute(uint32_t v, const RoundKeys& keys, const Grid& grid) {
  uint32_t r = mix(v, keys, grid);
  while (r >= grid.vocab) r = mix(r, keys, grid);
  return r;
}

// ---------------------------------------------------------------- perturb: phi(r)

#if defined(__CUDA_ARCH__)
IET_HD float fmul(float x, float y) { return __fmul_rn(x, y); }
IET_HD float fadd(float x, float y) { return __fadd_rn(x, y); }
#else
IET_HD float fmul(float x, float y) { return x * y; }
IET_HD float fadd(float x, float y) { return x + y; }
#endif
#if defined(__GNUC__)
IET_HD float magnitude(float x) { return __builtin_fabsf(x); }  // one instruction; the ternary is three
#else
IET_HD float magnitude(float x) { return x < 0 ? -x : x; }
#endif

// 0.25 - |x| 2^-32. The product is exact, so a fused operation rounds alike.
#if defined(__CUDA_ARCH__)
IET_HD float quarter_less(float x) { return __fmaf_rn(magnitude(x), -0x1p-32f, 0.25f); }
#else
IET_HD float quarter_less(float x) { return fadd(0.25f, -magnitude(fmul(x, 0x1p-32f))); }
#endif

IET_HD uint32_t phase_step(uint32_t k_p, uint32_t vocab) {
  return static_cast<uint32_t>(((static_cast<uint64_t>(k_p) << 32) + vocab / 2) / vocab);
}

// sin(2 pi y) = y·(c0 + c1·z + c2·z² + c3·z³), z = y², for |y| <= 1/4; error 7.4e-7.
constexpr float kSine0 = 0x1.921f5cp+2f, kSine1 = -0x1.4ab278p+5f, kSine2 = 0x1.455cf2p+6f,
                kSine3 = -0x1.1bf944p+6f;

// cos(2 pi r k_p / V): a 32-bit phase, then an odd polynomial for the sine of its distance to a quarter turn.
IET_HD float phi_fourier(uint32_t r, uint32_t step) {
  const float x = static_cast<float>(static_cast<int32_t>(r * step));  // 2^32 of a turn
  const float y = quarter_less(x);
  const float z = fmul(y, y);
  float sum = fadd(fmul(kSine3, z), kSine2);
  sum = fadd(fmul(sum, z), kSine1);
  sum = fadd(fmul(sum, z), kSine0);
  return fmul(sum, y);
}

// ---------------------------------------------------------------- perturb: Gumbel noise

// Family gumbel has no permutation: a hash of (seed, id), with both halves of the seed, maps each id to a
// uniform variate u = ((h >> 9) + 0.5)·2^-23.
//
//   h = v·0x9E3779B1 + low;  h ^= h>>16;  h = h·0x7FEB352D + high;  h ^= h>>15;  h *= 0x846CA68B;  h ^= h>>16
//
// noise_word is a separate function, because it needs only one addition for consecutive ids.
constexpr uint32_t kNoiseStep = 0x9E3779B1u, kNoiseMix1 = 0x7FEB352Du, kNoiseMix2 = 0x846CA68Bu;

IET_HD uint32_t noise_word(uint64_t seed, uint32_t v) { return v * kNoiseStep + static_cast<uint32_t>(seed); }

IET_HD uint32_t noise_hash(uint32_t word, uint32_t high) {
  uint32_t h = word;
  h = (h ^ h >> 16) * kNoiseMix1 + high;
  h = (h ^ h >> 15) * kNoiseMix2;
  return h ^ h >> 16;
}

// u·2^24, an odd number below 2^24, so that u and 1 - u are exact and neither is 0.
IET_HD uint32_t uniform_numerator(uint32_t h) { return h >> 8 | 1; }

#if defined(__CUDA_ARCH__)
IET_HD uint32_t bits_of(float x) { return __float_as_uint(x); }
IET_HD float float_of(uint32_t bits) { return __uint_as_float(bits); }
#elif defined(_MSC_VER)
IET_HD uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
IET_HD float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }
#else
IET_HD uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
IET_HD float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
#endif

// -log(1 + t) = t·(c0 + c1·t + .. + c7·t^7) for 1 + t from sqrt(1/2) to sqrt(2); relative error 1.7e-7.
constexpr float kLog0 = -0x1.fffffep-1f, kLog1 = 0x1.00007ap-1f, kLog2 = -0x1.5559dcp-2f,
                kLog3 = 0x1.ff623ep-3f, kLog4 = -0x1.978e32p-3f, kLog5 = 0x1.614c00p-3f,
                kLog6 = -0x1.4c3d0ap-3f, kLog7 = 0x1.9dfaeap-4f;
constexpr float kMinusLogOf2 = -0x1.62e430p-1f;
// Added to the bits of x, they carry into the exponent if the significand of x is at least sqrt(2).
constexpr uint32_t kRootHalfBits = 0x3F3504F3u, kLogCarry = 0x3F800000u - kRootHalfBits;

// -log(x) for normal x > 0: x = 2^e·(1 + t). Relative error 2.8e-7 for x of the form u or 1 - u.
IET_HD float minus_log(float x) {
  const uint32_t bits = bits_of(x) + kLogCarry;
  const float e = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float t = fadd(float_of((bits & 0x7FFFFFu) + kRootHalfBits), -1.0f);
  float sum = fadd(fmul(kLog7, t), kLog6);
  sum = fadd(fmul(sum, t), kLog5);
  sum = fadd(fmul(sum, t), kLog4);
  sum = fadd(fmul(sum, t), kLog3);
  sum = fadd(fmul(sum, t), kLog2);
  sum = fadd(fmul(sum, t), kLog1);
  sum = fadd(fmul(sum, t), kLog0);
  return fadd(fmul(sum, t), fmul(e, kMinusLogOf2));
}

// -log(-log u), the noise that is added to a logit: from -2.8116 to 16.6356. Absolute error 1.2e-6.
IET_HD float gumbel_noise(uint32_t numerator) {
  const float u = fmul(static_cast<float>(static_cast<int32_t>(numerator)), 0x1p-24f);
  return minus_log(minus_log(u));
}

// -log(1 - u): the score, from 2^-24 to 16.6356.
IET_HD float gumbel_score(uint32_t numerator) {
  return minus_log(fmul(static_cast<float>(static_cast<int32_t>(0x1000000u - numerator)), 0x1p-24f));
}

// The marked logit and the score: all paths on all backends end in one of these two lines. For gumbel, `phi` is
// the noise or the score above, and kappa is 1.
IET_HD float marked_logit(float logit, float kappa, float phi) { return fadd(logit, fmul(kappa, phi)); }
IET_HD float score(float phi) { return phi; }

// ---------------------------------------------------------------- which positions carry a mark

// An id carries a mark if it is in the vocabulary and neither special nor padding.
IET_HD bool is_marked_id(int64_t id, uint32_t vocab, const int32_t* unmarked, int64_t n_unmarked) {
  if (id < 0 || id >= static_cast<int64_t>(vocab)) return false;
  int64_t low = 0, high = n_unmarked;  // ascending ids
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (unmarked[middle] < id) low = middle + 1;
    else high = middle;
  }
  return low == n_unmarked || unmarked[low] != id;
}

// The same from one bit for each id, set for unmarked ids (null: all are marked). Kernels use it because a
// search would cost more than the hash.
IET_HD bool is_marked_id(int64_t id, uint32_t vocab, const uint32_t* unmarked_bits) {
  if (id < 0 || id >= static_cast<int64_t>(vocab)) return false;
  return unmarked_bits == nullptr || (unmarked_bits[id >> 5] >> (id & 31) & 1) == 0;
}

// Position j is scored if its n-1 preceding ids exist and they and its own id all carry a mark.
template <class Id>
IET_HD bool is_scored(const Id* ids, int64_t j, int64_t n_gram, uint32_t vocab, const uint32_t* unmarked_bits) {
  if (j < n_gram - 1) return false;
  for (int64_t i = j - n_gram + 1; i <= j; ++i)
    if (!is_marked_id(ids[i], vocab, unmarked_bits)) return false;
  return true;
}

// ---------------------------------------------------------------- host only: the grid of a vocabulary

inline Grid make_grid(uint32_t vocab) {
  const auto ceil8 = [](uint64_t x) { return (x + 7) / 8 * 8; };
  uint64_t s = 0;
  while (s * s < vocab) ++s;
  const uint64_t low = ceil8(s * 8 / 10) > 8 ? ceil8(s * 8 / 10) : 8;
  const uint64_t high = ceil8(s * 5 / 4) > 8 ? ceil8(s * 5 / 4) : 8;
  uint64_t best = 0, best_excess = 0, best_distance = 0;
  for (uint64_t b = low; b <= high; b += 8) {
    const uint64_t excess = (vocab + b - 1) / b * b - vocab, distance = b > s ? b - s : s - b;
    if (best == 0 || excess < best_excess || (excess == best_excess && distance < best_distance))
      best = b, best_excess = excess, best_distance = distance;
  }
  return {vocab, static_cast<uint16_t>((vocab + best - 1) / best), static_cast<uint16_t>(best)};
}

}  // namespace
}  // namespace iet
