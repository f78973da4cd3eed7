// Arguments and declarations of the foreign marks. Instruction sets and threads are chosen as for our own
// marks.
#pragma once

#include "../cpu/loops.h"

namespace iet {

// Scheme `waterfall`: the distinct contexts of a text, the distinct tokens after each, and integer keys.
struct WaterfallArgs {
  uint32_t vocab, n_gram;
  const uint32_t* keys;  // [n_keys]
  int64_t n_keys;
  const uint32_t* contexts;  // [n_contexts, n-1], ids below V
  int64_t n_contexts;
  const int64_t* offsets;  // [n_contexts + 1]: the tokens after context c are [offsets[c], offsets[c + 1])
  const uint32_t* tokens;  // ids below V, ascending in each context
  uint32_t* ranks;         // [n_keys, offsets[n_contexts]]
};

constexpr int kWaterfallBlock = 48;  // draws

// Maximum number of blocks of draws of one permutation, which makes at most about 1.48 V draws.
static inline int64_t waterfall_blocks(uint32_t vocab) {
  return (2 * static_cast<int64_t>(vocab) + 4096) / kWaterfallBlock;
}

// Scratch that one thread needs, in words: draws, the step of each block, and a table of V ranks.
static inline int64_t waterfall_scratch(uint32_t vocab) {
  return waterfall_blocks(vocab) * (kWaterfallBlock + 1) + vocab;
}

// Marks of serving engines whose scores depend on a 32-bit word of key, context and token.
enum class EnginePrf : uint32_t { philox = 0, murmur = 1, hmac = 2, sbw_self = 3, sbw_left = 4 };

// The score of a word: -log(1 - u) with u of 24 or of 32 bits; whether the word is below `limit`; or the number
// of ones among the first `limit` bits of the words of as many streams as hold them, times `scale`, plus
// `offset`.
enum class EngineRule : uint32_t { log24 = 0, log32 = 1, below = 2, ones = 3 };

struct EngineArgs {
  EnginePrf prf;
  EngineRule rule;
  uint32_t limit;
  float scale, offset;
  const uint32_t* words;  // [width + tokens]: the context of token t is words[t .. t + width - 1]
  uint32_t width;         // 1 to 64; hmac, sbw_left: to 16; sbw_self: 0 to 16
  const bool* scored;     // [tokens]
  int64_t tokens;
  const uint64_t* keys;  // [n_keys]; hmac: [n_keys, 4], the lowest word first
  int64_t n_keys;
  float* scores;  // [tokens, n_keys] packed
};

// A step of torch.randperm.
struct GreenStep {
  uint32_t step, remaining;  // remaining = vocab - step
  float factor;              // 2 / remaining, reduced by 2 to 4 times 2^-24 of it
};

// KGW's green lists: the first `green` entries of torch.randperm(vocab), for each of some seeds.
struct GreenArgs {
  uint32_t vocab, green;
  const uint32_t* seeds;  // [n_seeds]
  int64_t n_seeds;
  const int64_t* offsets;  // [n_seeds + 1]: the tokens of seed s are [offsets[s], offsets[s + 1])
  const uint32_t* tokens;  // ids below V
  uint8_t* is_green;       // [offsets[n_seeds]]
  const GreenStep* steps;  // [green]
};
constexpr int kGreenLists = 32;  // lists that are shuffled together

// SynthID: a table of the g-values summed over depth, sum(hash) = Σ_d weights[d]·g[(hash + key_d) mod size].
// The score of an n-gram is scale·sum(hash) + offset.
struct SynthidArgs {
  uint32_t bits;            // size = 2^bits, up to 2^16
  const uint8_t* g_values;  // [2 size] 0 or 255; the second half repeats the first
  const uint32_t* keys;     // [n_keys, depth]
  const uint32_t* weights;  // [depth]; their sum is below 2^16, or below 2^8 if not `wide`
  uint32_t depth;
  int64_t n_keys;
  bool wide;
  void* tables;  // [size, n_keys] uint16, or uint8 if not `wide`; rows `stride` entries apart
  int64_t stride;
  uint32_t n_gram;
  const uint32_t* words;  // [tokens], the ids
  const bool* scored;     // [tokens]
  int64_t tokens;
  float scale, offset;
  float* scores;  // [tokens, n_keys] packed
};

void waterfall_ranks_cpu(const WaterfallArgs&, int num_threads);
void waterfall_permute_cpu(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks);
void engine_scores_cpu(const EngineArgs&, int num_threads);
void kgw_green_cpu(GreenArgs, int num_threads);
void synthid_tables_cpu(const SynthidArgs&, int num_threads);  // writes the tables
void synthid_scores_cpu(const SynthidArgs&, int num_threads);  // reads them
void torch_permute_cpu(uint32_t count, uint32_t seed, uint32_t* permutation);

// waterfall_ranks: the pairs [begin, end) of n_keys * n_contexts, key by key; a pair writes its own ranks only.
// kgw_green: the seeds [begin, end); `positions` is scratch, see find_green.
// synthid_tables: the keys [begin, end).
#define IET_FOREIGN_LOOPS(LOOP)                                                                   \
  LOOP(waterfall_ranks, const WaterfallArgs&, int64_t begin, int64_t end, uint32_t* scratch)      \
  LOOP(waterfall_permute, uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks) \
  LOOP(engine_tile, const EngineArgs&, const Tile&)                                               \
  LOOP(kgw_green, const GreenArgs&, int64_t begin, int64_t end, uint32_t* positions)              \
  LOOP(synthid_tables, const SynthidArgs&, int64_t begin, int64_t end)                            \
  LOOP(synthid_tile, const SynthidArgs&, const Tile&)                                             \
  LOOP(torch_permute, uint32_t count, uint32_t seed, uint32_t* permutation)
IET_DECLARE_LOOPS(ForeignLoops, IET_FOREIGN_LOOPS)

const ForeignLoops& foreign_loops(int isa);

}  // namespace iet
