// Foreign marks and the thread pool. Operations with a second implementation in csrc are compared with it, all
// others with a call on one thread.
#pragma once

#include "../../csrc/foreign/schemes.h"
#include "marks.h"

namespace fuzz {

inline void try_engine_scores(Call& call) {
  Random& random = call.random;
  int64_t tokens, keys;
  draw_shape(call, tokens, keys);
  const auto prf = static_cast<EnginePrf>(random.number(0, 4));
  const bool philox = prf == EnginePrf::philox, murmur = prf == EnginePrf::murmur,
             hmac = prf == EnginePrf::hmac;
  const auto rule = murmur   ? EngineRule::log32
                    : philox ? static_cast<EngineRule>(random.one_in(3) ? 0 : random.number(2, 3))
                    : hmac   ? static_cast<EngineRule>(2 * random.number(0, 1))
                             : EngineRule::below;
  const int64_t widest = philox || murmur ? 64 : 16, least = prf == EnginePrf::sbw_self ? 0 : 1;
  const uint32_t width =
      static_cast<uint32_t>(random.one_in(4) ? random.number(least, widest) : random.number(least, 8));
  const uint32_t limit = rule == EngineRule::ones ? static_cast<uint32_t>(random.number(1, 100))
                                                  : static_cast<uint32_t>(random.word());
  const int64_t parts = hmac ? 4 : 1;
  Array<uint32_t> words(random, width + tokens);
  Array<bool> scored(random, tokens);
  Array<uint64_t> engine_keys(random, keys * parts);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random.word() >> random.number(32, 63));
  for (bool& one : scored) one = !random.one_in(5);
  for (uint64_t& key : engine_keys) key = random.word() >> random.number(1, 63);
  Array<float> scores(random, tokens * keys), second(random, tokens * keys);
  EngineArgs args{prf,          rule,         limit,         0.125f, -1.5f,
                  words.data(), width,        scored.data(), tokens, engine_keys.data(),
                  keys,         scores.data()};
  engine_scores_cpu(args, call.threads());
  // Score single tokens under single keys, which uses neither lanes nor tiles.
  bool same = true;
  for (int64_t n = 0; n < 4 && tokens * keys > 0; ++n) {
    const int64_t j = random.number(0, tokens - 1), k = random.number(0, keys - 1);
    float score;
    EngineArgs one = args;
    one.words += j, one.scored += j, one.keys += k * parts;
    one.tokens = one.n_keys = 1, one.scores = &score;
    engine_scores_cpu(one, 1);
    same = same && float_to_bits(score) == float_to_bits(scores[j * keys + k]);
    ++call.calls;
  }
  args.scores = second.data();
  engine_scores_cpu(args, 1);
  call.calls += 2;
  for (int64_t i = 0; i < scores.size(); ++i)
    same = same && float_to_bits(scores[i]) == float_to_bits(second[i]);
  call.expect(same, "engine_scores");
  if (call.sample)
    Line("engine_scores")
        .number("prf", static_cast<int64_t>(prf))
        .number("rule", static_cast<int64_t>(rule))
        .number("limit", limit)
        .number("width", width)
        .array("words", words)
        .array("scored", scored)
        .array("keys", engine_keys)
        .array("scores", scores)
        .print();
}

