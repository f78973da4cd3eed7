// embed_ on the CPU: logits[v] += kappa * phi(P(v)), or the noise of family gumbel, over every marked row.
//
// Each row of the a x b grid takes two passes: the permutation in 16-bit lanes into a buffer, then phi and the
// logits in 32-bit lanes, each with several registers at once to hide latency. The main loop ignores that E can
// leave [0, V). These few ids are found by inverting E, and corrected afterwards.
//
// No standard library here: the linker could use its inline functions, compiled for AVX-512, on every
// processor.
#include "lanes.h"
#include "loops.h"

namespace iet {
namespace {

constexpr int kMaxB = 5120;  // ceil8(1.25 * sqrt(2^24))
constexpr int kHalf = kLanes / 2;
constexpr int kUnroll = 4;              // registers at once
constexpr int kPad = kUnroll * kLanes;  // lanes that the first pass may compute beyond a grid row
constexpr int kChunk = 1024;            // columns of noise that are prepared at once

// Rounds 1 and 2 shift and look up: within one grid row, round 1 rotates 0..b-1, and round 2 depends only on
// the rotated digit, so both read consecutive entries of a table made once per row of logits.
struct Tables {
  uint16_t index[2 * kMaxB + kPad], round2[2 * kMaxB + kPad];  // over one digit, twice in a row
  uint32_t pairs[kMaxB + kPad];                                // digits of P along one grid row
};

template <int kCount>
inline void add_amix(U16 (&sum)[kCount], const U16 (&x)[kCount], uint16_t key, uint16_t modulus) {
  const U16 k = set16(key), m = set16(modulus);
  U16 h[kCount];
  for (int i = 0; i < kCount; ++i) h[i] = add16(low_product(x[i], set16(0x9E37)), k);
  for (int i = 0; i < kCount; ++i) h[i] = low_product(fold<7>(h[i]), set16(0x2C1B));
  for (int i = 0; i < kCount; ++i) sum[i] = add_mod(sum[i], high_product(h[i], m), m);
}

void permute_grid_row(int row, const RoundKeys& keys, const Grid& grid, Tables& tables) {
  const int shift = bmix(static_cast<uint16_t>(row), keys.k1, grid.b);
  const U16 number = set16(static_cast<uint16_t>(row)), a = set16(grid.a);
  for (int i = 0; i < grid.b; i += kUnroll * kLanes) {
    U16 left[kUnroll], right[kUnroll];
    for (int j = 0; j < kUnroll; ++j) {
      right[j] = load16(tables.index + shift + i + j * kLanes);
      left[j] = add_mod(load16(tables.round2 + shift + i + j * kLanes), number, a);
    }
    add_amix(right, left, keys.k3, grid.b);
    add_amix(left, right, keys.k4, grid.a);
    for (int j = 0; j < kUnroll; ++j) store_pairs(tables.pairs + i + j * kLanes, left[j], right[j]);
  }
}

// r·c mod 2^32 for r = L·b + R without r: L·(b·c) + R·c, each factor cut into 16-bit halves, the low one
// signed, for the instruction that multiplies and adds pairs of signed 16-bit numbers.
inline I32 digit_factors_low(uint32_t left, uint32_t right) { return set32((left & 0xFFFFu) | right << 16); }
inline I32 digit_factors_high(uint32_t left, uint32_t right) {
  const auto high_half = [](uint32_t x) { return (x + 0x8000u) >> 16; };
  return set32((high_half(left) & 0xFFFFu) | high_half(right) << 16);
}
inline I32 digit_products(I32 pairs, I32 low, I32 high) {
  return add32(pair_products(pairs, low), shift_left<16>(pair_products(pairs, high)));
}

// phi_fourier of digits of P, in lanes.
struct FourierLanes {
  I32 low, high;

