// embed_ on the CPU: logits[v] += kappa * phi(P(v)) over every marked row.
//
// Per row of the a x b grid one pass: the permutation in 16-bit lanes, then phi and the logits in 32-bit lanes.
// The main loop ignores that E can leave [0, V): the few ids for which it does are found by inverting E, and
// mended afterwards.
//
// No standard library here: an inline function of it, compiled for AVX-512, could be linked in for everyone.
#include "../ops.h"
#include "lanes.h"

namespace iet {
namespace {

constexpr int kMaxB = 5120;  // ceil8(1.25 * sqrt(2^24))

// Rounds 1 and 2 shift and look up: within one grid row, round 1 rotates 0..b-1, and round 2 depends only on
// the rotated digit, so both read consecutive entries of a table made once per row of logits.
struct Tables {
  uint16_t index[2 * kMaxB + kLanes], round2[2 * kMaxB + kLanes];  // over one digit, twice in a row
};

inline U16 amix(U16 x, U16 k, U16 m) {
  return high_product(low_product(fold<7>(add16(low_product(x, set16(0x9E37)), k)), set16(0x2C1B)), m);
}

// Phases r·step mod 2^32 without r: L·(b·step) + R·step, each constant cut into 16-bit halves, the low one
// signed, for the instruction that multiplies and adds pairs of signed 16-bit numbers.
struct FourierLanes {
  I32 low, high;

  FourierLanes(const Marking& marking, const Grid& grid, int64_t slot, void*) {
    const uint32_t step = phase_step(marking.k_p[slot], grid.vocab), left = grid.b * step;
    const auto high_half = [](uint32_t x) { return (x + 0x8000u) >> 16; };
    low = set32((left & 0xFFFFu) | step << 16);
    high = set32(high_half(left) | high_half(step) << 16);
  }
  F32 operator()(I32 pairs) const {
    const I32 phase = add32(pair_products(pairs, low), shift_left<16>(pair_products(pairs, high)));
    const F32 y = quarter_less(to_float(phase)), z = fmul(y, y);
    F32 sum = fadd(fmul(set_float(kSine3), z), set_float(kSine2));
    sum = fadd(fmul(sum, z), set_float(kSine1));
    sum = fadd(fmul(sum, z), set_float(kSine0));
    return fmul(sum, y);
  }
};

// (k_p·r mod V) from one table for each digit, made once per row of logits.
struct SquareTables {
  uint32_t left[kMaxB], right[kMaxB];
};

struct SquareLanes {
  uint32_t vocab;
  SquareTables* tables;

