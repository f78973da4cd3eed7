// embed_ on the CPU: logits[v] += kappa * phi(P(v)), or the noise of family gumbel, over every marked row.
//
// Each row of the a x b grid takes two passes: the permutation in 16-bit lanes into a buffer, then phi and the
// logits in 32-bit lanes, each with several registers at once to hide latency. The main loop ignores that E can
// leave [0, V). These few ids are found by inverting E, and corrected afterwards.
//
// No standard library here: the linker could use its inline functions, compiled for AVX-512, on every
// processor.
#include "loops.h"
#include "noise.h"

namespace iet {
namespace {

constexpr int kMaxB = 5120;             // ceil8(1.25 * sqrt(2^24))
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

}  // namespace

namespace IET_ISA {

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