template <class Entry>
void try_synthid_as(Call& call) {
  Random& random = call.random;
  int64_t tokens, n_keys;
  draw_shape(call, tokens, n_keys);
  const uint32_t bits = static_cast<uint32_t>(random.one_in(40) ? random.number(1, 12) : random.number(1, 6));
  const bool wide = sizeof(Entry) > 1;
  const uint32_t depth = static_cast<uint32_t>(random.number(1, random.one_in(10) ? 100 : 8));
  const int64_t size = int64_t{1} << bits;
  Array<uint8_t> g_values(random, 2 * size);
  for (int64_t i = 0; i < size; ++i) g_values[i] = g_values[size + i] = random.one_in(2) ? 255 : 0;
  Array<uint32_t> keys(random, n_keys * depth), weights(random, depth);
  for (uint32_t& key : keys) key = static_cast<uint32_t>(random.word());
  for (uint32_t& weight : weights) weight = static_cast<uint32_t>(random.number(0, wide ? 655 : 2));
  const int64_t stride = n_keys;
  Array<Entry> tables(random, size * stride);
  SynthidArgs args{};
  args.bits = bits, args.g_values = g_values.data(), args.keys = keys.data(), args.weights = weights.data();
  args.depth = depth, args.n_keys = n_keys, args.wide = wide, args.tables = tables.data(), args.stride = stride;
  synthid_tables_cpu(args, call.threads());
  ++call.calls;
  const auto entry = [&](int64_t h, int64_t k) {
    uint32_t sum = 0;
    for (uint32_t d = 0; d < depth; ++d)
      sum += g_values[(h + keys[k * depth + d]) & (size - 1)] ? weights[d] : 0;
    return sum;
  };
  bool same = true;
  for (int64_t n = 0; n < 64 && n_keys > 0; ++n) {
    const int64_t h = random.number(0, size - 1), k = random.number(0, n_keys - 1);
    same = same && tables[h * stride + k] == entry(h, k);
  }
  call.expect(same, "synthid_tables");

  const uint32_t n_gram = static_cast<uint32_t>(random.number(2, 16));
  Array<uint32_t> words(random, tokens);
  Array<bool> scored(random, tokens);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random.word());
  for (int64_t j = 0; j < tokens; ++j) scored[j] = j + 1 >= n_gram && !random.one_in(5);
  Array<float> scores(random, tokens * n_keys);
  args.n_gram = n_gram, args.words = words.data(), args.scored = scored.data(), args.tokens = tokens;
  args.scale = 0.125f, args.offset = -1.5f, args.scores = scores.data();
  synthid_scores_cpu(args, call.threads());
  ++call.calls;
  same = true;
  for (int64_t j = 0; j < tokens; ++j) {
    uint64_t hash = 1;
    for (int64_t i = j + 1 - n_gram; i <= j && scored[j]; ++i)
      hash = (hash + words[i]) * 6364136223846793005u + 1;
    for (int64_t k = 0; k < n_keys; ++k) {
      const float sum = static_cast<float>(tables[static_cast<int64_t>(hash & (size - 1)) * stride + k]);
      same = same && scores[j * n_keys + k] == (scored[j] ? fadd(fmul(sum, args.scale), args.offset) : 0.0f);
    }
  }
  call.expect(same, "synthid_scores");
  if (call.sample && bits <= 8)
    Line("synthid")
        .number("bits", bits)
        .number("depth", depth)
        .number("n_gram", n_gram)
        .array("g_values", g_values)
        .array("keys", keys)
        .array("weights", weights)
        .array("words", words)
        .array("scored", scored)
        .array("scores", scores)
        .print();
}

inline void try_synthid(Call& call) {
  if (call.random.one_in(2)) try_synthid_as<uint8_t>(call);
  else try_synthid_as<uint16_t>(call);
}

// Ascending distinct tokens after each of some contexts, or seeds.
struct Followers {
  Array<int64_t> offsets;
  Array<uint32_t> tokens;

  static Followers drawn(Random& random, int64_t contexts, uint32_t vocab, int64_t most) {
    Array<int64_t> offsets(random, contexts + 1);
    offsets[0] = 0;
    for (int64_t c = 0; c < contexts; ++c)
      offsets[c + 1] = offsets[c] + random.number(0, std::min<int64_t>(most, vocab));
    Followers made{std::move(offsets), Array<uint32_t>(random, 0)};
    made.tokens = Array<uint32_t>(random, made.offsets[contexts]);
    for (int64_t c = 0; c < contexts; ++c) {
      const int64_t first = made.offsets[c], count = made.offsets[c + 1] - first;
      for (int64_t i = 0; i < count; ++i)
        made.tokens[first + i] =
            static_cast<uint32_t>(random.number(i * vocab / count, (i + 1) * vocab / count - 1));
    }
    return made;
  }
};