  SquareLanes(const Marking& marking, const Grid& grid, int64_t slot, SquareTables* room)
      : vocab(grid.vocab), tables(room) {
    const uint64_t k_p = marking.k_p[slot];
    for (uint32_t left = 0; left < grid.a; ++left)
      tables->left[left] = static_cast<uint32_t>(k_p * left * grid.b % vocab);
    for (uint32_t right = 0; right < grid.b; ++right)
      tables->right[right] = static_cast<uint32_t>(k_p * right % vocab);
  }
  F32 operator()(I32 pairs) const {
    uint32_t digits[kLanes / 2];
    float signs[kLanes / 2];
    std::memcpy(digits, &pairs, sizeof digits);
    for (int i = 0; i < kLanes / 2; ++i) {
      uint32_t phase = tables->left[digits[i] & 0xFFFF] + tables->right[digits[i] >> 16];
      phase = phase >= vocab ? phase - vocab : phase;
      signs[i] = 2 * phase < vocab ? 1.0f : -1.0f;
    }
    return load_floats(signs);
  }
};

// kLanes logits of a type as two registers of floats, in an order of the type's own.
template <class T>
struct Lanes;

template <>
struct Lanes<Float32> {
  static void order(U16 left, U16 right, I32& first, I32& second) { pairs(left, right, first, second); }
  static void load(const float* from, F32& first, F32& second) {
    first = load_floats(from), second = load_floats(from + kLanes / 2);
  }
  static void store(float* to, F32 first, F32 second) {
    store_floats(to, first), store_floats(to + kLanes / 2, second);
  }
};

template <>
struct Lanes<Float16> {
  static void order(U16 left, U16 right, I32& first, I32& second) { pairs(left, right, first, second); }
  static void load(const uint16_t* from, F32& first, F32& second) {
    first = load_halves(from), second = load_halves(from + kLanes / 2);
  }
  static void store(uint16_t* to, F32 first, F32 second) {
    store_halves(to, first), store_halves(to + kLanes / 2, second);
  }
};

template <>
struct Lanes<BFloat16> {
  static void order(U16 left, U16 right, I32& first, I32& second) { split(left, right, first, second); }
  static void load(const uint16_t* from, F32& first, F32& second) {
    I32 low, high;
    split(set16(0), load16(from), low, high);
    first = as_float(low), second = as_float(high);
  }
  static I32 round(F32 x) {
    const I32 bits = as_bits(x), even = and32(shift_right<16>(bits), set32(1));
    const I32 rounded = add32(add32(bits, set32(0x7FFF)), even);
    return shift_right_signed<16>(or32(rounded, and32(nan_mask(x), set32(0x7FC00000))));
  }
  static void store(uint16_t* to, F32 first, F32 second) { store16(to, join(round(first), round(second))); }
};

// Everything about a row of logits but the logits.
template <class Phi>
struct Row {
  const Grid& grid;
  const RoundKeys& keys;
  float kappa;
  const Phi& phi;
  const Tables& tables;
};

// The marks of kLanes columns of a grid row, from column `at` on, of which only existing ones are used.
template <class T, class Phi>
inline void mark(const Row<Phi>& row, U16 grid_row, const uint16_t* index, const uint16_t* round2, F32& first,
                 F32& second) {
  const U16 a = set16(row.grid.a), b = set16(row.grid.b);
  U16 right = load16(index), left = add_mod(load16(round2), grid_row, a);
  right = add_mod(right, amix(left, set16(row.keys.k3), b), b);
  left = add_mod(left, amix(right, set16(row.keys.k4), a), a);
  I32 low, high;
  Lanes<T>::order(left, right, low, high);
  const F32 kappa = set_float(row.kappa);
  first = fadd(first, fmul(kappa, row.phi(low)));
  second = fadd(second, fmul(kappa, row.phi(high)));
}

template <class T, class Phi>
void embed_grid_row(const Row<Phi>& row, int number, typename T::Storage* logits, int64_t stride, int count) {
  const int shift = bmix(static_cast<uint16_t>(number), row.keys.k1, row.grid.b);
  const uint16_t *index = row.tables.index + shift, *round2 = row.tables.round2 + shift;
  const U16 grid_row = set16(static_cast<uint16_t>(number));
  F32 first, second;
  if (stride != 1 || count < kLanes) {
    for (int i = 0; i < count; i += kLanes) {
      const int part = count - i < kLanes ? count - i : kLanes;
      typename T::Storage packed[kLanes] = {};
      for (int lane = 0; lane < part; ++lane) packed[lane] = logits[(i + lane) * stride];
      Lanes<T>::load(packed, first, second);
      mark<T>(row, grid_row, index + i, round2 + i, first, second);
      Lanes<T>::store(packed, first, second);
      for (int lane = 0; lane < part; ++lane) logits[(i + lane) * stride] = packed[lane];
    }
    return;
  }
  // The last register ends with the row and overlaps its neighbour: it is loaded before and stored after it,
  // and what both hold is the same.
  const int last = count - kLanes;
  F32 last_first, last_second;
  Lanes<T>::load(logits + last, last_first, last_second);
  for (int i = 0; i < last; i += kLanes) {
    Lanes<T>::load(logits + i, first, second);
    mark<T>(row, grid_row, index + i, round2 + i, first, second);
    Lanes<T>::store(logits + i, first, second);
  }
  mark<T>(row, grid_row, index + last, round2 + last, last_first, last_second);
  Lanes<T>::store(logits + last, last_first, last_second);
}

template <class T, class Phi>
void embed_row(const Marking& marking, int64_t slot, const Row<Phi>& row, Tables& tables,
               typename T::Storage* logits, int64_t stride, typename T::Storage* saved) {
  const Grid& grid = row.grid;
  const uint32_t cells = static_cast<uint32_t>(grid.a) * grid.b;
  int64_t count_saved = 0;
  for (uint32_t r = grid.vocab; r < cells; ++r) {
    const uint32_t v = unmix(r, row.keys, grid);
    if (v < grid.vocab) saved[count_saved++] = logits[v * stride];
  }
  for (int64_t i = 0; i < marking.n_unmarked; ++i) saved[count_saved++] = logits[marking.unmarked[i] * stride];

  for (int i = 0; i < grid.b; ++i)
    tables.round2[i] = tables.round2[i + grid.b] = bmix(static_cast<uint16_t>(i), row.keys.k2, grid.a);
  for (int number = 0; number < grid.a; ++number) {
    const uint32_t first = static_cast<uint32_t>(number) * grid.b;
    const int count = static_cast<int>(first + grid.b <= grid.vocab ? grid.b : grid.vocab - first);
    embed_grid_row<T>(row, number, logits + first * stride, stride, count);
  }

  const uint32_t k_p = marking.k_p[slot], step = phase_step(k_p, grid.vocab);
  int64_t next = 0;
  for (uint32_t r = grid.vocab; r < cells; ++r) {
    const uint32_t v = unmix(r, row.keys, grid);
    if (v >= grid.vocab) continue;
    const float shift = phi(marking.family, permute(v, row.keys, grid), k_p, step, grid.vocab);
    logits[v * stride] = T::store(marked_logit(T::load(saved[next++]), row.kappa, shift));
  }
  for (int64_t i = 0; i < marking.n_unmarked; ++i) logits[marking.unmarked[i] * stride] = saved[next++];
}

template <class T, class Phi, class Room>
void embed_rows_of(const Marking& marking, const EmbedArgs& args, int64_t begin, int64_t end, void* saved) {
  const Grid grid = make_grid(marking.vocab);
  const int64_t words = marking.n_gram - 1;
  const int64_t stride = args.element_stride / static_cast<int64_t>(sizeof(typename T::Storage));
  Tables tables;
  Room room;
  for (int i = 0; i < 2 * grid.b + kLanes; ++i) tables.index[i] = static_cast<uint16_t>(i % grid.b);
  for (int i = 0; i < kLanes; ++i) tables.round2[2 * grid.b + i] = 0;  // read by lanes that nobody uses
  for (int64_t row = begin; row < end; ++row) {
    const int64_t slot = args.slots[row];
    if (slot < 0) continue;
    const int64_t* context = args.contexts + row * words;
    uint32_t ids[16];
    bool marked = true;
    for (int64_t i = 0; i < words; ++i) {
      marked &= is_marked_id(context[i], marking.vocab, marking.unmarked, marking.n_unmarked);
      ids[i] = static_cast<uint32_t>(context[i]);
    }
    if (!marked) continue;
    const RoundKeys keys(context_seed(marking.subkeys + 2 * slot, ids, static_cast<uint32_t>(words)));
    const Phi phi(marking, grid, slot, &room);
    auto* logits =
        reinterpret_cast<typename T::Storage*>(static_cast<char*>(args.logits) + row * args.row_stride);
    embed_row<T, Phi>(marking, slot, {grid, keys, args.kappas[row], phi, tables}, tables, logits, stride,
                      static_cast<typename T::Storage*>(saved));
  }
}

struct Nothing {};

template <class T>
void embed_family(const Marking& marking, const EmbedArgs& args, int64_t begin, int64_t end, void* saved) {
  if (marking.family == Family::fourier)
    return embed_rows_of<T, FourierLanes, Nothing>(marking, args, begin, end, saved);
  return embed_rows_of<T, SquareLanes, SquareTables>(marking, args, begin, end, saved);
}

}  // namespace

namespace IET_ISA {

void embed_rows(const Marking& marking, const EmbedArgs& args, int64_t begin, int64_t end, void* saved) {
  switch (args.dtype) {
    case DType::float32:
      return embed_family<Float32>(marking, args, begin, end, saved);
    case DType::float16:
      return embed_family<Float16>(marking, args, begin, end, saved);
    case DType::bfloat16:
      return embed_family<BFloat16>(marking, args, begin, end, saved);
  }
}

}  // namespace IET_ISA
}  // namespace iet
