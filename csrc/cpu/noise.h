// Rows of logits in lanes: loads and stores of their types, the noise of family gumbel, and seeds of rows.
#pragma once

#include "../ops.h"
#include "lanes.h"

namespace iet {
namespace {

constexpr int kHalf = kLanes / 2;  // logits of a register

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

}  // namespace
}  // namespace iet