inline void try_waterfall(Call& call) {
  Random& random = call.random;
  const uint32_t vocab = call.wide ? 2000 : draw_vocab(random),
                 n_gram = static_cast<uint32_t>(random.number(2, 16));
  const int64_t n_keys = random.number(0, call.wide ? 12 : 3), contexts = random.number(0, call.wide ? 40 : 3);
  const Followers after = Followers::drawn(random, contexts, vocab, random.one_in(10) ? 60 : 4);
  Array<uint32_t> keys(random, n_keys), ids(random, contexts * (n_gram - 1));
  for (uint32_t& key : keys) key = static_cast<uint32_t>(random.word());
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random.number(0, vocab - 1));
  const int64_t total = after.offsets[contexts];
  Array<uint32_t> ranks(random, n_keys * total), ranks_of_all(random, vocab);
  waterfall_ranks_cpu({vocab, n_gram, keys.data(), n_keys, ids.data(), contexts, after.offsets.data(),
                       after.tokens.data(), ranks.data()},
                      call.threads());
  ++call.calls;
  bool same = true;
  for (int64_t k = 0; k < n_keys; k += call.wide ? random.number(1, 6) : 1) {
    for (int64_t c = 0; c < contexts; c += call.wide ? random.number(1, 20) : 1) {
      uint32_t seed[16] = {keys[k]};
      for (uint32_t i = 1; i < n_gram; ++i) seed[i] = ids[c * (n_gram - 1) + i - 1];
      waterfall_permute_cpu(vocab, seed, n_gram, ranks_of_all.data());
      ++call.calls;
      for (int64_t i = after.offsets[c]; i < after.offsets[c + 1]; ++i)
        same = same && ranks[k * total + i] == ranks_of_all[after.tokens[i]];
    }
  }
  call.expect(same, "waterfall_ranks");
  if (call.sample)
    Line("waterfall")
        .number("vocab", vocab)
        .number("n_gram", n_gram)
        .array("keys", keys)
        .array("contexts", ids)
        .array("offsets", after.offsets)
        .array("tokens", after.tokens)
        .array("ranks", ranks)
        .print();
}

inline void try_green(Call& call) {
  Random& random = call.random;
  const uint32_t vocab = (call.wide ? 3000 : draw_vocab(random)) + 1;
  const uint32_t green = static_cast<uint32_t>(random.number(0, vocab));
  const int64_t count = random.number(0, call.wide ? 200 : random.one_in(20) ? 40 : 3);
  const Followers after = Followers::drawn(random, count, vocab, 4);
  Array<uint32_t> seeds(random, count), permutation(random, vocab);
  for (uint32_t& seed : seeds) seed = static_cast<uint32_t>(random.word());
  Array<uint8_t> is_green(random, after.offsets[count]);
  kgw_green_cpu(
      {vocab, green, seeds.data(), count, after.offsets.data(), after.tokens.data(), is_green.data(), nullptr},
      call.threads());
  ++call.calls;
  bool same = true;
  for (int64_t s = 0; s < count; s += call.wide ? random.number(1, 60) : 1) {
    torch_permute_cpu(vocab, seeds[s], permutation.data());
    ++call.calls;
    for (int64_t i = after.offsets[s]; i < after.offsets[s + 1]; ++i) {
      const uint32_t *const list = permutation.data(), *const end = list + green;
      same = same && (is_green[i] != 0) == (std::find(list, end, after.tokens[i]) != end);
    }
  }
  call.expect(same, "kgw_green");
  if (call.sample)
    Line("green")
        .number("vocab", vocab)
        .number("green", green)
        .array("seeds", seeds)
        .array("offsets", after.offsets)
        .array("tokens", after.tokens)
        .array("is_green", is_green)
        .print();
}

// Every item runs once, on one of the workers that parallel_workers counts.
inline void try_pool(Call& call) {
  Random& random = call.random;
  const int64_t count = random.number(0, 200), grain = random.number(1, 9);
  const int threads = static_cast<int>(random.number(1, 6));
  Array<uint8_t> runs(random, count);
  for (uint8_t& run : runs) run = 0;
  const int workers = parallel_workers(count, grain, threads);
  Array<int64_t> by(random, workers);
  for (int64_t& items : by) items = 0;
  in_parallel(count, grain, threads, [&](int worker, int64_t begin, int64_t end) {
    by[worker] += end - begin;
    for (int64_t i = begin; i < end; ++i) ++runs[i];
  });
  ++call.calls;
  int64_t total = 0;
  for (int64_t items : by) total += items;
  bool once = total == count;
  for (uint8_t run : runs) once = once && run == 1;
  call.expect(once, "parallel_for");
}

}  // namespace fuzz
