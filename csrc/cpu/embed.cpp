// embed_ on the CPU: logits[v] += kappa * phi(P(v)) over every marked row.
//
// Per row of the a x b grid two passes over one L1 buffer: the permutation in 16-bit lanes, then phi and the
// logits in 32-bit lanes. One fused pass would wait on the latency of its own chain. The main loop ignores
// that E can leave [0, V): the few ids for which it does are found by inverting E, and mended afterwards.
//
// No standard library here: an inline function of it, compiled for AVX-512, could be linked in for everyone.
#include "../ops.h"

namespace iet {
namespace {

constexpr int kPad = 64;  // lanes that the first pass may compute beyond a grid row

constexpr int kMaxB = 5120;  // ceil8(1.25 * sqrt(2^24))

struct Buffers {
  uint16_t index[2 * kMaxB + kPad], round2[2 * kMaxB + kPad];  // tables over one digit, twice in a row
  uint16_t left[kMaxB + kPad], right[kMaxB + kPad];            // digits of P along one grid row
};

// Rounds 1 and 2 shift and look up: within one grid row, round 1 rotates 0..b-1, and round 2 depends only on
// the rotated digit, so both read consecutive entries of a table made once per row of logits.
inline void permute_grid_row(int row, int lanes, const RoundKeys& keys, const Grid& grid, Buffers& buffers) {
  const int shift = bmix(static_cast<uint16_t>(row), keys.k1, grid.b);
  const uint16_t* __restrict index = buffers.index + shift;
  const uint16_t* __restrict round2 = buffers.round2 + shift;
  uint16_t* __restrict left_out = buffers.left;
  uint16_t* __restrict right_out = buffers.right;
  const uint16_t k3 = keys.k3, k4 = keys.k4;
  const Grid g = grid;
  for (int i = 0; i < lanes; ++i) {
    uint16_t left = add_mod(static_cast<uint16_t>(row), round2[i], g.a), right = index[i];
    last_rounds(left, right, k3, k4, g);
    left_out[i] = left;
    right_out[i] = right;
  }
}

template <class T, class Phi>
inline void add_grid_row(typename T::Storage* __restrict logits, int64_t stride, int count, float kappa,
                         const Grid& grid, const Buffers& buffers, Phi phi) {
  const uint16_t* __restrict left = buffers.left;
  const uint16_t* __restrict right = buffers.right;
  const uint32_t b = grid.b;
  for (int i = 0; i < count; ++i) {
    const uint32_t rank = left[i] * b + right[i];
    logits[i * stride] = T::store(marked_logit(T::load(logits[i * stride]), kappa, phi(rank)));
  }
}

template <class T, class Phi>
void embed_row(const Marking& marking, const Grid& grid, const RoundKeys& keys, float kappa,
               typename T::Storage* logits, int64_t stride, Buffers& buffers, typename T::Storage* saved,
               Phi phi) {
  const uint32_t cells = static_cast<uint32_t>(grid.a) * grid.b;
  int64_t count_saved = 0;
  for (uint32_t r = grid.vocab; r < cells; ++r) {
    const uint32_t v = unmix(r, keys, grid);
    if (v < grid.vocab) saved[count_saved++] = logits[v * stride];
  }
  for (int64_t i = 0; i < marking.n_unmarked; ++i) saved[count_saved++] = logits[marking.unmarked[i] * stride];

  for (int i = 0; i < grid.b; ++i)
    buffers.round2[i] = buffers.round2[i + grid.b] = bmix(static_cast<uint16_t>(i), keys.k2, grid.a);
  for (int row = 0; row < grid.a; ++row) {
    const uint32_t first = static_cast<uint32_t>(row) * grid.b;
    const int count = static_cast<int>(first + grid.b <= grid.vocab ? grid.b : grid.vocab - first);
    permute_grid_row(row, (grid.b + 31) / 32 * 32, keys, grid, buffers);
    if (stride == 1) add_grid_row<T>(logits + first, 1, count, kappa, grid, buffers, phi);
    else add_grid_row<T>(logits + first * stride, stride, count, kappa, grid, buffers, phi);
  }

  int64_t next = 0;
  for (uint32_t r = grid.vocab; r < cells; ++r) {
    const uint32_t v = unmix(r, keys, grid);
    if (v < grid.vocab)
      logits[v * stride] = T::store(marked_logit(T::load(saved[next++]), kappa, phi(permute(v, keys, grid))));
  }
  for (int64_t i = 0; i < marking.n_unmarked; ++i) logits[marking.unmarked[i] * stride] = saved[next++];
}

template <class T>
void embed_rows(const Marking& marking, const EmbedArgs& args) {
  const Grid grid = make_grid(marking.vocab);
  const int64_t words = marking.n_gram - 1;
  const int64_t stride = args.element_stride / static_cast<int64_t>(sizeof(typename T::Storage));
  auto* saved = static_cast<typename T::Storage*>(args.saved);
  Buffers buffers;
  for (int i = 0; i < 2 * grid.b + kPad; ++i) buffers.index[i] = static_cast<uint16_t>(i % grid.b);
  for (int i = 0; i < kPad; ++i) buffers.round2[2 * grid.b + i] = 0;  // read by lanes that nobody uses
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.slots[row] < 0) continue;
    const int64_t* context = args.contexts + row * words;
    uint32_t ids[16];
    bool marked = true;
    for (int64_t i = 0; i < words; ++i) {
      marked &= is_marked_id(context[i], marking.vocab, marking.unmarked, marking.n_unmarked);
      ids[i] = static_cast<uint32_t>(context[i]);
    }
    if (!marked) continue;
    const int64_t slot = args.slots[row];
    const uint32_t k_p = marking.k_p[slot], vocab = marking.vocab;
    const RoundKeys keys(context_seed(marking.subkeys + 2 * slot, ids, static_cast<uint32_t>(words)));
    auto* logits =
        reinterpret_cast<typename T::Storage*>(static_cast<char*>(args.logits) + row * args.row_stride);
    if (marking.family == Family::fourier) {
      const uint32_t step = phase_step(k_p, vocab);
      embed_row<T>(marking, grid, keys, args.kappas[row], logits, stride, buffers, saved,
                   [step](uint32_t rank) { return phi_fourier(rank, step); });
    } else {
      embed_row<T>(marking, grid, keys, args.kappas[row], logits, stride, buffers, saved,
                   [k_p, vocab](uint32_t rank) { return phi_square(rank, k_p, vocab); });
    }
  }
}

}  // namespace

namespace IET_ISA {

void embed_cpu(const Marking& marking, const EmbedArgs& args) {
  switch (args.dtype) {
    case DType::float32:
      return embed_rows<Float32>(marking, args);
    case DType::float16:
      return embed_rows<Float16>(marking, args);
    case DType::bfloat16:
      return embed_rows<BFloat16>(marking, args);
  }
}

}  // namespace IET_ISA
}  // namespace iet
