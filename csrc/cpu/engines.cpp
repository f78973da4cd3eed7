// Scores of what serving engines mark with: keyed Gumbel-max of vLLM and of SGLang, the green lists of KGW and
// the g-values of SynthID, both as transformers has them. docs/engines.md has the equations; the readable twins
// are in iet/native/reference.py. No standard library here, as in embed.cpp.
#include "../ops.h"
#include "columns.h"
#include "lanes.h"
#include "twister.h"

namespace iet {
namespace {

// ---------------------------------------------------------------- keyed Gumbel-max

// Lanes of 64 bits whose low halves are multiplied: a compiler takes the product of whole lanes, at 3 times the
// cost. High halves may hold anything.
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

// A word of each token of a block, in the low halves.
using Words = uint64_t[kColumnTokens];

struct Texts {  // a block of tokens, what does not depend on the key
  int count;
  const uint32_t* words;  // context and token of lane i are words[i .. i + width]
  union {
    struct {
      uint32_t context[kColumnTokens];  // its hash, scrambled
      uint32_t token[kColumnTokens];    // scrambled
    } murmur;
    struct {
      alignas(64) Words context[16][4];  // every 4 words of the context
      Words round[4];                    // what the first round makes of the first 4, without the key
      Words product;                     // of the token's number div 4 in its first round
      Words factor, high, odd;           // which word of the last round is the token's: all bits set, or none
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

// So many vectors at once: a round waits for the one before it, and there is room for others meanwhile.
constexpr int kAtOnce = sizeof(Wide) == 64 ? 4 : 2;
static_assert(kColumnTokens % (kAtOnce * kWide) == 0, "whole vectors");

inline void philox_round(Wide& c0, Wide& c1, Wide& c2, Wide& c3, Wide key0, Wide key1) {
  const Wide product0 = product_of_lows(c0, set(kFactor0)), product1 = product_of_lows(c2, set(kFactor1));
  c0 = exclusive_or(high_half(product1), c1, key0);
  c2 = exclusive_or(high_half(product0), c3, key1);
  c1 = product1, c3 = product0;
}

// Philox4x32-10 takes two multiplications a round, and the key enters behind them. So those of the context's
// first round and one of the token's first are the same for every key, and done here; in the token's last round
// only the product is made that its word comes from.
void prepare_philox(uint32_t width, Texts& block) {
  auto& to = block.philox;
  const int count = block.count;
  const uint32_t* words = block.words;
  for (uint32_t offset = 0; offset < width; offset += 4) {
    for (uint32_t w = 0; w < 4; ++w) {
      // Behind the last word are 2^32 - 1 less their place.
      Words& into = to.context[offset / 4][w];
      const bool there = offset + w < width;
      for (int i = 0; i < count && there; ++i) into[i] = words[i + offset + w];
      for (int i = 0; i < count && !there; ++i) into[i] = 0xFFFFFFFFu - w;
      for (int i = count; i < kColumnTokens; ++i) into[i] = 0;
    }
  }
  for (int i = 0; i < kColumnTokens; ++i) {
    const uint64_t product0 = (to.context[0][0][i] ^ 0x574D4358u) * kFactor0;
    const uint64_t product1 = to.context[0][2][i] * kFactor1;
    to.round[0][i] = product1 >> 32 ^ to.context[0][1][i] ^ width;
    to.round[1][i] = product1;
    to.round[2][i] = product0 >> 32 ^ to.context[0][3][i];
    to.round[3][i] = product0;
  }
  for (int i = 0; i < kColumnTokens; ++i) {
    const uint64_t token = i < count ? words[i + width] : 0;
    to.product[i] = (token >> 2) * kFactor0;
    to.high[i] = 0 - (token >> 1 & 1);
    to.odd[i] = 0 - (token & 1);
    to.factor[i] = token & 2 ? kFactor0 : kFactor1;
  }
}

void score_philox(uint64_t key, uint32_t width, const Texts& block, float* scores) {
  const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  const PhiloxKeys first(key0, kStep0), second(key1, kStep1), of_token(key1 ^ 0x574D544Bu, kStep1);
  const auto& from = block.philox;
  alignas(64) Words found;
  for (int i = 0; i < block.count; i += kAtOnce * kWide) {
    Wide c0[kAtOnce], c1[kAtOnce], c2[kAtOnce], c3[kAtOnce], keys_of_lanes[kAtOnce];
    for (int s = 0; s < kAtOnce; ++s) {
      const int at = i + s * kWide;
      c0[s] = exclusive_or(load(from.round[0] + at), first.rounds[0]), c1[s] = load(from.round[1] + at);
      c2[s] = exclusive_or(load(from.round[2] + at), second.rounds[0]), c3[s] = load(from.round[3] + at);
    }
    for (int round = 1; round < kRounds; ++round)
      for (int s = 0; s < kAtOnce; ++s)
        philox_round(c0[s], c1[s], c2[s], c3[s], first.rounds[round], second.rounds[round]);
    for (uint32_t offset = 4; offset < width; offset += 4) {
      const Words* words = from.context[offset / 4];
      const PhiloxKeys keys(key0 ^ offset, kStep0);
      for (int s = 0; s < kAtOnce; ++s) {
        const int at = i + s * kWide;
        c0[s] = exclusive_or(c0[s], load(words[0] + at)), c1[s] = exclusive_or(c1[s], load(words[1] + at));
        c2[s] = exclusive_or(c2[s], load(words[2] + at)), c3[s] = exclusive_or(c3[s], load(words[3] + at));
      }
      for (int round = 0; round < kRounds; ++round)
        for (int s = 0; s < kAtOnce; ++s)
          philox_round(c0[s], c1[s], c2[s], c3[s], keys.rounds[round], second.rounds[round]);
    }
    for (int s = 0; s < kAtOnce; ++s) {
      const Wide product0 = load(from.product + i + s * kWide),
                 product1 = product_of_lows(c1[s], set(kFactor1));
      keys_of_lanes[s] = exclusive_or(c3[s], set(key0));
      c0[s] = exclusive_or(high_half(product1), c0[s], keys_of_lanes[s]);
      c2[s] = exclusive_or(high_half(product0), c2[s], of_token.rounds[0]);
      c1[s] = product1, c3[s] = product0;
    }
    for (int round = 1; round < kRounds - 1; ++round) {
      for (int s = 0; s < kAtOnce; ++s) {
        keys_of_lanes[s] = plus(keys_of_lanes[s], set(kStep0));
        philox_round(c0[s], c1[s], c2[s], c3[s], keys_of_lanes[s], of_token.rounds[round]);
      }
    }
    for (int s = 0; s < kAtOnce; ++s) {
      const int at = i + s * kWide;
      const Wide high = load(from.high + at), last = plus(keys_of_lanes[s], set(kStep0));
      const Wide product = product_of_lows(choose(high, c0[s], c2[s]), load(from.factor + at));
      const Wide even = exclusive_or(high_half(product), choose(high, c3[s], c1[s]),
                                     choose(high, of_token.rounds[kRounds - 1], last));
      store(found + at, choose(load(from.odd + at), product, even));
    }
  }
  for (int i = 0; i < block.count; ++i) {
    // 1 - u, u = (m + 1) / (2^24 + 1) as float32, is (2^24 - m) / 2^24 but for a rounding of u below 1/2.
    const int32_t rest = 0x1000000 - static_cast<int32_t>(static_cast<uint32_t>(found[i]) >> 8);
    scores[i] = minus_log(fmul(static_cast<float>(rest), 0x1p-24f));
  }
}

// MurmurHash3 x86 32-bit, whose mix is murmur_join(state, murmur_scramble(value)).
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

void prepare_murmur(uint32_t width, Texts& block) {
  const int count = block.count;
  uint32_t states[kColumnTokens] = {};
  for (uint32_t w = 0; w < width; ++w)
    for (int i = 0; i < count; ++i) states[i] = murmur_join(states[i], murmur_scramble(block.words[i + w]));
  for (int i = 0; i < count; ++i) {
    block.murmur.context[i] = murmur_scramble(murmur_finish(states[i], 4 * width));
    block.murmur.token[i] = murmur_scramble(block.words[i + width]);
  }
}

void score_murmur(uint64_t key, uint32_t, const Texts& block, float* scores) {
  const uint32_t low = murmur_join(0, murmur_scramble(static_cast<uint32_t>(key)));
  const uint32_t start = murmur_join(low, murmur_scramble(static_cast<uint32_t>(key >> 32)));
  for (int i = 0; i < block.count; ++i) {
    const uint32_t h =
        murmur_finish(murmur_join(murmur_join(start, block.murmur.context[i]), block.murmur.token[i]), 16);
    // 1 - u = (2^32 - h - 0.5) / 2^32
    const float rest = fadd(static_cast<float>(~h), 0.5f);
    scores[i] = minus_log(fmul(rest, 0x1p-32f));
  }
}

// ---------------------------------------------------------------- KGW

// Step i of torch.randperm's shuffle swaps the places i and t = i + draw mod (vocab - i). So a token that lies
// at t is final at i, one of the first `green` places; one that lies at i moves on to t. Many lists are made
// side by side, a few steps at once: what their t are does not depend on the tokens, and whether one of them is
// a token's place, or the token's place is one of these steps, is a comparison each.
constexpr int kLists = kGreenLists, kSteps = 48;
static_assert(kTwisterState % kSteps == 0, "whole rounds of the generator");

using ListWords = uint32_t[kLists];
constexpr int kHalfLanes = kLanes / 2;  // of I32
static_assert(kLists % kHalfLanes == 0, "whole vectors");
constexpr int kVectors = kLists / kHalfLanes;
constexpr uint32_t kNowhere = 0xFFFFFFFFu;  // the place of no token

struct alignas(64) Lists {
  ListWords words[kTwisterState], targets[kSteps];
};

// draw mod left. A product of floats is the quotient, or, as roundings and the draw's last bit take at most
// 1537 / left from it, 1 less.
constexpr uint32_t kLeastLeft = 1 << 11;
inline I32 rest_of(I32 draw, I32 left, F32 factor) {
  const I32 quotient = to_int(fmul(to_float(shift_right<1>(draw)), factor));
  const I32 rest = sub32(draw, low_product32(quotient, left));
  return min32(rest, sub32(rest, left));
}

void seed_lists(const uint32_t* seeds, int64_t count, Lists& lists) {
  for (int l = 0; l < kLists; ++l) lists.words[0][l] = seeds[l < count ? l : 0];
  const I32 factor = set32(1812433253u);
  I32 x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load32(lists.words[0] + v * kHalfLanes);
  for (int i = 1; i < kTwisterState; ++i) {
    for (int v = 0; v < kVectors; ++v) {  // side by side, as each word waits for the one before it
      x[v] = add32(low_product32(xor32(x[v], shift_right<30>(x[v])), factor), set32(static_cast<uint32_t>(i)));
      store32(lists.words[i] + v * kHalfLanes, x[v]);
    }
  }
}

// The targets of the steps [first, last), from the words of the generators: `twist` and `temper` of twister.h.
void make_targets(const GreenArgs& args, uint32_t first, uint32_t last, Lists& lists) {
  const I32 low_bits = set32(0x7FFFFFFFu), one = set32(1), zero = set32(0), matrix = set32(0x9908B0DFu);
  const I32 mask7 = set32(0x9D2C5680u), mask15 = set32(0xEFC60000u);
  const int word = static_cast<int>(first % kTwisterState), count = static_cast<int>(last - first);
  const bool vectors = args.vocab - last >= kLeastLeft;
  const GreenStep* steps = args.steps + first;
  for (int l = 0; l < kLists; l += kHalfLanes) {
    I32 high = load32(lists.words[word] + l);
    for (int k = 0; k < count; ++k) {
      const int i = word + k, next = i + 1 < kTwisterState ? i + 1 : 0;
      const int middle =
          i < kTwisterState - kTwisterMiddle ? i + kTwisterMiddle : i + kTwisterMiddle - kTwisterState;
      const I32 low = load32(lists.words[next] + l);
      const I32 twisted = xor32(load32(lists.words[middle] + l), shift_right<1>(choose(low_bits, low, high)));
      I32 y = xor_and(twisted, sub32(zero, and32(low, one)), matrix);
      store32(lists.words[i] + l, y);
      high = low;
      y = xor32(y, shift_right<11>(y));
      y = xor_and(y, shift_left<7>(y), mask7);
      y = xor_and(y, shift_left<15>(y), mask15);
      y = xor32(y, shift_right<18>(y));
      if (vectors)
        y = add32(rest_of(y, set32(steps[k].left), set_float(steps[k].factor)), set32(steps[k].step));
      store32(lists.targets[k] + l, y);
    }
  }
  for (int k = 0; k < count && !vectors; ++k)
    for (uint32_t& target : lists.targets[k]) target = steps[k].step + target % steps[k].left;
}

// Which lists have to do with their token in these steps, and whether any.
bool meet(uint32_t first, int count, const Lists& lists, const uint32_t* places, ListWords met) {
  for (int l = 0; l < kLists; l += kHalfLanes) {
    const I32 place = load32(places + l), after = sub32(place, set32(first));
    I32 found = or_equal(set32(0), min32(after, set32(static_cast<uint32_t>(count - 1))), after);
    for (int k = 0; k < count; ++k) found = or_equal(found, load32(lists.targets[k] + l), place);
    store32(met + l, found);
  }
  uint32_t any = 0;
  for (int l = 0; l < kLists; ++l) any |= met[l];
  return any != 0;
}

// Do the steps for one token, and tell whether it is final.
bool follow(uint32_t first, int count, const uint32_t* targets, uint32_t& place) {
  for (int k = 0; k < count; ++k, targets += kLists) {
    if (*targets == place) return true;
    if (place == first + static_cast<uint32_t>(k)) place = *targets;
  }
  return false;
}

// The tokens of up to kLists seeds. `places`: room for kLists words for each token of any seed.
void find_green(const GreenArgs& args, int64_t seed, int64_t count, uint32_t* places, Lists& lists) {
  const uint32_t steps = args.green < args.vocab ? args.green : args.vocab - 1;
  const int64_t* offsets = args.offsets + seed;
  int64_t most = 0;
  for (int64_t l = 0; l < count; ++l) {
    const int64_t tokens = offsets[l + 1] - offsets[l];
    most = tokens > most ? tokens : most;
  }
  for (int64_t n = 0; n < most; ++n) {
    for (int64_t l = 0; l < kLists; ++l) {
      const bool there = l < count && offsets[l] + n < offsets[l + 1];
      places[n * kLists + l] = there ? args.tokens[offsets[l] + n] : kNowhere;
      if (there) args.is_green[offsets[l] + n] = args.green < args.vocab ? 0 : 1;
    }
  }
  seed_lists(args.seeds + seed, count, lists);
  for (uint32_t first = 0; first < steps; first += kSteps) {
    const uint32_t last = steps - first < kSteps ? steps : first + kSteps;
    const int now = static_cast<int>(last - first);
    make_targets(args, first, last, lists);
    for (int64_t n = 0; n < most; ++n) {
      uint32_t* place = places + n * kLists;
      ListWords met;
      if (!meet(first, now, lists, place, met)) continue;
      for (int64_t l = 0; l < count; ++l) {
        if (met[l] == 0 || !follow(first, now, lists.targets[0] + l, place[l])) continue;
        args.is_green[offsets[l] + n] = 1;
        place[l] = kNowhere;
      }
    }
  }
}

// ---------------------------------------------------------------- SynthID

// Depth d of an n-gram with hash h reads g[(h + k_d) mod size]: a rotation of one table. So the sum over depth
// is a table of h alone, made once for a key. The entries of all keys for one h lie side by side, so that a
// token is scored by one run through memory.
template <class Entry>
void make_tables(const SynthidArgs& args, Entry* tables, int64_t begin, int64_t end) {
  const uint32_t size = 1u << args.bits;
  for (int64_t key = begin; key < end; key += kColumns) {
    const int columns = static_cast<int>(end - key < kColumns ? end - key : kColumns);
    for (uint32_t first = 0; first < size; first += kColumnTokens) {
      const int count = static_cast<int>(size - first < kColumnTokens ? size - first : kColumnTokens);
      Entry sums[kColumns][kColumnTokens] = {};
      for (int c = 0; c < columns; ++c) {
        const uint32_t* keys = args.keys + (key + c) * args.depth;
        for (uint32_t d = 0; d < args.depth; ++d) {
          const Entry weight = static_cast<Entry>(args.weights[d]);
          const uint8_t* g = args.g_values + first + (keys[d] & (size - 1));  // all bits set, or none
          for (int i = 0; i < count; ++i) {
            const Entry mask = static_cast<Entry>(static_cast<int8_t>(g[i]));
            sums[c][i] = static_cast<Entry>(sums[c][i] + (weight & mask));
          }
        }
      }
      for (int i = 0; i < count; ++i)
        for (int c = 0; c < columns; ++c) tables[(first + i) * args.stride + key + c] = sums[c][i];
    }
  }
}

template <class Entry>
void read_tables(const SynthidArgs& args, const Entry* tables, const Tile& tile) {
  const float scale = args.scale, offset = args.offset;
  const uint32_t mask = (1u << args.bits) - 1;
  for (int64_t t = tile.token_begin; t < tile.token_end; ++t) {
    float* scores = args.scores + t * args.n_keys;
    if (args.scored[t]) {
      uint32_t hash = 1;  // its low half, which is enough
      for (int64_t j = t + 1 - args.n_gram; j <= t; ++j) hash = (hash + args.words[j]) * 0x4C957F2Du + 1;
      const Entry* sums = tables + (hash & mask) * args.stride;
      for (int64_t k = tile.key_begin; k < tile.key_end; ++k)
        scores[k] = fadd(fmul(static_cast<float>(sums[k]), scale), offset);
    } else {
      for (int64_t k = tile.key_begin; k < tile.key_end; ++k) scores[k] = 0.0f;
    }
  }
}

}  // namespace

namespace IET_ISA {

void engine_gumbel_tile(const EngineGumbelArgs& args, const Tile& tile) {
  const bool philox = args.prf == EnginePrf::philox;
  const auto prepare = philox ? prepare_philox : prepare_murmur;
  const auto score = philox ? score_philox : score_murmur;
  Texts block;
  Columns gathered;
  for (int64_t first = tile.token_begin; first < tile.token_end; first += kColumnTokens) {
    const int64_t left = tile.token_end - first;
    block.count = static_cast<int>(left < kColumnTokens ? left : kColumnTokens);
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

void kgw_green(const GreenArgs& args, int64_t begin, int64_t end, uint32_t* places) {
  Lists lists;
  for (int64_t seed = begin; seed < end; seed += kLists)
    find_green(args, seed, end - seed < kLists ? end - seed : kLists, places, lists);
}

void synthid_tables(const SynthidArgs& args, int64_t begin, int64_t end) {
  if (args.wide) make_tables(args, static_cast<uint16_t*>(args.tables), begin, end);
  else make_tables(args, static_cast<uint8_t*>(args.tables), begin, end);
}

void synthid_tile(const SynthidArgs& args, const Tile& tile) {
  if (args.wide) read_tables(args, static_cast<const uint16_t*>(args.tables), tile);
  else read_tables(args, static_cast<const uint8_t*>(args.tables), tile);
}

void torch_permute(uint32_t count, uint32_t seed, uint32_t* permutation) {
  Twister twister;
  twister.seed_with_word(seed);
  for (uint32_t i = 0; i < count; ++i) permutation[i] = i;
  for (uint32_t first = 0; first + 1 < count; first += kTwisterState) {
    twister.advance();
    for (uint32_t k = 0; k < kTwisterState && first + k + 1 < count; ++k) {
      const uint32_t step = first + k, other = step + temper(twister.words[k]) % (count - step);
      const uint32_t kept = permutation[step];
      permutation[step] = permutation[other];
      permutation[other] = kept;
    }
  }
}

}  // namespace IET_ISA
}  // namespace iet
