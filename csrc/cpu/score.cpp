// score_tokens and permute on the CPU: x_j(a) = phi(P(k_pi^(j), y_j)), one token at a time for each key.
//
// Tokens run in the lanes: a block of them is prepared once (what does not depend on the key), then each key
// makes three passes over the block, in 64-bit lanes (SipHash), 16-bit lanes (permutation) and 32-bit lanes
// (phi). No standard library here, as in embed.cpp.
#include "../ops.h"

namespace iet {
namespace {

constexpr int kBlock = 256;
constexpr int kMaxHashBlocks = 8;  // n <= 16: at most 15 ids and the length

struct Block {
  int count;
  uint64_t context[kMaxHashBlocks][kBlock];
  uint16_t left[kBlock], right[kBlock];  // digits of y_j
  uint64_t seeds[kBlock];
  uint16_t k1[kBlock], k2[kBlock], k3[kBlock], k4[kBlock];
  uint32_t ranks[kBlock];
  float scores[kBlock];
  bool scored[kBlock];
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

// P of the block's ids under its seeds. Walking is rare: lanes that leave [0, V) are walked on one by one.
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

void score_block(Family family, uint32_t k_p, uint32_t vocab, Block& block) {
  if (family == Family::fourier) {
    const uint32_t step = phase_step(k_p, vocab);
    for (int i = 0; i < block.count; ++i) block.scores[i] = score(phi_fourier(block.ranks[i], step));
  } else {
    for (int i = 0; i < block.count; ++i) block.scores[i] = score(phi_square(block.ranks[i], k_p, vocab));
  }
}

}  // namespace

namespace IET_ISA {

void score_cpu(const Marking& marking, const ScoreArgs& args) {
  const Grid grid = make_grid(marking.vocab);
  const uint32_t words = marking.n_gram - 1, hash_blocks = words / 2 + 1;
  Block block;
  for (int64_t first = 0; first < args.tokens; first += kBlock) {
    block.count = static_cast<int>(args.tokens - first < kBlock ? args.tokens - first : kBlock);
    for (int i = 0; i < block.count; ++i) {
      const int64_t j = first + i;
      block.scored[i] =
          is_scored(args.token_ids, j, marking.n_gram, marking.vocab, marking.unmarked, marking.n_unmarked);
      uint32_t context[16] = {};
      uint32_t id = 0;
      if (block.scored[i]) {
        id = static_cast<uint32_t>(args.token_ids[j]);
        for (uint32_t w = 0; w < words; ++w) context[w] = static_cast<uint32_t>(args.token_ids[j - words + w]);
      }
      for (uint32_t b = 0; b < hash_blocks; ++b) block.context[b][i] = context_block(context, words, b);
      block.left[i] = static_cast<uint16_t>(id / grid.b);
      block.right[i] = static_cast<uint16_t>(id % grid.b);
    }
    for (int64_t key = 0; key < marking.n_keys; ++key) {
      kHashContexts[hash_blocks - 1](marking.subkeys + 2 * key, block);
      permute_block(grid, block);
      score_block(marking.family, marking.k_p[key], marking.vocab, block);
      float* scores = args.scores + first * marking.n_keys + key;
      for (int i = 0; i < block.count; ++i)
        scores[i * marking.n_keys] = block.scored[i] ? block.scores[i] : 0.0f;
    }
  }
}

void permute_cpu(uint32_t vocab, const PermuteArgs& args) {
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
