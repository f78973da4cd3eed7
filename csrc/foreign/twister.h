// MT19937, the generator of NumPy's RandomState and of torch on the CPU. No standard library, as in embed.cpp.
#pragma once

#include <cstdint>

namespace iet {
namespace {

constexpr int kTwisterState = 624, kTwisterMiddle = 397;

inline uint32_t twist(uint32_t high, uint32_t low) {
  return (((high & 0x80000000u) | (low & 0x7FFFFFFFu)) >> 1) ^ ((0u - (low & 1u)) & 0x9908B0DFu);
}

inline uint32_t temper(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9D2C5680u;
  y ^= (y << 15) & 0xEFC60000u;
  return y ^ (y >> 18);
}

struct Twister {
  uint32_t words[kTwisterState];

  void seed_with_word(uint32_t word) {  // init_genrand
    words[0] = word;
    for (uint32_t i = 1; i < kTwisterState; ++i)
      words[i] = 1812433253u * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
  }

  void seed_with_key(const Twister& start, const uint32_t* key, uint32_t length) {  // init_by_array
    for (int i = 0; i < kTwisterState; ++i) words[i] = start.words[i];
    uint32_t i = 1, j = 0, last = words[0];
    const auto next = [&] {
      words[i] = last;
      if (++i == kTwisterState) words[0] = last, i = 1;
    };
    for (int k = 0; k < kTwisterState; ++k) {  // length <= 16 words
      last = (words[i] ^ ((last ^ (last >> 30)) * 1664525u)) + key[j] + j;
      next();
      j = j + 1 == length ? 0 : j + 1;
    }
    for (int k = 1; k < kTwisterState; ++k) {
      last = (words[i] ^ ((last ^ (last >> 30)) * 1566083941u)) - i;
      next();
    }
    words[0] = 0x80000000u;
  }

  void advance() {
    uint32_t* x = words;
    for (int i = 0; i < kTwisterState - kTwisterMiddle; ++i)
      x[i] = x[i + kTwisterMiddle] ^ twist(x[i], x[i + 1]);
    for (int i = kTwisterState - kTwisterMiddle; i < kTwisterState - 1; ++i)
      x[i] = x[i + kTwisterMiddle - kTwisterState] ^ twist(x[i], x[i + 1]);
    x[kTwisterState - 1] = x[kTwisterMiddle - 1] ^ twist(x[kTwisterState - 1], x[0]);
  }
};

}  // namespace
}  // namespace iet
