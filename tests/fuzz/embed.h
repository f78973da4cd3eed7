// embed_ and choose on drawn logits of every type and layout, each compared with one logit at a time.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "marks.h"

namespace fuzz {

template <class Float>
struct Rows {
  using Storage = typename Float::Storage;
  int64_t rows, columns, row_stride, element_stride;  // strides in elements here
  Array<Storage> values;
  int64_t origin;  // where row 0, column 0 lies

  static Rows drawn(Random& random, int64_t rows, int64_t columns) {
    int64_t element = random.one_in(3) ? random.number(1, 3) : 1;
    int64_t row = element * (columns - 1) + 1 + (random.one_in(2) ? 0 : random.number(0, 5));
    if (random.one_in(5)) row = 1, element = rows < 1 ? 1 : rows;
    if (random.one_in(8)) row = -row;
    if (random.one_in(8)) element = -element;
    const int64_t last_row = rows < 1 ? 0 : (rows - 1) * row, last = (columns - 1) * element;
    const int64_t low = std::min<int64_t>(last_row, 0) + std::min<int64_t>(last, 0);
    const int64_t high = std::max<int64_t>(last_row, 0) + std::max<int64_t>(last, 0);
    Rows made{rows, columns, row, element, Array<Storage>(random, rows < 1 ? 0 : high - low + 1), -low};
    for (Storage& value : made.values) value = logit(random);
    return made;
  }
  static Storage logit(Random& random) {
    if (random.one_in(60)) {  // any bits: infinities, NaN, subnormal numbers
      const uint64_t bits = random.word();
      Storage value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    return Float::store(static_cast<float>(random.number(-2000, 2000)) / 100.0f);
  }
  Storage& at(Array<Storage>& all, int64_t row, int64_t column) const {
    return all[origin + row * row_stride + column * element_stride];
  }
};

template <class Storage>
bool same_bits(const Storage& a, const Storage& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// The arguments of embed or choose, for logits of a type.
template <class Float>
struct DrawnRows {
  using Storage = typename Float::Storage;
  Profile profile;
  Rows<Float> logits;
  Array<int64_t> contexts;
  Array<int32_t> slots, counts;
  Array<float> kappas;
  bool accepted = true;
  EmbedArgs args;

  DrawnRows(Call& call, DType dtype, int64_t rows, uint32_t vocab)
      : profile(Profile::drawn(call.random, vocab, call.random.number(1, 4))),
        logits(Rows<Float>::drawn(call.random, rows,
                                  vocab + (call.random.one_in(2) ? 0 : call.random.number(0, 40)))),
        contexts(call.random, rows * (profile.params.n_gram - 1)),
        slots(call.random, rows),
        counts(call.random, rows),
        kappas(call.random, rows) {
    Random& random = call.random;
    const int64_t keys = profile.params.n_keys, context_len = profile.params.n_gram - 1;
    constexpr float kKappas[] = {0.0f, -0.0f, 0.5f, 1.0f, 2.0f, 5.0f, 1e30f, 1e-30f, 0x1p-149f};
    constexpr float kRefused[] = {-1.0f, -1e-30f, INFINITY, -INFINITY, NAN};
    const bool counted = random.one_in(2);
    for (int64_t row = 0; row < rows; ++row) {
      slots[row] = static_cast<int32_t>(random.number(-1, keys - 1));
      kappas[row] = random.of(kKappas);
      counts[row] = counted ? draw_count(random) : 0;
      if (random.one_in(60)) slots[row] = static_cast<int32_t>(random.one_in(2) ? keys : -2), accepted = false;
      if (random.one_in(60)) kappas[row] = random.of(kRefused), accepted = accepted && slots[row] < 0;
      for (int64_t i = 0; i < context_len; ++i) {
        int64_t& id = contexts[row * context_len + i] = random.number(0, vocab - 1);
        if (random.one_in(200)) id = draw_id(random, vocab);
        accepted = accepted && (id >= 0 || slots[row] < 0);
      }
    }
    const int64_t size = sizeof(Storage);
    args = {rows > 0 ? &logits.at(logits.values, 0, 0) : logits.values.data(),
            dtype,
            rows,
            logits.columns,
            logits.row_stride * size,
            logits.element_stride * size,
            contexts.data(),
            slots.data(),
            kappas.data(),
            counted ? counts.data() : nullptr};
  }
  bool marked(int64_t row) const {
    const int64_t context_len = profile.params.n_gram - 1;
    bool marked = slots[row] >= 0;
    for (int64_t i = 0; i < context_len && marked; ++i)
      marked = profile.marked(contexts[row * context_len + i]);
    return marked;
  }
  // Logit v of a marked row with the mark.
  float marked_at(Array<Storage>& values, int64_t row, int64_t v) const {
    const KernelParams& params = profile.params;
    const int64_t* context = contexts.data() + row * (params.n_gram - 1);
    const uint64_t seed = seed_of(params, slots[row], context, counts[row]);
    const uint32_t id = static_cast<uint32_t>(v), high = static_cast<uint32_t>(seed >> 32);
    const float shift = params.family == Family::gumbel
                            ? gumbel_noise(uniform_numerator(noise_hash(noise_word(seed, id), high)))
                            : phi_fourier(permute(id, RoundKeys(seed), params.grid),
                                          phase_step(params.k_p[slots[row]], params.vocab));
    return marked_logit(Float::load(logits.at(values, row, v)), kappas[row], shift);
  }
  Line line(const char* op) const {
    Line line = profile.line(op);
    line.number("dtype", static_cast<int64_t>(args.dtype)).number("rows", args.rows);
    line.number("columns", logits.columns).number("origin", logits.origin);
    line.number("row_stride", logits.row_stride).number("element_stride", logits.element_stride);
    line.array("contexts", contexts).array("slots", slots).array("kappas", kappas).array("counts", counts);
    return line;
  }
};

inline uint32_t embed_vocab(Call& call) {
  return call.wide ? static_cast<uint32_t>(call.random.number(50000, 140000)) : draw_vocab(call.random);
}

inline int64_t embed_rows(Call& call) {
  return call.wide ? call.random.number(3, 9) : call.random.number(0, 4);
}

template <class Float>
void try_embed_as(Call& call, DType dtype) {
  using Storage = typename Float::Storage;
  DrawnRows<Float> drawn(call, dtype, embed_rows(call), embed_vocab(call));
  const Profile& profile = drawn.profile;
  Rows<Float>& logits = drawn.logits;
  Array<Storage> expected(call.random, logits.values.size()), before(call.random, expected.size());
  copy(logits.values, expected);
  copy(logits.values, before);
  const bool done = embed_cpu(profile.params, drawn.args, call.threads());
  ++call.calls;
  call.expect(done == drawn.accepted, "embed's refusal");

  bool same = true;
  for (int64_t row = 0; row < drawn.args.rows && drawn.accepted; ++row) {
    if (!drawn.marked(row)) continue;
    const bool gumbel = profile.params.family == Family::gumbel;
    for (int64_t v = 0; v < (gumbel ? logits.columns : profile.params.vocab); ++v) {
      if (!gumbel && !profile.marked(v)) continue;
      const float marked_value = drawn.marked_at(before, row, v);
      Storage &value = logits.at(expected, row, v), &actual = logits.at(logits.values, row, v);
      value = Float::store(marked_value);
      if (marked_value != marked_value && std::isnan(Float::load(actual))) value = actual;  // any NaN will do
    }
  }
  for (int64_t i = 0; i < expected.size(); ++i) same = same && same_bits(expected[i], logits.values[i]);
  call.expect(same, "embed");
  if (call.sample && drawn.accepted)
    drawn.line("embed").array("before", before).array("after", logits.values).print();
}

inline Filter draw_filter(Random& random) {
  constexpr float kShares[] = {1.0f, 1.0f, 0.999f, 0.9f, 0.5f, 0.01f, 1e-6f},
                  kMinPs[] = {0.001f, 0.05f, 0.5f, 1.0f};
  Filter filter{-INFINITY, random.of(kShares), 0, static_cast<uint32_t>(random.number(0, 3))};
  if (random.one_in(3)) filter.log_min_p = std::log(random.of(kMinPs));
  if (random.one_in(2)) filter.top_k = static_cast<int32_t>(random.number(1, random.one_in(2) ? 5 : 200));
  return filter;
}

// The id of the largest sum that a filter keeps, by definition: one logit after another.
inline int64_t kept_best(const std::vector<float>& logits, const std::vector<float>& sums, const Filter& filter,
                         float temperature) {
  std::vector<float> ordered;
  for (float x : logits)
    if (x == x) ordered.push_back(x);
  std::sort(ordered.begin(), ordered.end(), std::greater<float>());
  if (ordered.empty()) return -1;
  const float highest = ordered[0], lowest = highest + temperature * filter.log_min_p;
  const float scale = weight_scale(temperature);
  const size_t k = static_cast<size_t>(filter.top_k);
  const bool has_top_k = filter.top_k > 0 && k <= ordered.size();
  std::vector<uint64_t> masses = {0};  // of the largest logits
  for (float x : ordered) masses.push_back(masses.back() + weight_of(x, highest, scale));
  uint64_t total = 0;
  for (float x : ordered) {
    if (filter.share_of & kOfMinP && x < lowest) continue;
    if (has_top_k && filter.share_of & kOfTopK && x < ordered[k - 1]) continue;
    total += weight_of(x, highest, scale);
  }
  int64_t best = -1;
  for (size_t v = 0; v < logits.size(); ++v) {
    if (!(sums[v] > (best < 0 ? -INFINITY : sums[best])) || logits[v] < lowest) continue;
    const auto first_not_larger =
        std::lower_bound(ordered.begin(), ordered.end(), logits[v], std::greater<float>());
    const size_t above = static_cast<size_t>(first_not_larger - ordered.begin());
    const uint64_t mass = masses[above];
    if (has_top_k && above >= k) continue;
    const bool within =
        static_cast<double>(mass) < static_cast<double>(filter.top_p) * static_cast<double>(total);
    if (filter.top_p < 1 && above > 0 && !within) continue;
    best = static_cast<int64_t>(v);
  }
  return best;
}

// choose_cpu: the first of the largest marked logits that the filter keeps, which it raises.
template <class Float>
void try_choose_as(Call& call, DType dtype) {
  using Storage = typename Float::Storage;
  DrawnRows<Float> drawn(call, dtype, embed_rows(call), embed_vocab(call));
  if (drawn.profile.params.family != Family::gumbel) return;
  Random& random = call.random;
  Rows<Float>& logits = drawn.logits;
  Array<Storage> before(random, logits.values.size());
  copy(logits.values, before);
  Array<int64_t> chosen(random, drawn.args.rows);
  Array<Filter> filters(random, drawn.args.rows);
  for (Filter& filter : filters) filter = draw_filter(random);
  const bool filtered = !random.one_in(3), force = random.one_in(2);
  const Filter* const given = filtered ? filters.data() : nullptr;
  const bool done = choose_cpu(drawn.profile.params, {drawn.args, given, force, chosen.data()}, call.threads());
  ++call.calls;
  call.expect(done == drawn.accepted, "choose's refusal");

  bool same = true;
  for (int64_t row = 0; row < drawn.args.rows && drawn.accepted; ++row) {
    const bool marked = drawn.marked(row);
    std::vector<float> row_logits, sums;
    for (int64_t v = 0; v < logits.columns && marked; ++v) {
      row_logits.push_back(Float::load(logits.at(before, row, v)));
      sums.push_back(drawn.marked_at(before, row, v));
    }
    const Filter filter = filtered ? filters[row] : Filter{-INFINITY, 1, 0, 0};
    const int64_t expected = kept_best(row_logits, sums, filter, drawn.kappas[row]);
    same = same && chosen[row] == expected;
    if (!force || expected < 0) continue;
    const float highest = *std::max_element(row_logits.begin(), row_logits.end(),
                                            [](float x, float y) { return x < y || x != x; });
    logits.at(before, row, expected) = Float::store(forced_logit(highest, drawn.kappas[row], Float::kLargest));
  }
  for (int64_t i = 0; i < before.size(); ++i) same = same && same_bits(before[i], logits.values[i]);
  call.expect(same, "choose");
  if (call.sample && drawn.accepted && !force)
    drawn.line("choose")
        .array("filters", filters)
        .number("filtered", filtered)
        .array("before", before)
        .array("chosen", chosen)
        .print();
}

inline void try_embed(Call& call) {
  switch (call.random.number(0, 2)) {
    case 0:
      return try_embed_as<Float32>(call, DType::float32);
    case 1:
      return try_embed_as<Float16>(call, DType::float16);
    default:
      return try_embed_as<BFloat16>(call, DType::bfloat16);
  }
}

inline void try_choose(Call& call) {
  switch (call.random.number(0, 2)) {
    case 0:
      return try_choose_as<Float32>(call, DType::float32);
    case 1:
      return try_choose_as<Float16>(call, DType::float16);
    default:
      return try_choose_as<BFloat16>(call, DType::bfloat16);
  }
}

}  // namespace fuzz
