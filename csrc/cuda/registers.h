// The permutation P of keyed.h in 32-bit registers of a GPU, for several ids at a time.
#pragma once

#include "../keyed.h"
#include "device.h"

namespace iet {
namespace {

// The grid, and constants that replace divisions by b.
struct LaneGrid {
  uint32_t vocab, a, b;
  uint32_t b_inverse, b_shift;  // v / b is the high word of v * b_inverse, shifted
};

struct LaneKeys {
  uint32_t k1, k2, k3, k4;

  IET_HD explicit LaneKeys(const RoundKeys& keys) : k1(keys.k1), k2(keys.k2), k3(keys.k3), k4(keys.k4) {}
};

IET_HD uint32_t high_word(uint32_t x, uint32_t y) {
#if defined(__CUDA_ARCH__)
  return __umulhi(x, y);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(x) * y) >> 32);
#endif
}

// sum mod m for sum < 2m: min(sum - m, sum), one instruction from sm_90 on.
IET_HD uint32_t fold(uint32_t sum, uint32_t m) {
  const uint32_t less = sum - m;
  return less < sum ? less : sum;
}

// (y + bmix(x, k, m)) mod m and (y + amix(x, k, m)) mod m of keyed.h. 16-bit arithmetic would discard the upper
// halves of the registers. Here masks keep them out of the shifts. The last multiplier is shifted up by 16
// bits, which discards them, so the high word of the product with m is that of the 16-bit product.
IET_HD uint32_t add_bmix(uint32_t y, uint32_t x, uint32_t k, uint32_t m) {
  uint32_t h = x * 0x9E37u + k;
  h ^= h >> 8 & 0xFFu;
  h *= 0x88B5u;
  h ^= h >> 7 & 0x1FFu;
  h *= 0xDB2D0000u;
  return fold(high_word(h, m) + y, m);
}

IET_HD uint32_t amix_high(uint32_t x, uint32_t k) {
  uint32_t h = x * 0x9E37u + k;
  h ^= h >> 7 & 0x1FFu;
  return h * 0x2C1B0000u;
}

IET_HD uint32_t add_amix(uint32_t y, uint32_t x, uint32_t k, uint32_t m) {
  return fold(high_word(amix_high(x, k), m) + y, m);
}

// The same, if `low` is any 16-bit number. One instruction multiplies and adds 64 bits, whose upper word is y.
// Their lower word is `low`, because zeros would need another instruction. It does not change the result: the
// product is a multiple of 2^16, so adding `low` never carries.
IET_HD uint32_t add_amix(uint32_t y, uint32_t low, uint32_t x, uint32_t k, uint32_t m) {
  const uint64_t added = static_cast<uint64_t>(y) << 32 | low;
  return fold(static_cast<uint32_t>((static_cast<uint64_t>(amix_high(x, k)) * m + added) >> 32), m);
}

IET_HD uint32_t grid_row(uint32_t v, const LaneGrid& grid) {
  return high_word(v, grid.b_inverse) >> grid.b_shift;
}

// Apply rounds 3 and 4, and return the rank.
IET_HD uint32_t last_rounds(uint32_t left, uint32_t right, const LaneGrid& grid, const LaneKeys& keys) {
  const uint32_t right3 = add_amix(right, left, keys.k3, grid.b);
  return add_amix(left, right3, keys.k4, grid.a) * grid.b + right3;
}

// Permute ranks outside [0, V), which are rare, until all are inside. Ranks of a row are distinct, so the
// highest rank identifies its id.
template <int kWidth>
IET_HD void walk_lanes(const LaneGrid& grid, const LaneKeys& keys, uint32_t (&ranks)[kWidth]) {
  const auto largest = [&] {
    uint32_t highest = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) highest = ranks[i] > highest ? ranks[i] : highest;
    return highest;
  };
  for (uint32_t highest = largest(); highest >= grid.vocab; highest = largest()) {
    const uint32_t left = grid_row(highest, grid);
    const uint32_t right = add_bmix(highest - left * grid.b, left, keys.k1, grid.b);
    const uint32_t next = last_rounds(add_bmix(left, right, keys.k2, grid.a), right, grid, keys);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) ranks[i] = ranks[i] == highest ? next : ranks[i];
  }
}

// P of v, v+1, .., which share the grid row `left`. `first` is the right digit of v after round 1, below 2b.
template <bool kWalks, int kWidth>
IET_HD void permute_lanes(uint32_t left, uint32_t first, const LaneGrid& grid, const LaneKeys& keys,
                          uint32_t (&ranks)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t right1 = fold(first + i, grid.b);
    ranks[i] = last_rounds(add_bmix(left, right1, keys.k2, grid.a), right1, grid, keys);
  }
  if (kWalks) walk_lanes(grid, keys, ranks);
}

// Table entry of a right digit after round 1: the digit in the low half, and the number that round 2 adds in
// the high half, so that one instruction shifts and adds it.
IET_HD uint32_t rounds_entry(uint32_t right, const LaneGrid& grid, const LaneKeys& keys) {
  return add_bmix(0, right, keys.k2, grid.a) << 16 | right;
}

// permute_lanes with rounds 1 and 2 from a table, which has the entries of v, v+1, .. from `entries` on. Four
// or eight entries are aligned to 16 bytes.
template <bool kWalks, int kWidth>
IET_HD void permute_lanes(uint32_t left, const uint32_t* entries, const LaneGrid& grid, const LaneKeys& keys,
                          uint32_t (&ranks)[kWidth]) {
  if constexpr (kWidth == 1) {
    ranks[0] = entries[0];
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(entries + i);
      ranks[i] = four.x, ranks[i + 1] = four.y, ranks[i + 2] = four.z, ranks[i + 3] = four.w;
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const uint32_t right1 = ranks[i] & 0xFFFFu, left2 = fold(left + (ranks[i] >> 16), grid.a);
    const uint32_t right3 = add_amix(right1, right1, left2, keys.k3, grid.b);
    ranks[i] = add_amix(left2, right1, right3, keys.k4, grid.a) * grid.b + right3;
  }
  if (kWalks) walk_lanes(grid, keys, ranks);
}

// Numerator of an id's uniform variate in family gumbel.
IET_HD uint32_t lane_uniform(uint64_t seed, uint32_t v) {
  return uniform_numerator(noise_hash(noise_word(seed, v), static_cast<uint32_t>(seed >> 32)));
}

inline LaneGrid make_lane_grid(uint32_t vocab) {
  const Grid grid = make_grid(vocab);
  LaneGrid lanes{vocab, grid.a, grid.b, 0, 0};
  // The inverse is ceil(2^(32 + shift) / b) for the largest shift that keeps it below 2^32. It is too
  // large by less than 1, so that v * b_inverse / 2^(32 + shift) exceeds v / b by less than v / 2^(32 + shift),
  // which is below 1/b: the quotient is exact for v < 2^24.
  const auto inverse = [&](uint32_t shift) { return ((uint64_t{1} << (32 + shift)) + grid.b - 1) / grid.b; };
  while (inverse(lanes.b_shift + 1) <= 0xFFFFFFFFu) ++lanes.b_shift;
  lanes.b_inverse = static_cast<uint32_t>(inverse(lanes.b_shift));
  return lanes;
}

}  // namespace
}  // namespace iet
