// Scores of the marks of vLLM (Philox, HMAC-SHA256), SGLang (MurmurHash3) and SBW, which are functions of a
// keyed 32-bit word of context and token. The equations are in docs/internals/foreign_marks.md, readable twins
// in benchmarks/security/foreign_marks.py. No standard library here, as in embed.cpp.
#include "../cpu/columns.h"
#include "../cpu/lanes.h"
#include "schemes.h"
#include "sha256.h"

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

constexpr uint32_t kHmacWords = 48;  // of the longest message, that of 16 ids of context

struct EngineBlock {  // a block of tokens: the values that do not depend on the key
  int count;
  uint32_t width;
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
    struct {
      uint32_t count;  // blocks of 16 words
      uint32_t message[kHmacWords][kColumnTokens];
    } hmac;
    struct {
      uint64_t context[16][kColumnTokens];  // hashes of the ids; [0]: their sum, for lefthash
      uint64_t token[kColumnTokens];        // hash of the token
      alignas(64) Words counter, high, odd;
    } sbw;
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
void prepare_philox(EngineBlock& block) {
  auto& prepared = block.philox;
  const int count = block.count;
  const uint32_t width = block.width;
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

// Each of the functions below writes the word of every token under one key. `stream` is 0 but for SynthID.
void philox_words(const uint64_t* key, uint64_t stream, const EngineBlock& block,
                  uint32_t* __restrict words_out) {
  const uint32_t key0 = static_cast<uint32_t>(*key), key1 = static_cast<uint32_t>(*key >> 32);
  const uint32_t width = block.width, of_token0 = key0 ^ static_cast<uint32_t>(stream >> 32);
  const PhiloxKeys first(key0, kStep0), second(key1, kStep1),
      of_token(key1 ^ 0x574D544Bu ^ static_cast<uint32_t>(stream), kStep1);
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
      keys_of_lanes[s] = exclusive_or(c3[s], set(of_token0));
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
  for (int i = 0; i < block.count; ++i) words_out[i] = static_cast<uint32_t>(outputs[i]);
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

void prepare_murmur(EngineBlock& block) {
  const int count = block.count;
  const uint32_t width = block.width;
  uint32_t states[kColumnTokens] = {};
  for (uint32_t w = 0; w < width; ++w)
    for (int i = 0; i < count; ++i) states[i] = murmur_join(states[i], murmur_scramble(block.words[i + w]));
  for (int i = 0; i < count; ++i) {
    block.murmur.context[i] = murmur_scramble(murmur_finish(states[i], 4 * width));
    block.murmur.token[i] = murmur_scramble(block.words[i + width]);
  }
}

void murmur_words(const uint64_t* key, uint64_t, const EngineBlock& block, uint32_t* __restrict words) {
  const uint32_t low = murmur_join(0, murmur_scramble(static_cast<uint32_t>(*key)));
  const uint32_t start = murmur_join(low, murmur_scramble(static_cast<uint32_t>(*key >> 32)));
  for (int i = 0; i < block.count; ++i)
    words[i] =
        murmur_finish(murmur_join(murmur_join(start, block.murmur.context[i]), block.murmur.token[i]), 16);
}

// HMAC-SHA256 of a label, the number of ids in the context as 4 bytes, and each id as 8 bytes, little-endian.
void prepare_hmac(EngineBlock& block) {
  constexpr char kLabel[] = "vllm-watermark-hmac-sha256-v1";  // its zero at the end is hashed too
  constexpr uint32_t kLabelBytes = sizeof kLabel, kHeader = kLabelBytes + 4;
  const uint32_t bytes = kHeader + 8 * (block.width + 1);
  block.hmac.count = (bytes + 9 + 63) / 64;
  const uint32_t last = 16 * block.hmac.count - 1;
  for (int i = 0; i < block.count; ++i) {
    uint32_t word = 0;
    for (uint32_t at = 0; at < 4 * last; ++at) {
      uint32_t byte = at == bytes ? 0x80u : 0u;
      if (at < kLabelBytes) byte = static_cast<uint8_t>(kLabel[at]);
      else if (at < kHeader) byte = block.width >> 8 * (at - kLabelBytes) & 0xFF;
      else if (at < bytes) {
        const uint32_t id = block.words[i + (at - kHeader) / 8], place = (at - kHeader) % 8;
        byte = place < 4 ? id >> 8 * place & 0xFF : (id >> 31) * 0xFFu;  // ids are signed: -1 pads a context
      }
      word = word << 8 | byte;
      if (at % 4 == 3) block.hmac.message[at / 4][i] = word;
    }
    block.hmac.message[last][i] = 8 * (64 + bytes);
  }
  for (uint32_t w = 0; w <= last; ++w)
    for (int i = block.count; i < kColumnTokens; ++i) block.hmac.message[w][i] = 0;
}

inline uint32_t swapped(uint32_t x) { return x >> 24 | (x >> 8 & 0xFF00u) | (x << 8 & 0xFF0000u) | x << 24; }

void hmac_words(const uint64_t* key, uint64_t, const EngineBlock& block, uint32_t* __restrict words) {
  constexpr int kShaLanes = sizeof(I32) / sizeof(uint32_t);
  I32 start[2][8];  // the states after the inner and the outer key
  for (int pad = 0; pad < 2; ++pad) {
    I32 padded[16];
    for (int w = 0; w < 16; ++w) {
      const uint32_t part = w < 8 ? static_cast<uint32_t>(key[w / 2] >> 32 * (w % 2)) : 0;
      padded[w] = set32(swapped(part) ^ (pad ? 0x5C5C5C5Cu : 0x36363636u));
    }
    for (int w = 0; w < 8; ++w) start[pad][w] = set32(kShaStart[w]);
    sha256_compress(start[pad], padded);
  }
  for (int i = 0; i < block.count; i += kShaLanes) {
    I32 state[8], message[16];
    for (int w = 0; w < 8; ++w) state[w] = start[0][w];
    for (uint32_t part = 0; part < block.hmac.count; ++part) {
      for (uint32_t w = 0; w < 16; ++w) message[w] = load32(block.hmac.message[16 * part + w] + i);
      sha256_compress(state, message);
    }
    for (int w = 0; w < 16; ++w) message[w] = w < 8 ? state[w] : set32(w == 8 ? 0x80000000u : 0);
    message[15] = set32(8 * (64 + 32));
    for (int w = 0; w < 8; ++w) state[w] = start[1][w];
    sha256_compress(state, message);
    store32(words + i, state[0]);
  }
  for (int i = 0; i < block.count; ++i) words[i] = swapped(words[i]);
}

// SBW: Philox of (token / 4, 0, 0, 0) under a 64-bit seed that key and context determine.
inline uint64_t sbw_hash(uint32_t id) {  // Bob Jenkins' integer hash of id + 1, whose shifts keep the sign
  int32_t x = static_cast<int32_t>(id + 1);
  const auto times = [](int32_t value, uint32_t factor) {
    return static_cast<int32_t>(static_cast<uint32_t>(value) * factor);
  };
  x = times(x, 0u - 63u);
  x ^= x >> 17;
  x = times(x, 0u - 511u);
  x ^= times(x, 16);
  x = times(x, 0u - 7u);
  x ^= times(x, 1024);
  x ^= x >> 15;
  return static_cast<uint64_t>(int64_t{x});
}

void prepare_sbw(EngineBlock& block) {
  auto& prepared = block.sbw;
  for (int i = 0; i < kColumnTokens; ++i) {
    const bool used = i < block.count;
    const uint32_t token = used ? block.words[i + block.width] : 0;
    for (uint32_t w = 0; w < block.width; ++w) prepared.context[w][i] = used ? sbw_hash(block.words[i + w]) : 0;
    prepared.token[i] = sbw_hash(token);
    prepared.counter[i] = token >> 2;
    prepared.high[i] = 0 - uint64_t{token >> 1 & 1};
    prepared.odd[i] = 0 - uint64_t{token & 1};
  }
}

void prepare_sbw_left(EngineBlock& block) {
  prepare_sbw(block);
  for (int i = 0; i < block.count; ++i) {
    uint64_t sum = 0;
    for (uint32_t w = 0; w < block.width; ++w) sum += block.words[i + w];
    block.sbw.context[0][i] = sum;
  }
}

// The top bit is shifted out: SBW compares the lower 31.
void sbw_outputs(const EngineBlock& block, const Words& seeds, uint32_t* words) {
  const auto& prepared = block.sbw;
  alignas(64) Words outputs;
  for (int i = 0; i < block.count; i += kWide) {
    Wide c0 = load(prepared.counter + i), c1 = set(0), c2 = set(0), c3 = set(0);
    Wide key0 = load(seeds + i), key1 = high_half(key0);
    for (int round = 0; round < kRounds; ++round) {
      philox_round(c0, c1, c2, c3, key0, key1);
      key0 = plus(key0, set(kStep0)), key1 = plus(key1, set(kStep1));
    }
    const Wide odd = load(prepared.odd + i);
    store(outputs + i, choose(load(prepared.high + i), choose(odd, c3, c2), choose(odd, c1, c0)));
  }
  for (int i = 0; i < block.count; ++i) words[i] = static_cast<uint32_t>(outputs[i]) << 1;
}

void sbw_self_words(const uint64_t* key, uint64_t, const EngineBlock& block, uint32_t* __restrict words) {
  alignas(64) Words seeds;
  for (int i = 0; i < kColumnTokens; ++i) {
    const uint64_t factor = *key * block.sbw.token[i];
    int64_t least = static_cast<int64_t>(factor * block.sbw.token[i]);
    for (uint32_t w = 0; w < block.width; ++w) {
      const int64_t product = static_cast<int64_t>(factor * block.sbw.context[w][i]);
      least = product < least ? product : least;
    }
    seeds[i] = static_cast<uint64_t>(least);
  }
  sbw_outputs(block, seeds, words);
}

void sbw_left_words(const uint64_t* key, uint64_t, const EngineBlock& block, uint32_t* __restrict words) {
  alignas(64) Words seeds;
  for (int i = 0; i < kColumnTokens; ++i) seeds[i] = *key * block.sbw.context[0][i];
  sbw_outputs(block, seeds, words);
}

struct Engine {
  void (*prepare)(EngineBlock&);
  void (*words)(const uint64_t* key, uint64_t stream, const EngineBlock&, uint32_t* words);
};
constexpr Engine kEngines[] = {{prepare_philox, philox_words},
                               {prepare_murmur, murmur_words},
                               {prepare_hmac, hmac_words},
                               {prepare_sbw, sbw_self_words},
                               {prepare_sbw_left, sbw_left_words}};  // as in EnginePrf

inline uint32_t ones(uint32_t x) {
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return ((x + (x >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}

void score_words(const EngineArgs& args, const uint64_t* key, const EngineBlock& block, float* scores) {
  const auto words_of = kEngines[static_cast<int>(args.prf)].words;
  uint32_t words[kColumnTokens];
  if (args.rule == EngineRule::ones) {
    constexpr uint64_t kSynthid = uint64_t{0x53594E54} << 32;
    uint32_t sums[kColumnTokens] = {};
    for (uint32_t depth = 0; depth < args.limit; depth += 32) {
      const uint32_t mask = args.limit - depth < 32 ? (1u << (args.limit - depth)) - 1 : 0xFFFFFFFFu;
      words_of(key, kSynthid | depth / 32, block, words);
      for (int i = 0; i < block.count; ++i) sums[i] += ones(words[i] & mask);
    }
    for (int i = 0; i < block.count; ++i)
      scores[i] = fadd(fmul(static_cast<float>(static_cast<int32_t>(sums[i])), args.scale), args.offset);
    return;
  }
  words_of(key, 0, block, words);
  if (args.rule == EngineRule::log24) {
    for (int i = 0; i < block.count; ++i) {
      // For u = (m + 1) / (2^24 + 1), 1 - u in float32 is (2^24 - m) / 2^24, except where u < 1/2 is rounded.
      const int32_t numerator = 0x1000000 - static_cast<int32_t>(words[i] >> 8);
      scores[i] = minus_log(fmul(static_cast<float>(numerator), 0x1p-24f));
    }
  } else if (args.rule == EngineRule::log32) {
    // 1 - u = (2^32 - h - 0.5) / 2^32
    for (int i = 0; i < block.count; ++i)
      scores[i] = minus_log(fmul(fadd(static_cast<float>(~words[i]), 0.5f), 0x1p-32f));
  } else {
    for (int i = 0; i < block.count; ++i) scores[i] = words[i] < args.limit ? 1.0f : 0.0f;
  }
}

}  // namespace

namespace IET_ISA {

void engine_tile(const EngineArgs& args, const Tile& tile) {
  const int key_words = args.prf == EnginePrf::hmac ? 4 : 1;
  EngineBlock block;
  ScoreColumns gathered;
  block.width = args.width;
  for (int64_t first = tile.token_begin; first < tile.token_end; first += kColumnTokens) {
    const int64_t remaining = tile.token_end - first;
    block.count = static_cast<int>(remaining < kColumnTokens ? remaining : kColumnTokens);
    block.words = args.words + first;
    kEngines[static_cast<int>(args.prf)].prepare(block);
    for (int64_t key = tile.key_begin; key < tile.key_end; key += kColumns) {
      const int columns = static_cast<int>(tile.key_end - key < kColumns ? tile.key_end - key : kColumns);
      for (int c = 0; c < columns; ++c) {
        score_words(args, args.keys + (key + c) * key_words, block, gathered[c]);
        for (int i = 0; i < block.count; ++i) gathered[c][i] = args.scored[first + i] ? gathered[c][i] : 0.0f;
      }
      write_rows(gathered, block.count, columns, args.n_keys, args.scores + first * args.n_keys + key);
    }
  }
}

}  // namespace IET_ISA
}  // namespace iet