  FourierLanes(const Grid& grid, uint32_t step)
      : low(digit_factors_low(grid.b * step, step)), high(digit_factors_high(grid.b * step, step)) {}
  template <int kCount>
  void operator()(const I32 (&pairs)[kCount], F32 (&sum)[kCount]) const {
    F32 y[kCount], z[kCount];
    for (int i = 0; i < kCount; ++i) y[i] = quarter_less(to_float(digit_products(pairs[i], low, high)));
    for (int i = 0; i < kCount; ++i) z[i] = fmul(y[i], y[i]);
    for (int i = 0; i < kCount; ++i) sum[i] = fadd(fmul(set_float(kSine3), z[i]), set_float(kSine2));
    for (int i = 0; i < kCount; ++i) sum[i] = fadd(fmul(sum[i], z[i]), set_float(kSine1));
    for (int i = 0; i < kCount; ++i) sum[i] = fadd(fmul(sum[i], z[i]), set_float(kSine0));
    for (int i = 0; i < kCount; ++i) sum[i] = fmul(sum[i], y[i]);
  }
};

// -log(x), in lanes.
template <int kCount>
inline void minus_log(F32 (&x)[kCount]) {
  constexpr float kCoefficients[] = {kLog6, kLog5, kLog4, kLog3, kLog2, kLog1, kLog0};
  F32 e[kCount], t[kCount];
  for (int i = 0; i < kCount; ++i) {
    const I32 bits = add32(as_bits(x[i]), set32(kLogCarry));
    e[i] = fmul(to_float(sub32(shift_right<23>(bits), set32(127))), set_float(kMinusLogOf2));
    t[i] = fadd(as_float(add32(and32(bits, set32(0x7FFFFF)), set32(kRootHalfBits))), set_float(-1.0f));
    x[i] = set_float(kLog7);
  }
  for (float c : kCoefficients)
    for (int i = 0; i < kCount; ++i) x[i] = fadd(fmul(x[i], t[i]), set_float(c));
  for (int i = 0; i < kCount; ++i) x[i] = fadd(fmul(x[i], t[i]), e[i]);
}

// gumbel_noise of words, in lanes.
struct GumbelLanes {
  I32 high;

