// Ranks under the permutations of the public Waterfall package: RandomState((id, *context)).permutation(V).
//
//   state     MT19937, seeded by init_by_array with the words (id, context ids)
//   draw      step i from V-1 down to 1: the next 32-bit output, cut to the bits of i, until it is at most i
//   shuffle   p = (0, 1, ..., V-1);  step i swaps p[i] and p[draw of i];  the rank of token v is p[v]
//
// Scoring needs p[v] for a few v, so no shuffle is made. p[v] is final after step v, and the draws give its
// origin: it was at the position drawn in step v, and before an earlier step i that drew this position, at i.
// So the draws of the steps V-1 .. v are kept, and each token is followed through them backwards.
// If many tokens share a context, one full shuffle is cheaper.
//
// Draws are made in blocks without a branch. Two bounds usually decide all lanes of a block: lane k accepts a
// draw up to i - k, and no lane accepts a draw above i. Accepted draws are counted one by one only if a draw
// lies between these bounds. No standard library here, as in embed.cpp.
#include "schemes.h"
#include "twister.h"

namespace iet {
namespace {

constexpr int kBlock = kWaterfallBlock, kState = kTwisterState;
static_assert(kState % kBlock == 0 && kBlock % 16 == 0, "whole blocks, whole vectors");
constexpr int kFewTokens = 24;  // up to this number, following each token is faster than a shuffle

// The smallest 2^k - 1 that is at least x.
inline uint32_t bits_below(uint32_t x) {
  for (int shift = 1; shift < 32; shift *= 2) x |= x >> shift;
  return x;
}

// The draws from step V-1 on, including rejected ones. A rejected draw is above its step, hence above every
// position that is followed, so it never matches one.
struct DrawHistory {
  uint32_t* draws;  // [capacity, kBlock]
  uint32_t* steps;  // [capacity], step of the first draw of each block
  int64_t capacity, blocks;
};

// Make the draws of the steps V-1 .. last (>= 1). Return false if they exceed the capacity, which has a
// negligible probability.
bool make_draws(Twister& twister, uint32_t vocab, uint32_t last, DrawHistory& history) {
  uint32_t step = vocab - 1, mask = bits_below(step);
  for (history.blocks = 0;;) {
    twister.advance();
    for (int first = 0; first < kState; first += kBlock) {
      if (history.blocks == history.capacity) return false;
      const uint32_t* __restrict words = twister.words + first;
      uint32_t* __restrict draws = history.draws + history.blocks * kBlock;
      history.steps[history.blocks++] = step;
      const int32_t limit = static_cast<int32_t>(step);
      uint32_t min_accepted = 0, max_accepted = 0;
      for (int k = 0; k < kBlock; ++k) {
        const int32_t draw = static_cast<int32_t>(temper(words[k]) & mask);
        draws[k] = static_cast<uint32_t>(draw);
        min_accepted += draw <= limit - k ? 1 : 0;
        max_accepted += draw <= limit ? 1 : 0;
      }
      const uint32_t half = mask >> 1;  // steps up to here need one bit less
      if (min_accepted == max_accepted && step > half + min_accepted) {
        step -= min_accepted;
      } else if (step > half + kBlock) {
        for (int k = 0; k < kBlock; ++k) step -= draws[k] <= step ? 1 : 0;
      } else {
        for (int k = 0; k < kBlock; ++k) {
          draws[k] = temper(words[k]) & mask;
          if (draws[k] > step) continue;
          if (step == last) return true;
          if (--step <= mask >> 1) mask >>= 1;
        }
      }
      if (step < last) return true;
    }
  }
}

// The step of draw `end` of a block.
inline uint32_t step_at(const DrawHistory& history, int64_t block, int end) {
  const uint32_t* draws = history.draws + block * kBlock;
  uint32_t step = history.steps[block];
  for (int k = 0; k < end; ++k) step -= draws[k] <= step ? 1 : 0;
  return step;
}

// p[token], from the draws of the steps V-1 .. max(token, 1).
uint32_t follow(uint32_t token, const DrawHistory& history) {
  int64_t block = history.blocks - 1;
  int end = kBlock;  // only draws before this one of the block remain to be undone
  uint32_t position = token;
  if (token == 0) {
    // No step belongs to position 0. Draws after step 1 in the last block were never made.
    uint32_t step = history.steps[block];
    for (end = 0; step > 0; ++end) step -= history.draws[block * kBlock + end] <= step ? 1 : 0;
  } else {
    for (int64_t low = 0; low < block;) {  // the last block that starts at step `token` or above
      const int64_t middle = (low + block + 1) / 2;
      if (history.steps[middle] >= token) low = middle;
      else block = middle - 1;
    }
    const uint32_t* draws = history.draws + block * kBlock;
    uint32_t step = history.steps[block];
    for (end = 0; draws[end] > step || step != token; ++end) step -= draws[end] <= step ? 1 : 0;
    position = draws[end];
  }
  for (;;) {
    const uint32_t* draws = history.draws + block * kBlock;
    uint32_t matches = 0;
    for (int k = 0; k < kBlock; ++k) matches |= draws[k] == position ? 1u : 0u;
    int hit = -1;
    if (matches)
      for (int k = 0; k < end; ++k) hit = draws[k] == position ? k : hit;
    if (hit >= 0) {
      position = step_at(history, block, hit);
      end = hit;
    } else if (block-- == 0) {
      return position;
    } else {
      end = kBlock;
    }
  }
}

void shuffle(Twister& twister, uint32_t vocab, uint32_t* ranks) {
  for (uint32_t v = 0; v < vocab; ++v) ranks[v] = v;
  uint32_t step = vocab - 1, mask = bits_below(step);
  while (step > 0) {
    twister.advance();
    for (int k = 0; k < kState && step > 0; ++k) {
      const uint32_t draw = temper(twister.words[k]) & mask;
      const bool accepted = draw <= step;  // a rejected draw swaps an entry with itself, without a branch
      const uint32_t other = accepted ? draw : step, swapped = ranks[step];
      ranks[step] = ranks[other];
      ranks[other] = swapped;
      step -= accepted ? 1 : 0;
      mask = step <= mask >> 1 ? mask >> 1 : mask;
    }
  }
}

}  // namespace

namespace IET_ISA {

void waterfall_ranks(const WaterfallArgs& args, int64_t begin, int64_t end, uint32_t* scratch) {
  const uint32_t context_len = args.n_gram - 1;
  const int64_t count = args.offsets[args.n_contexts];
  Twister start, twister;
  start.seed_with_word(19650218u);
  const int64_t capacity = waterfall_blocks(args.vocab);
  DrawHistory history = {scratch, scratch + capacity * kBlock, capacity, 0};
  uint32_t* table = history.steps + capacity;
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t key = pair / args.n_contexts, context = pair % args.n_contexts;
    const int64_t first = args.offsets[context], last = args.offsets[context + 1];
    if (first == last) continue;
    uint32_t* ranks = args.ranks + key * count;
    uint32_t seed[16] = {args.keys[key]};
    for (uint32_t w = 0; w < context_len; ++w) seed[w + 1] = args.contexts[context * context_len + w];
    if (args.vocab == 1) {  // nothing to draw
      for (int64_t i = first; i < last; ++i) ranks[i] = 0;
      continue;
    }
    twister.seed_with_key(start, seed, args.n_gram);
    const uint32_t lowest = args.tokens[first];  // tokens of a context ascend
    if (last - first <= kFewTokens && make_draws(twister, args.vocab, lowest > 0 ? lowest : 1, history)) {
      for (int64_t i = first; i < last; ++i) ranks[i] = follow(args.tokens[i], history);
      continue;
    }
    twister.seed_with_key(start, seed, args.n_gram);
    shuffle(twister, args.vocab, table);
    for (int64_t i = first; i < last; ++i) ranks[i] = table[args.tokens[i]];
  }
}

void waterfall_permute(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks) {
  Twister start, twister;
  start.seed_with_word(19650218u);
  twister.seed_with_key(start, seed, length);
  shuffle(twister, vocab, ranks);
}

}  // namespace IET_ISA
}  // namespace iet
