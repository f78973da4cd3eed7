// Our own marks on random arguments, compared with csrc/keyed.h applied to one token or one logit at a time.
#pragma once

#include <algorithm>
#include <limits>

#include "../../csrc/ops.h"
#include "arrays.h"

namespace fuzz {

using namespace iet;

// Context of one call: the source of its arguments, its size, and its counters.
struct Call {
  Random& random;
  bool wide;    // large enough for the thread pool
  bool sample;  // print it
  uint64_t calls = 0, faults = 0;

  int threads() { return wide ? static_cast<int>(random.number(2, 5)) : static_cast<int>(random.number(0, 3)); }
  void expect(bool passed, const char* what) {
    if (passed) return;
    ++faults;
    std::fprintf(stderr, "%s: differs from the expected result\n", what);
  }
};

inline uint32_t draw_vocab(Random& random) {
  constexpr uint32_t kSizes[] = {1,  2,  3,   7,   8,   9,   15,  16,  17,   31,   32,
                                 33, 63, 64,  65,  97,  127, 128, 129, 255,  256,  257,
                                 80, 96, 160, 320, 511, 512, 513, 999, 1000, 1536, 2049};
  if (random.one_in(4)) return static_cast<uint32_t>(random.number(1, 400));
  return random.of(kSizes);
}

struct Profile {
  KernelParams params;
  Array<int32_t> unmarked;
  Array<uint64_t> subkeys;
  Array<uint32_t> k_p;

  Profile(Random& random, uint32_t vocab, int64_t n_keys, int64_t n_unmarked)
      : unmarked(random, n_unmarked), subkeys(random, 2 * n_keys), k_p(random, n_keys) {
    // Ascending and distinct, because each is from its own range of ids.
    for (int64_t i = 0; i < n_unmarked; ++i) {
      const int64_t low = i * vocab / n_unmarked, high = (i + 1) * vocab / n_unmarked - 1;
      unmarked[i] = static_cast<int32_t>(random.number(low, high));
    }
    for (uint64_t& word : subkeys) word = random.word();
    const int64_t most = vocab > 2 ? (vocab - 1) / 2 : 1;
    for (uint32_t& frequency : k_p) frequency = static_cast<uint32_t>(random.number(1, most));
    const uint32_t n_gram =
        static_cast<uint32_t>(random.one_in(2) ? random.number(2, 5) : random.number(2, 16));
    params = {vocab,           n_gram,     random.one_in(2) ? Family::fourier : Family::gumbel,
              unmarked.data(), n_unmarked, subkeys.data(),
              k_p.data(),      n_keys,     make_grid(vocab)};
  }
  static Profile drawn(Random& random, uint32_t vocab, int64_t n_keys) {
    const int64_t most = vocab / 2 < 6 ? vocab / 2 : 6;
    return Profile(random, vocab, n_keys, random.one_in(2) ? 0 : random.number(0, most));
  }
  Line line(const char* op) const {
    Line line(op);
    line.number("vocab", params.vocab).number("n_gram", params.n_gram);
    line.number("family", static_cast<int64_t>(params.family));
    return line.array("unmarked", unmarked).array("subkeys", subkeys).array("k_p", k_p);
  }
  bool marked(int64_t id) const { return is_marked_id(id, params.vocab, params.unmarked, params.n_unmarked); }
};

// Mostly ids of the vocabulary, some just outside, few anywhere.
inline int64_t draw_id(Random& random, uint32_t vocab) {
  constexpr int64_t kOdd[] = {-1,
                              std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max(),
                              int64_t{1} << 32,
                              (int64_t{1} << 32) - 1,
                              int64_t{1} << 24,
                              0};
  if (random.one_in(60)) return random.of(kOdd);
  return random.number(0, vocab - 1 + (random.one_in(30) ? 2 : 0));
}

inline int32_t draw_count(Random& random) {
  constexpr int32_t kOdd[] = {0xFFFFFF, 0x1000000, 0x1000001, std::numeric_limits<int32_t>::max(), 255, 256};
  return random.one_in(20) ? random.of(kOdd) : static_cast<int32_t>(random.one_in(2) ? 0 : random.number(0, 5));
}

inline uint64_t seed_of(const KernelParams& params, int64_t key, const int64_t* context, int32_t count) {
  uint32_t ids[16];
  for (uint32_t i = 0; i + 1 < params.n_gram; ++i) ids[i] = static_cast<uint32_t>(context[i]);
  return context_seed(params.subkeys + 2 * key, ids, params.n_gram - 1, static_cast<uint32_t>(count));
}

inline float score_of(const Profile& profile, const int64_t* ids, int64_t j, int64_t key, int32_t count) {
  const KernelParams& params = profile.params;
  if (j + 1 < params.n_gram) return 0.0f;
  for (int64_t i = j + 1 - params.n_gram; i <= j; ++i)
    if (!profile.marked(ids[i])) return 0.0f;
  const uint64_t seed = seed_of(params, key, ids + j + 1 - params.n_gram, count);
  const uint32_t id = static_cast<uint32_t>(ids[j]);
  if (params.family == Family::gumbel)
    return gumbel_score(uniform_numerator(noise_hash(noise_word(seed, id), static_cast<uint32_t>(seed >> 32))));
  return phi_fourier(permute(id, RoundKeys(seed), params.grid), phase_step(params.k_p[key], params.vocab));
}

inline void try_permute(Call& call) {
  Random& random = call.random;
  const uint32_t vocab =
      random.one_in(50) ? static_cast<uint32_t>(random.number(1, 1 << 24)) : draw_vocab(random);
  const int64_t count = random.one_in(20) ? random.number(0, 600) : random.number(0, 20);
  Array<uint64_t> seeds(random, count);
  Array<uint32_t> ids(random, count), ranks(random, count);
  for (uint64_t& seed : seeds) seed = random.one_in(20) ? 0 - random.word() % 2 : random.word();
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random.number(0, vocab - 1));
  permute_cpu(vocab, {seeds.data(), ids.data(), count, ranks.data()});
  ++call.calls;
  const Grid grid = make_grid(vocab);
  bool same = true;
  for (int64_t i = 0; i < count; ++i) same = same && ranks[i] == permute(ids[i], RoundKeys(seeds[i]), grid);
  call.expect(same, "permute");
  if (call.sample)
    Line("permute")
        .number("vocab", vocab)
        .array("seeds", seeds)
        .array("ids", ids)
        .array("ranks", ranks)
        .print();
}

