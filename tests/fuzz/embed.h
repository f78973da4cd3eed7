// embed_ on drawn logits of every type and layout, each compared with one logit at a time.
#pragma once

#include <cmath>

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

template <class Float>
void try_embed_as(Call& call, DType dtype) {
  using Storage = typename Float::Storage;
  Random& random = call.random;
  const uint32_t vocab = call.wide ? static_cast<uint32_t>(random.number(50000, 140000)) : draw_vocab(random);
  const int64_t rows = call.wide ? random.number(3, 9) : random.number(0, 4), keys = random.number(1, 4);
  const Profile profile = Profile::drawn(random, vocab, keys);
  const KernelParams& params = profile.params;
  const int64_t context_len = params.n_gram - 1;
  Rows<Float> logits = Rows<Float>::drawn(random, rows, vocab + (random.one_in(2) ? 0 : random.number(0, 40)));
  Array<int64_t> contexts(random, rows * context_len);
  Array<int32_t> slots(random, rows), counts(random, rows);
  Array<float> kappas(random, rows);
  constexpr float kKappas[] = {0.0f, -0.0f, 0.5f, 1.0f, 2.0f, 5.0f, 1e30f, 1e-30f, 0x1p-149f};
  constexpr float kRefused[] = {-1.0f, -1e-30f, INFINITY, -INFINITY, NAN};
  const bool counted = random.one_in(2);
  bool accepted = true;
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
  Array<Storage> expected(random, logits.values.size()), before(random, call.sample ? expected.size() : 0);
  copy(logits.values, expected);
  if (call.sample) copy(logits.values, before);
  const int64_t size = sizeof(Storage);
  const EmbedArgs args = {rows > 0 ? &logits.at(logits.values, 0, 0) : logits.values.data(),
                          dtype,
                          rows,
                          logits.columns,
                          logits.row_stride * size,
                          logits.element_stride * size,
                          contexts.data(),
                          slots.data(),
                          kappas.data(),
                          counted ? counts.data() : nullptr};
  const bool done = embed_cpu(params, args, call.threads());
  ++call.calls;
  call.expect(done == accepted, "embed's refusal");

  bool same = true;
  for (int64_t row = 0; row < rows && accepted; ++row) {
    bool marked = slots[row] >= 0;
    for (int64_t i = 0; i < context_len && marked; ++i)
      marked = profile.marked(contexts[row * context_len + i]);
    if (!marked) continue;
    const uint64_t seed = seed_of(params, slots[row], contexts.data() + row * context_len, counts[row]);
    const uint32_t step = phase_step(params.k_p[slots[row]], vocab);
    const bool gumbel = params.family == Family::gumbel;
    for (int64_t v = 0; v < (gumbel ? logits.columns : vocab); ++v) {
      if (!gumbel && !profile.marked(v)) continue;
      const uint32_t id = static_cast<uint32_t>(v);
      const uint32_t hash = noise_hash(noise_word(seed, id), static_cast<uint32_t>(seed >> 32));
      const float shift = gumbel ? gumbel_noise(uniform_numerator(hash))
                                 : phi_fourier(permute(id, RoundKeys(seed), params.grid), step);
      Storage& value = logits.at(expected, row, v);
      const float marked_value = marked_logit(Float::load(value), kappas[row], shift);
      Storage& actual = logits.at(logits.values, row, v);
      value = Float::store(marked_value);
      if (marked_value != marked_value && std::isnan(Float::load(actual))) value = actual;  // any NaN will do
    }
  }
  for (int64_t i = 0; i < expected.size(); ++i) same = same && same_bits(expected[i], logits.values[i]);
  call.expect(same, "embed");
  if (call.sample && accepted)
    profile.line("embed")
        .number("dtype", static_cast<int64_t>(dtype))
        .number("rows", rows)
        .number("columns", logits.columns)
        .number("row_stride", logits.row_stride)
        .number("element_stride", logits.element_stride)
        .number("origin", logits.origin)
        .array("contexts", contexts)
        .array("slots", slots)
        .array("kappas", kappas)
        .array("counts", counts)
        .array("before", before)
        .array("after", logits.values)
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

}  // namespace fuzz
