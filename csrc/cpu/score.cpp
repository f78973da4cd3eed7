// score_tokens and permute on the CPU: x_j(a) = phi(P(k_pi^(j), y_j)), one token at a time for each key.
//
// Lanes are tokens. The values of a block of tokens that do not depend on the key are computed once; then each
// key makes three passes over the block, in 64-bit lanes (SipHash), 16-bit lanes (permutation) and 32-bit lanes
// (phi). No standard library here, as in embed.cpp.
#if defined(_MSC_VER)
#include <intrin.h>
#endif

#include "columns.h"
#include "loops.h"

namespace iet {
namespace {

constexpr int kBlock = kColumnTokens;
constexpr int kMaxHashBlocks = 8;  // n <= 16: at most 15 ids and the length

struct Block {
  int count;
  int64_t first;  // token of lane 0
  uint64_t context[kMaxHashBlocks][kBlock];
  uint16_t left[kBlock], right[kBlock];  // digits of y_j
  uint64_t seeds[kBlock];
  uint16_t k1[kBlock], k2[kBlock], k3[kBlock], k4[kBlock];
  uint32_t ranks[kBlock];
  float scores[kBlock];
  float mask[kBlock];  // 1 where scored, else 0
  int32_t units[kBlock];
};

template <int kBlocks>
void hash_contexts(const uint64_t* subkey, Block& block) {
  const uint64_t key0 = subkey[0], key1 = subkey[1];
  for (int i = 0; i < block.count; ++i) {
    SipHash hash(key0, key1);
    for (int b = 0; b < kBlocks; ++b) hash.absorb(block.context[b][i]);
    block.seeds[i] = hash.finish();
  }
}

using HashContexts = void (*)(const uint64_t*, Block&);
constexpr HashContexts kHashContexts[kMaxHashBlocks] = {hash_contexts<1>, hash_contexts<2>, hash_contexts<3>,
                                                        hash_contexts<4>, hash_contexts<5>, hash_contexts<6>,
                                                        hash_contexts<7>, hash_contexts<8>};

// Recompute the block's ids from their digits.
void score_noise(const Grid& grid, Block& block) {
  for (int i = 0; i < block.count; ++i) {
    const uint32_t v = static_cast<uint32_t>(block.left[i]) * grid.b + block.right[i];
    const uint32_t h = noise_hash(noise_word(block.seeds[i], v), static_cast<uint32_t>(block.seeds[i] >> 32));
    block.scores[i] = score(gumbel_score(uniform_numerator(h)));
  }
}

// P of the block's ids under its seeds. Lanes outside [0, V), which are rare, are permuted again one by one.
void permute_block(const Grid& grid, Block& block) {
  const Grid g = grid;
  for (int i = 0; i < block.count; ++i) {
    const RoundKeys keys(block.seeds[i]);
    block.k1[i] = keys.k1, block.k2[i] = keys.k2, block.k3[i] = keys.k3, block.k4[i] = keys.k4;
  }
  uint16_t left[kBlock], right[kBlock];
  for (int i = 0; i < block.count; ++i) {
    uint16_t l = block.left[i], r = block.right[i];
    r = add_mod(r, bmix(l, block.k1[i], g.b), g.b);
    l = add_mod(l, bmix(r, block.k2[i], g.a), g.a);
    last_rounds(l, r, block.k3[i], block.k4[i], g);
    left[i] = l, right[i] = r;
  }
  uint32_t highest = 0;
  for (int i = 0; i < block.count; ++i) {
    const uint32_t rank = static_cast<uint32_t>(left[i]) * g.b + right[i];
    block.ranks[i] = rank;
    highest = rank > highest ? rank : highest;
  }
  if (highest < g.vocab) return;
  for (int i = 0; i < block.count; ++i)
    while (block.ranks[i] >= g.vocab) block.ranks[i] = mix(block.ranks[i], RoundKeys(block.seeds[i]), g);
}

void score_ranks(uint32_t step, Block& block) {
  for (int i = 0; i < block.count; ++i) block.scores[i] = score(phi_fourier(block.ranks[i], step));
}

// Number of consecutive marked ids that end at j, at most n.
int64_t marked_run(const KernelParams& params, const int64_t* ids, int64_t j) {
  int64_t run = 0;
  while (run < params.n_gram && j - run >= 0 &&
         is_marked_id(ids[j - run], params.vocab, params.unmarked, params.n_unmarked))
    ++run;
  return run;
}

// Fill a block with the values that do not depend on the key. A position is scored if a run of n marked ids
// ends there. `counts` may be null.
void prepare_block(const KernelParams& params, const Grid& grid, const int64_t* ids, const int32_t* counts,
                   int64_t first, int64_t end, Block& block) {
  const uint32_t context_len = params.n_gram - 1, hash_blocks = context_len / 2 + 1;
  block.first = first;
  block.count = static_cast<int>(end - first < kBlock ? end - first : kBlock);
  int64_t run = marked_run(params, ids, first - 1);
  uint32_t scored_ids[kBlock];
  for (int i = 0; i < block.count; ++i) {
    const int64_t j = first + i;
    const bool marked = is_marked_id(ids[j], params.vocab, params.unmarked, params.n_unmarked);
    run = marked ? run + 1 : 0;
    const bool scored = run >= params.n_gram;
    uint32_t context[16] = {};
    if (scored)
      for (uint32_t w = 0; w < context_len; ++w) context[w] = static_cast<uint32_t>(ids[j - context_len + w]);
    for (uint32_t b = 0; b < hash_blocks; ++b) block.context[b][i] = context_block(context, context_len, b);
    if (counts != nullptr)
      block.context[hash_blocks - 1][i] |= count_bits(context_len, static_cast<uint32_t>(counts[j]));
    scored_ids[i] = scored ? static_cast<uint32_t>(ids[j]) : 0;
    block.mask[i] = scored ? 1.0f : 0.0f;
  }
  // v div b by a reciprocal: b <= 5120 and v < 2^24, so that the quotient in float64 is off by less than 1/b.
  const double reciprocal = 1.0 / grid.b;
  for (int i = 0; i < block.count; ++i) {
    const uint32_t left =
        static_cast<uint32_t>(static_cast<int32_t>((static_cast<int32_t>(scored_ids[i]) + 0.5) * reciprocal));
    block.left[i] = static_cast<uint16_t>(left);
    block.right[i] = static_cast<uint16_t>(scored_ids[i] - left * grid.b);
  }
}

void score_key(const KernelParams& params, const Grid& grid, int64_t key, Block& block) {
  kHashContexts[(params.n_gram - 1) / 2](params.subkeys + 2 * key, block);
  if (params.family == Family::gumbel) return score_noise(grid, block);
  permute_block(grid, block);
  score_ranks(phase_step(params.k_p[key], params.vocab), block);
}

// Round to the nearest integer, half to even, by adding 1.5·2^23: this rounds numbers up to 2^22. Larger
// numbers, which occur in family gumbel, are not negative, and integers from 2^23 on.
int32_t to_units(float x) {
  const float large = x < 0x1p22f ? 0x1.8p23f : 0x1p23f;
  const float rounded = x < 0x1p23f ? (x + large) - large : x;
  return static_cast<int32_t>(rounded);
}

inline void add(int64_t* sum, int64_t value, bool shared) {
  if (!shared) *sum += value;
#if defined(_MSC_VER)
  else _InterlockedExchangeAdd64(sum, value);
#else
  else __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
#endif
}

}  // namespace

namespace IET_ISA {

void score_tile(const KernelParams& params, const ScoreArgs& args, const Tile& tile) {
  const Grid& grid = params.grid;
  Block block;
  ScoreColumns gathered;
  for (int64_t first = tile.token_begin; first < tile.token_end; first += kBlock) {
    prepare_block(params, grid, args.token_ids, args.counts, first, tile.token_end, block);
    // Gather the columns of several keys first, see columns.h.
    for (int64_t key = tile.key_begin; key < tile.key_end; key += kColumns) {
      const int columns = static_cast<int>(tile.key_end - key < kColumns ? tile.key_end - key : kColumns);
      for (int c = 0; c < columns; ++c) {
        score_key(params, grid, key + c, block);
        for (int i = 0; i < block.count; ++i)
          gathered[c][i] = block.mask[i] != 0.0f ? block.scores[i] : 0.0f;  // not -0.0, as a product would
      }
      float* scores = args.scores + first * params.n_keys + key;
      write_rows(gathered, block.count, columns, params.n_keys, scores);
    }
  }
}

void score_spans_tile(const KernelParams& params, const SpansArgs& args, const Tile& tile) {
  const Grid& grid = params.grid;
  Block block;
  int64_t span = 0;  // the first one that ends after the block's first token, or args.spans
  for (int64_t low = 0, high = args.spans; low < high;) {
    const int64_t middle = (low + high) / 2;
    if (args.boundaries[middle + 1] > tile.token_begin) high = middle;
    else low = middle + 1;
    span = low;
  }
  for (int64_t first = tile.token_begin; first < tile.token_end; first += kBlock) {
    prepare_block(params, grid, args.token_ids, args.counts, first, tile.token_end, block);
    const int64_t end = first + block.count;
    for (int i = 0; i < block.count; ++i)
      block.mask[i] *= 0x1p22f * static_cast<float>(args.counted[first + i]);
    while (span < args.spans && args.boundaries[span + 1] <= first) ++span;
    for (int64_t key = tile.key_begin; key < tile.key_end; ++key) {
      score_key(params, grid, key, block);
      for (int i = 0; i < block.count; ++i) block.units[i] = to_units(block.scores[i] * block.mask[i]);
      for (int64_t s = span; s < args.spans && args.boundaries[s] < end; ++s) {
        const int64_t from = args.boundaries[s] > first ? args.boundaries[s] : first;
        const int64_t to = args.boundaries[s + 1] < end ? args.boundaries[s + 1] : end;
        int64_t sum = 0;
        for (int64_t i = from - first; i < to - first; ++i) sum += block.units[i];
        // Two tiles may share a span; sums of integers do not depend on the order.
        const bool shared = args.boundaries[s] < tile.token_begin || args.boundaries[s + 1] > tile.token_end;
        add(args.sums + s * params.n_keys + key, sum, shared);
      }
    }
  }
}

void permute_ids(uint32_t vocab, const PermuteArgs& args) {
  const Grid grid = make_grid(vocab);
  Block block;
  for (int64_t first = 0; first < args.count; first += kBlock) {
    block.count = static_cast<int>(args.count - first < kBlock ? args.count - first : kBlock);
    for (int i = 0; i < block.count; ++i) {
      block.seeds[i] = args.seeds[first + i];
      block.left[i] = static_cast<uint16_t>(args.ids[first + i] / grid.b);
      block.right[i] = static_cast<uint16_t>(args.ids[first + i] % grid.b);
    }
    permute_block(grid, block);
    for (int i = 0; i < block.count; ++i) args.ranks[first + i] = block.ranks[i];
  }
}

}  // namespace IET_ISA
}  // namespace iet