  explicit GumbelLanes(uint64_t seed) : high(set32(static_cast<uint32_t>(seed >> 32))) {}
  template <int kCount>
  void operator()(const I32 (&words)[kCount], F32 (&noise)[kCount]) const {
    I32 h[kCount];
    for (int i = 0; i < kCount; ++i)
      h[i] = add32(low_product32(xor32(words[i], shift_right<16>(words[i])), set32(kNoiseMix1)), high);
    for (int i = 0; i < kCount; ++i)
      h[i] = low_product32(xor32(h[i], shift_right<15>(h[i])), set32(kNoiseMix2));
    for (int i = 0; i < kCount; ++i) {
      h[i] = or32(shift_right<8>(xor32(h[i], shift_right<16>(h[i]))), set32(1));
      noise[i] = fmul(to_float(h[i]), set_float(0x1p-24f));
    }
    minus_log(noise);
    minus_log(noise);
  }
};

// kHalf logits of a type.
template <class T>
struct Lanes;

template <>
struct Lanes<Float32> {
  static F32 load(const float* from) { return load_floats(from); }
  static void store(float* to, F32 x) { store_floats(to, x); }
};

template <>
struct Lanes<Float16> {
  static F32 load(const uint16_t* from) { return load_halves(from); }
  static void store(uint16_t* to, F32 x) { store_halves(to, x); }
};

template <>
struct Lanes<BFloat16> {
  static F32 load(const uint16_t* from) { return as_float(shift_left<16>(widen16(from))); }
  static void store(uint16_t* to, F32 x) {
    const I32 bits = as_bits(x), even = and32(shift_right<16>(bits), set32(1));
    const I32 rounded = add32(add32(bits, set32(0x7FFF)), even);
    narrow16(to, shift_right<16>(or32(rounded, and32(nan_mask(x), set32(0x7FC00000)))));
  }
};

template <int kCount, class Phi>
inline void mark(F32 (&logits)[kCount], const uint32_t* pairs, float kappa, const Phi& phi) {
  I32 digits[kCount];
  F32 shift[kCount];
  for (int i = 0; i < kCount; ++i) digits[i] = load32(pairs + i * kHalf);
  phi(digits, shift);
  for (int i = 0; i < kCount; ++i) logits[i] = fadd(logits[i], fmul(set_float(kappa), shift[i]));
}

template <int kCount, class T, class Phi>
inline void mark_at(typename T::Storage* logits, const uint32_t* pairs, float kappa, const Phi& phi) {
  F32 values[kCount];
  for (int i = 0; i < kCount; ++i) values[i] = Lanes<T>::load(logits + i * kHalf);
  mark(values, pairs, kappa, phi);
  for (int i = 0; i < kCount; ++i) Lanes<T>::store(logits + i * kHalf, values[i]);
}

// logits[i] += kappa·phi(pairs[i]) for i < count.
template <class T, class Phi>
void add_grid_row(typename T::Storage* logits, int64_t stride, int count, const uint32_t* pairs, float kappa,
                  const Phi& phi) {
  if (stride != 1 || count < kHalf) {
    for (int i = 0; i < count; i += kHalf) {
      const int part = count - i < kHalf ? count - i : kHalf;
      typename T::Storage packed[kHalf] = {};
      for (int lane = 0; lane < part; ++lane) packed[lane] = logits[(i + lane) * stride];
      mark_at<1, T>(packed, pairs + i, kappa, phi);
      for (int lane = 0; lane < part; ++lane) logits[(i + lane) * stride] = packed[lane];
    }
    return;
  }
  // The last, partial register begins earlier and overlaps the previous one: it is loaded before and stored
  // after it, with equal values in the overlap.
  const int last = count - kHalf;
  F32 end[1] = {Lanes<T>::load(logits + last)};
  int i = 0;
  for (; i + kUnroll * kHalf <= count; i += kUnroll * kHalf)
    mark_at<kUnroll, T>(logits + i, pairs + i, kappa, phi);
  for (; i + kHalf <= count; i += kHalf) mark_at<1, T>(logits + i, pairs + i, kappa, phi);
  if (i == count) return;
  mark(end, pairs + last, kappa, phi);
  Lanes<T>::store(logits + last, end[0]);
}

template <class T>
void embed_row(const KernelParams& params, const Grid& grid, const RoundKeys& keys, uint32_t step, float kappa,
               typename T::Storage* logits, int64_t stride, Tables& tables, typename T::Storage* saved) {
  const FourierLanes lanes(grid, step);
  const uint32_t cells = static_cast<uint32_t>(grid.a) * grid.b;
  int64_t count_saved = 0;
  for (uint32_t r = grid.vocab; r < cells; ++r) {
    const uint32_t v = unmix(r, keys, grid);
    if (v < grid.vocab) saved[count_saved++] = logits[v * stride];
  }
  for (int64_t i = 0; i < params.n_unmarked; ++i) saved[count_saved++] = logits[params.unmarked[i] * stride];

  for (int i = 0; i < grid.b; ++i)
    tables.round2[i] = tables.round2[i + grid.b] = bmix(static_cast<uint16_t>(i), keys.k2, grid.a);
  for (int number = 0; number < grid.a; ++number) {
    const uint32_t first = static_cast<uint32_t>(number) * grid.b;
    const int count = static_cast<int>(first + grid.b <= grid.vocab ? grid.b : grid.vocab - first);
    permute_grid_row(number, keys, grid, tables);
    add_grid_row<T>(logits + first * stride, stride, count, tables.pairs, kappa, lanes);
  }

  int64_t next = 0;
  for (uint32_t r = grid.vocab; r < cells; ++r) {
    const uint32_t v = unmix(r, keys, grid);
    if (v >= grid.vocab) continue;
    const float shift = phi_fourier(permute(v, keys, grid), step);
    logits[v * stride] = T::store(marked_logit(T::load(saved[next++]), kappa, shift));
  }
  for (int64_t i = 0; i < params.n_unmarked; ++i) logits[params.unmarked[i] * stride] = saved[next++];
}

// The seed of a row; false if the row is not marked.
bool row_seed(const KernelParams& params, const EmbedArgs& args, int64_t row, uint64_t& seed) {
  const int64_t slot = args.slots[row], context_len = params.n_gram - 1;
  if (slot < 0) return false;
  const int64_t* context = args.contexts + row * context_len;
  uint32_t ids[16];
  bool marked = true;
  for (int64_t i = 0; i < context_len; ++i) {
    marked &= is_marked_id(context[i], params.vocab, params.unmarked, params.n_unmarked);
    ids[i] = static_cast<uint32_t>(context[i]);
  }
  const uint32_t count = args.counts == nullptr ? 0 : static_cast<uint32_t>(args.counts[row]);
  if (marked) seed = context_seed(params.subkeys + 2 * slot, ids, static_cast<uint32_t>(context_len), count);
  return marked;
}

template <class T>
typename T::Storage* row_logits(const EmbedArgs& args, int64_t row) {
  return reinterpret_cast<typename T::Storage*>(static_cast<char*>(args.logits) + row * args.row_stride);
}

// Family gumbel: logits[v] += kappa·noise(v) over every column.
template <class T>
void embed_noise_rows(const KernelParams& params, const EmbedArgs& args, int64_t begin, int64_t end) {
  const int64_t stride = args.element_stride / static_cast<int64_t>(sizeof(typename T::Storage));
  uint32_t words[kChunk + kPad];
  for (int64_t row = begin; row < end; ++row) {
    uint64_t seed;
    if (!row_seed(params, args, row, seed)) continue;
    const GumbelLanes noise(seed);
    auto* logits = row_logits<T>(args, row);
    for (int64_t first = 0; first < args.columns; first += kChunk) {
      const int count = static_cast<int>(args.columns - first < kChunk ? args.columns - first : kChunk);
      for (int i = 0; i < count + kHalf; ++i) words[i] = noise_word(seed, static_cast<uint32_t>(first + i));
      add_grid_row<T>(logits + first * stride, stride, count, words, args.kappas[row], noise);
    }
  }
}

// Family fourier: logits[v] += kappa·phi(P(v)) over the vocabulary.
template <class T>
void embed_phi_rows(const KernelParams& params, const EmbedArgs& args, int64_t begin, int64_t end,
                    void* saved) {
  const Grid& grid = params.grid;
  const int64_t stride = args.element_stride / static_cast<int64_t>(sizeof(typename T::Storage));
  Tables tables;
  bool prepared = false;
  for (int64_t row = begin; row < end; ++row) {
    uint64_t seed;
    if (!row_seed(params, args, row, seed)) continue;
    if (!prepared) {
      for (int i = 0; i < 2 * grid.b + kPad; ++i) tables.index[i] = static_cast<uint16_t>(i % grid.b);
      for (int i = 0; i < kPad; ++i) tables.round2[2 * grid.b + i] = 0;  // read by unused lanes
      prepared = true;
    }
    const uint32_t step = phase_step(params.k_p[args.slots[row]], grid.vocab);
    embed_row<T>(params, grid, RoundKeys(seed), step, args.kappas[row], row_logits<T>(args, row), stride,
                 tables, static_cast<typename T::Storage*>(saved));
  }
}

template <class T>
void embed_family(const KernelParams& params, const EmbedArgs& args, int64_t begin, int64_t end, void* saved) {
  if (params.family == Family::gumbel) return embed_noise_rows<T>(params, args, begin, end);
  return embed_phi_rows<T>(params, args, begin, end, saved);
}

// ---------------------------------------------------------------- choose

// The largest of some floats; -inf if all are NaN.
inline float highest_of(const float* x, int count) {
  float highest[32];
  for (int j = 0; j < 32; ++j) highest[j] = -__builtin_inff();
  int i = 0;
  for (; i + 32 <= count; i += 32)
    for (int j = 0; j < 32; ++j) highest[j] = x[i + j] > highest[j] ? x[i + j] : highest[j];
  for (; i < count; ++i) highest[0] = x[i] > highest[0] ? x[i] : highest[0];
  for (int j = 1; j < 32; ++j) highest[0] = highest[j] > highest[0] ? highest[j] : highest[0];
  return highest[0];
}

// The columns `[first, first + count)` of a row as floats, in the row itself or in `buffer`.
template <class T>
inline const float* floats_of(const typename T::Storage* logits, int64_t stride, int count, float* buffer) {
  if (stride == 1 && sizeof(typename T::Storage) == sizeof(float))
    return reinterpret_cast<const float*>(logits);
  int i = 0;
  if (stride == 1)
    for (; i + kHalf <= count; i += kHalf) store_floats(buffer + i, Lanes<T>::load(logits + i));
  for (; i < count; ++i) buffer[i] = T::load(logits[i * stride]);
  return buffer;
}

struct Choice {
  float sum = -__builtin_inff();
  int64_t id = -1;
};

// Return the bits that the hash of an id has at least, if its logit + kappa·noise may reach `best`.
//
// noise >= g means u >= exp(-exp(-g)) >= 1 - 2^-k for k <= g/log(2): the first k bits of the hash are 1. g is
// lower than needed by more than what rounding changes.
inline uint32_t fewest_bits(float logit, float kappa, float best) {
  const float rounding = 1e-6f * (magnitude(best) + magnitude(logit));
  const float bits = ((best - logit - rounding) / magnitude(kappa) - 1e-3f) * 1.4426f;
  if (!(bits >= 1)) return 0;
  const int k = bits < 23 ? static_cast<int>(bits) : 23;
  return 0xFFFFFFFFu << (32 - k);
}

// Update a choice with `count` columns from `first` on, whose largest logit is `highest`.
inline void choose_among(const float* logits, int64_t first, int count, float highest, float kappa,
                         uint64_t seed, Choice& choice) {
  // The largest noise there is, so that no sum is above the bound.
  if (marked_logit(highest, kappa, gumbel_noise(0xFFFFFFu)) < choice.sum) return;
  uint32_t words[kSkipped + kPad];
  for (int i = 0; i < count; ++i) words[i] = noise_word(seed, static_cast<uint32_t>(first + i));
  const uint32_t high = static_cast<uint32_t>(seed >> 32), fewest = fewest_bits(highest, kappa, choice.sum);
  if (fewest > 0) {
    uint32_t reached = 0;
    for (int i = 0; i < count; ++i) reached |= noise_hash(words[i], high) >= fewest ? 1u : 0u;
    if (!reached) return;
  }
  for (int i = count; i < count + kHalf; ++i) words[i] = 0;
  const GumbelLanes noise(seed);
  float sums[kSkipped + kPad];
  for (int i = 0; i < count; ++i) sums[i] = logits[i];
  for (int i = 0; i < count; i += kHalf) mark_at<1, Float32>(sums + i, words + i, kappa, noise);
  const float sum = highest_of(sums, count);
  if (!(sum >= choice.sum)) return;
  for (int i = 0; i < count; ++i) {
    if (sums[i] != sum) continue;
    if (sum > choice.sum || first + i < choice.id) choice = {sum, first + i};
    return;
  }
}

// Blocks of columns are visited from the one with the largest logit on; most of the others cannot win.
template <class T>
void choose_family(const KernelParams& params, const ChooseArgs& args, int64_t begin, int64_t end,
                   float* maxima) {
  const int64_t stride = args.rows.element_stride / static_cast<int64_t>(sizeof(typename T::Storage));
  const int64_t columns = args.rows.columns, blocks = (columns + kSkipped - 1) / kSkipped;
  float buffer[kSkipped + kPad];
  for (int64_t row = begin; row < end; ++row) {
    uint64_t seed;
    args.chosen[row] = -1;
    if (!row_seed(params, args.rows, row, seed)) continue;
    const auto* logits = row_logits<T>(args.rows, row);
    const auto block = [&](int64_t b, int& count) {
      count = static_cast<int>(columns - b * kSkipped < kSkipped ? columns - b * kSkipped : kSkipped);
      return floats_of<T>(logits + b * kSkipped * stride, stride, count, buffer);
    };
    int64_t top = 0;
    int count;
    for (int64_t b = 0; b < blocks; ++b) {
      const float* x = block(b, count);
      maxima[b] = highest_of(x, count);
      if (maxima[b] > maxima[top]) top = b;
    }
    args.highest[row] = maxima[top];
    Choice choice;
    const float kappa = args.rows.kappas[row];
    for (int64_t turn = -1; turn < blocks && maxima[top] > -__builtin_inff(); ++turn) {
      const int64_t b = turn < 0 ? top : turn;
      if (turn == top || !(maxima[b] > -__builtin_inff())) continue;
      const float* x = block(b, count);
      choose_among(x, b * kSkipped, count, maxima[b], kappa, seed, choice);
    }
    args.chosen[row] = choice.id;
  }
}

}  // namespace

namespace IET_ISA {

void choose_rows(const KernelParams& params, const ChooseArgs& args, int64_t begin, int64_t end,
                 float* maxima) {
  switch (args.rows.dtype) {
    case DType::float32:
      return choose_family<Float32>(params, args, begin, end, maxima);
    case DType::float16:
      return choose_family<Float16>(params, args, begin, end, maxima);
    case DType::bfloat16:
      return choose_family<BFloat16>(params, args, begin, end, maxima);
  }
}

void embed_rows(const KernelParams& params, const EmbedArgs& args, int64_t begin, int64_t end, void* saved) {
  switch (args.dtype) {
    case DType::float32:
      return embed_family<Float32>(params, args, begin, end, saved);
    case DType::float16:
      return embed_family<Float16>(params, args, begin, end, saved);
    case DType::bfloat16:
      return embed_family<BFloat16>(params, args, begin, end, saved);
  }
}

}  // namespace IET_ISA
}  // namespace iet