struct Text {
  Array<int64_t> ids;
  Array<int32_t> counts;
  bool counted;

  Text(Random& random, uint32_t vocab, int64_t tokens)
      : ids(random, tokens), counts(random, tokens), counted(random.one_in(2)) {
    for (int64_t& id : ids) id = draw_id(random, vocab);
    for (int32_t& count : counts) count = counted ? draw_count(random) : 0;
  }
  const int32_t* times() const { return counted ? counts.data() : nullptr; }
};

// Tokens and keys of a call: mostly few; some just beyond a tile, or enough for several threads.
inline void draw_shape(Call& call, int64_t& tokens, int64_t& keys) {
  Random& random = call.random;
  tokens = random.one_in(30) ? random.number(0, 600) : random.number(0, 24);
  keys = random.one_in(30) ? random.number(0, 40) : random.number(0, 4);
  if (call.wide) tokens = random.number(1025, 3000), keys = random.number(32, 140);
}

inline void try_score(Call& call) {
  Random& random = call.random;
  int64_t tokens, keys;
  draw_shape(call, tokens, keys);
  const uint32_t vocab =
      random.one_in(50) ? static_cast<uint32_t>(random.number(1, 1 << 24)) : draw_vocab(random);
  const Profile profile = Profile::drawn(random, vocab, keys);
  const Text text(random, vocab, tokens);
  Array<float> scores(random, tokens * keys);
  score_cpu(profile.params, {text.ids.data(), tokens, scores.data(), text.times()}, call.threads());
  ++call.calls;
  bool same = true;
  for (int64_t j = 0; j < tokens; ++j) {
    // A sample if there are many: the sanitizer or the next line reports unwritten ones.
    for (int64_t k = 0; k < keys; k += call.wide ? random.number(1, 60) : 1)
      same = same && float_to_bits(scores[j * keys + k]) ==
                         float_to_bits(score_of(profile, text.ids.data(), j, k, text.counts[j]));
  }
  call.expect(same, "score");
  if (call.sample)
    profile.line("score").array("ids", text.ids).array("counts", text.counts).array("scores", scores).print();
}

inline void try_spans(Call& call) {
  Random& random = call.random;
  int64_t tokens, keys;
  draw_shape(call, tokens, keys);
  const uint32_t vocab = draw_vocab(random);
  const Profile profile = Profile::drawn(random, vocab, keys);
  const Text text(random, vocab, tokens);
  const int64_t spans = random.number(0, random.one_in(10) ? 60 : 6);
  Array<int64_t> cuts(random, spans + 1), sums(random, spans * keys);
  for (int64_t& cut : cuts) cut = random.number(0, tokens);
  std::sort(cuts.begin(), cuts.end());
  Array<uint8_t> weights(random, tokens);
  const int64_t heaviest = profile.params.family == Family::gumbel && random.one_in(2) ? 16 : 1;
  for (uint8_t& weight : weights)
    weight = random.one_in(5) ? 0 : static_cast<uint8_t>(random.number(1, heaviest));
  for (int64_t& sum : sums) sum = 0;
  score_spans_cpu(profile.params,
                  {text.ids.data(), weights.data(), cuts.data(), spans, sums.data(), text.times()},
                  call.threads());
  ++call.calls;
  bool same = true;
  for (int64_t k = 0; k < keys; k += call.wide ? random.number(1, 60) : 1) {
    for (int64_t s = 0; s < spans; ++s) {
      int64_t sum = 0;
      for (int64_t j = cuts[s]; j < cuts[s + 1]; ++j) {
        const float units = 0x1p22f * static_cast<float>(weights[j]);
        const float x = score_of(profile, text.ids.data(), j, k, text.counts[j]) * units;
        sum += static_cast<int64_t>(__builtin_nearbyintf(x));
      }
      same = same && sums[s * keys + k] == sum;
    }
  }
  call.expect(same, "score_spans");
  if (call.sample)
    profile.line("score_spans")
        .array("ids", text.ids)
        .array("counts", text.counts)
        .array("cuts", cuts)
        .array("weights", weights)
        .array("sums", sums)
        .print();
}

}  // namespace fuzz
