// Scores of the keyed Gumbel-max marks of vLLM (Philox) and SGLang (MurmurHash3). The equations are in
// docs/internals/foreign_marks.md, readable twins in benchmarks/security/foreign_marks.py. No standard library
// here, as in embed.cpp.
#include "../cpu/columns.h"
#include "../cpu/lanes.h"
#include "schemes.h"

namespace iet {
namespace {

// Vectors of 64-bit lanes. product_of_lows multiplies their low halves; a compiler would multiply whole lanes
// at three times the cost. The high halves of its operands may hold any bits.
#if defined(__AVX512F__) && !defined(IET_PORTABLE)
using Wide = __m512i;
inline Wide load(const uint64_t* from) { return _mm512_loadu_si512(from); }
inline void store(uint64_t* to, Wide x) { _mm512_storeu_si512(to, x); }
inline Wide set(uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
inline Wide product_of_lows(Wide x, Wide y) { return _mm512_mul_epu32(x, y); }
inline Wide high_half(Wide x) { return _mm512_srli_epi64(x, 32); }
inline Wide exclusive_or(Wide x, Wide y) { return _mm512_xor_si512(x, y); }
inline Wide exclusive_or(Wide x, Wide y, Wide z) { return _mm512_ternarylogic_epi64(x, y, z, 0x96); }
inline Wide plus(Wide x, Wide y) { return _mm512_add_epi64(x, y); }
#elif defined(__AVX2__) && !defined(IET_PORTABLE)
using Wide = __m256i;
inline Wide load(const uint64_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline void store(uint64_t* to, Wide x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
inline Wide set(uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
inline Wide product_of_lows(Wide x, Wide y) { return _mm256_mul_epu32(x, y); }
inline Wide high_half(Wide x) { return _mm256_srli_epi64(x, 32); }
inline Wide exclusive_or(Wide x, Wide y) { return _mm256_xor_si256(x, y); }
inline Wide exclusive_or(Wide x, Wide y, Wide z) { return exclusive_or(exclusive_or(y, z), x); }
inline Wide plus(Wide x, Wide y) { return _mm256_add_epi64(x, y); }
#elif defined(__SSE2__) && !defined(IET_PORTABLE)
using Wide = __m128i;
inline Wide load(const uint64_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline void store(uint64_t* to, Wide x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
inline Wide set(uint64_t x) { return _mm_set1_epi64x(static_cast<long long>(x)); }
inline Wide product_of_lows(Wide x, Wide y) { return _mm_mul_epu32(x, y); }
inline Wide high_half(Wide x) { return _mm_srli_epi64(x, 32); }
inline Wide exclusive_or(Wide x, Wide y) { return _mm_xor_si128(x, y); }
inline Wide exclusive_or(Wide x, Wide y, Wide z) { return exclusive_or(exclusive_or(y, z), x); }
inline Wide plus(Wide x, Wide y) { return _mm_add_epi64(x, y); }
#else
using Wide = uint64_t;
inline Wide load(const uint64_t* from) { return *from; }
inline void store(uint64_t* to, Wide x) { *to = x; }
inline Wide set(uint64_t x) { return x; }
inline Wide product_of_lows(Wide x, Wide y) { return (x & 0xFFFFFFFFu) * (y & 0xFFFFFFFFu); }
inline Wide high_half(Wide x) { return x >> 32; }
inline Wide exclusive_or(Wide x, Wide y) { return x ^ y; }
inline Wide exclusive_or(Wide x, Wide y, Wide z) { return x ^ y ^ z; }
inline Wide plus(Wide x, Wide y) { return x + y; }
inline Wide choose(Wide mask, Wide x, Wide y) { return mask ? x : y; }
#endif
constexpr int kWide = sizeof(Wide) / sizeof(uint64_t);
static_assert(kColumnTokens % kWide == 0, "whole vectors");

// One word of each token of a block, in the low half of a lane.
using Words = uint64_t[kColumnTokens];

struct EngineBlock {  // a block of tokens: the values that do not depend on the key
  int count;
  const uint32_t* words;  // context and token of lane i are words[i .. i + width]
  union {
    struct {
      uint32_t context[kColumnTokens];  // hash of the context, scrambled
      uint32_t token[kColumnTokens];    // scrambled
    } murmur;
    struct {
      alignas(64) Words context[16][4];  // the words of the context, four at a time
      Words round[4];                    // the first four after the first round, without the key
      Words product;                     // of the token's first round, whose counter is token / 4
      Words factor;                      // of the last round's product that the token's output word needs
      Words high, odd;                   // bits 1 and 0 of the token, which select that word, as masks
    } philox;
  };
};

constexpr uint32_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;
constexpr uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
constexpr int kRounds = 10;

struct PhiloxKeys {  // of one half of a key
  Wide rounds[kRounds];
  PhiloxKeys(uint32_t key, uint32_t step) {
    for (int round = 0; round < kRounds; ++round, key += step) rounds[round] = set(key);
  }
};

// Number of vectors whose rounds are interleaved, because each round waits for the result of the previous one.
constexpr int kInterleaved = sizeof(Wide) == 64 ? 4 : 2;
static_assert(kColumnTokens % (kInterleaved * kWide) == 0, "whole vectors");

inline void philox_round(Wide& c0, Wide& c1, Wide& c2, Wide& c3, Wide key0, Wide key1) {
  const Wide product0 = product_of_lows(c0, set(kFactor0)), product1 = product_of_lows(c2, set(kFactor1));
  c0 = exclusive_or(high_half(product1), c1, key0);
  c2 = exclusive_or(high_half(product0), c3, key1);
  c1 = product1, c3 = product0;
}

// Each round of Philox4x32-10 makes two products and then adds the key (XOR). So both products of the context's
// first round, and one of the token's first round, do not depend on the key and are made here. The token's last
// round makes only the product that its output word needs.
void prepare_philox(uint32_t width, EngineBlock& block) {
  auto& prepared = block.philox;
  const int count = block.count;
  const uint32_t* words = block.words;
  for (uint32_t offset = 0; offset < width; offset += 4) {
    for (uint32_t w = 0; w < 4; ++w) {
      // Word w of four is padded with 2^32 - 1 - w.
      Words& lanes = prepared.context[offset / 4][w];
      const bool is_padding = offset + w >= width;
      for (int i = 0; i < count; ++i) lanes[i] = is_padding ? 0xFFFFFFFFu - w : words[i + offset + w];
      for (int i = count; i < kColumnTokens; ++i) lanes[i] = 0;
    }
  }
  for (int i = 0; i < kColumnTokens; ++i) {
    const uint64_t product0 = (prepared.context[0][0][i] ^ 0x574D4358u) * kFactor0;
    const uint64_t product1 = prepared.context[0][2][i] * kFactor1;
    prepared.round[0][i] = product1 >> 32 ^ prepared.context[0][1][i] ^ width;
    prepared.round[1][i] = product1;
    prepared.round[2][i] = product0 >> 32 ^ prepared.context[0][3][i];
    prepared.round[3][i] = product0;
  }
  for (int i = 0; i < kColumnTokens; ++i) {
    const uint64_t token = i < count ? words[i + width] : 0;
    prepared.product[i] = (token >> 2) * kFactor0;
    prepared.high[i] = 0 - (token >> 1 & 1);
    prepared.odd[i] = 0 - (token & 1);
    prepared.factor[i] = token & 2 ? kFactor0 : kFactor1;
  }
}

void score_philox(uint64_t key, uint32_t width, const EngineBlock& block, float* scores) {
  const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  const PhiloxKeys first(key0, kStep0), second(key1, kStep1), of_token(key1 ^ 0x574D544Bu, kStep1);
  const auto& prepared = block.philox;
  alignas(64) Words outputs;
  for (int i = 0; i < block.count; i += kInterleaved * kWide) {
    Wide c0[kInterleaved], c1[kInterleaved], c2[kInterleaved], c3[kInterleaved], keys_of_lanes[kInterleaved];
    for (int s = 0; s < kInterleaved; ++s) {
      const int at = i + s * kWide;
      c0[s] = exclusive_or(load(prepared.round[0] + at), first.rounds[0]), c1[s] = load(prepared.round[1] + at);
      c2[s] = exclusive_or(load(prepared.round[2] + at), second.rounds[0]),
      c3[s] = load(prepared.round[3] + at);
    }
    for (int round = 1; round < kRounds; ++round)
      for (int s = 0; s < kInterleaved; ++s)
        philox_round(c0[s], c1[s], c2[s], c3[s], first.rounds[round], second.rounds[round]);
    for (uint32_t offset = 4; offset < width; offset += 4) {
      const Words* words = prepared.context[offset / 4];
      const PhiloxKeys keys(key0 ^ offset, kStep0);
      for (int s = 0; s < kInterleaved; ++s) {
        const int at = i + s * kWide;
        c0[s] = exclusive_or(c0[s], load(words[0] + at)), c1[s] = exclusive_or(c1[s], load(words[1] + at));
        c2[s] = exclusive_or(c2[s], load(words[2] + at)), c3[s] = exclusive_or(c3[s], load(words[3] + at));
      }
      for (int round = 0; round < kRounds; ++round)
        for (int s = 0; s < kInterleaved; ++s)
          philox_round(c0[s], c1[s], c2[s], c3[s], keys.rounds[round], second.rounds[round]);
    }
    for (int s = 0; s < kInterleaved; ++s) {
      const Wide product0 = load(prepared.product + i + s * kWide),
                 product1 = product_of_lows(c1[s], set(kFactor1));
      keys_of_lanes[s] = exclusive_or(c3[s], set(key0));
      c0[s] = exclusive_or(high_half(product1), c0[s], keys_of_lanes[s]);
      c2[s] = exclusive_or(high_half(product0), c2[s], of_token.rounds[0]);
      c1[s] = product1, c3[s] = product0;
    }
    for (int round = 1; round < kRounds - 1; ++round) {
      for (int s = 0; s < kInterleaved; ++s) {
        keys_of_lanes[s] = plus(keys_of_lanes[s], set(kStep0));
        philox_round(c0[s], c1[s], c2[s], c3[s], keys_of_lanes[s], of_token.rounds[round]);
      }
    }
    for (int s = 0; s < kInterleaved; ++s) {
      const int at = i + s * kWide;
      const Wide high = load(prepared.high + at), last = plus(keys_of_lanes[s], set(kStep0));
      const Wide product = product_of_lows(choose(high, c0[s], c2[s]), load(prepared.factor + at));
      const Wide even = exclusive_or(high_half(product), choose(high, c3[s], c1[s]),
                                     choose(high, of_token.rounds[kRounds - 1], last));
      store(outputs + at, choose(load(prepared.odd + at), product, even));
    }
  }
  for (int i = 0; i < block.count; ++i) {
    // For u = (m + 1) / (2^24 + 1), 1 - u in float32 is (2^24 - m) / 2^24, except where u < 1/2 is rounded.
    const int32_t numerator = 0x1000000 - static_cast<int32_t>(static_cast<uint32_t>(outputs[i]) >> 8);
    scores[i] = minus_log(fmul(static_cast<float>(numerator), 0x1p-24f));
  }
}

// MurmurHash3 x86 32-bit. It mixes in a value by murmur_join(state, murmur_scramble(value)).
inline uint32_t rotl32(uint32_t x, int bits) { return x << bits | x >> (32 - bits); }
inline uint32_t murmur_scramble(uint32_t value) { return rotl32(value * 0xCC9E2D51u, 15) * 0x1B873593u; }
inline uint32_t murmur_join(uint32_t state, uint32_t scrambled) {
  return rotl32(state ^ scrambled, 13) * 5u + 0xE6546B64u;
}
inline uint32_t murmur_finish(uint32_t state, uint32_t bytes) {
  state ^= bytes;
  state = (state ^ state >> 16) * 0x85EBCA6Bu;
  state = (state ^ state >> 13) * 0xC2B2AE35u;
  return state ^ state >> 16;
}

void prepare_murmur(uint32_t width, EngineBlock& block) {
  const int count = block.count;
  uint32_t states[kColumnTokens] = {};
  for (uint32_t w = 0; w < width; ++w)
    for (int i = 0; i < count; ++i) states[i] = murmur_join(states[i], murmur_scramble(block.words[i + w]));
  for (int i = 0; i < count; ++i) {
    block.murmur.context[i] = murmur_scramble(murmur_finish(states[i], 4 * width));
    block.murmur.token[i] = murmur_scramble(block.words[i + width]);
  }
}

void score_murmur(uint64_t key, uint32_t, const EngineBlock& block, float* scores) {
  const uint32_t low = murmur_join(0, murmur_scramble(static_cast<uint32_t>(key)));
  const uint32_t start = murmur_join(low, murmur_scramble(static_cast<uint32_t>(key >> 32)));
  for (int i = 0; i < block.count; ++i) {
    const uint32_t h =
        murmur_finish(murmur_join(murmur_join(start, block.murmur.context[i]), block.murmur.token[i]), 16);
    // 1 - u = (2^32 - h - 0.5) / 2^32
    const float numerator = fadd(static_cast<float>(~h), 0.5f);
    scores[i] = minus_log(fmul(numerator, 0x1p-32f));
  }
}

}  // namespace

namespace IET_ISA {

void engine_gumbel_tile(const EngineGumbelArgs& args, const Tile& tile) {
  const bool philox = args.prf == EnginePrf::philox;
  const auto prepare = philox ? prepare_philox : prepare_murmur;
  const auto score = philox ? score_philox : score_murmur;
  EngineBlock block;
  ScoreColumns gathered;
  for (int64_t first = tile.token_begin; first < tile.token_end; first += kColumnTokens) {
    const int64_t remaining = tile.token_end - first;
    block.count = static_cast<int>(remaining < kColumnTokens ? remaining : kColumnTokens);
    block.words = args.words + first;
    prepare(args.width, block);
    for (int64_t key = tile.key_begin; key < tile.key_end; key += kColumns) {
      const int columns = static_cast<int>(tile.key_end - key < kColumns ? tile.key_end - key : kColumns);
      for (int c = 0; c < columns; ++c) {
        score(args.keys[key + c], args.width, block, gathered[c]);
        for (int i = 0; i < block.count; ++i) gathered[c][i] = args.scored[first + i] ? gathered[c][i] : 0.0f;
      }
      write_rows(gathered, block.count, columns, args.n_keys, args.scores + first * args.n_keys + key);
    }
  }
}

}  // namespace IET_ISA
}  // namespace iet
