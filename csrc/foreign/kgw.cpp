// The green lists of KGW in transformers, and torch's shuffle. The equations are in
// docs/internals/foreign_marks.md, readable twins in benchmarks/security/foreign_marks.py. No standard library
// here, as in embed.cpp.
#include "../cpu/lanes.h"
#include "schemes.h"
#include "twister.h"

namespace iet {
namespace {

// Step i of torch.randperm's shuffle swaps positions i and t = i + draw mod (vocab - i). It moves a token from
// t to i, its final position, which is one of the first `green`. It moves a token from i to t. Many lists are
// shuffled together, a few steps at a time. The targets t do not depend on the tokens. So comparisons find the
// tokens that these steps move: their position is a target or one of the steps.
constexpr int kLists = kGreenLists, kSteps = 48;
static_assert(kTwisterState % kSteps == 0, "whole rounds of the generator");

using ListWords = uint32_t[kLists];
constexpr int kHalfLanes = kLanes / 2;  // of I32
static_assert(kLists % kHalfLanes == 0, "whole vectors");
constexpr int kVectors = kLists / kHalfLanes;
constexpr uint32_t kNoPosition = 0xFFFFFFFFu;  // of a token that is final, or missing

struct alignas(64) Lists {
  ListWords words[kTwisterState], targets[kSteps];
};

// draw mod `remaining`, which is at least kMinRemaining. The truncated product of floats is the quotient or 1
// less, because rounding and the draw's last bit reduce it by at most 1537 / remaining.
constexpr uint32_t kMinRemaining = 1 << 11;
inline I32 remainder_of(I32 draw, I32 remaining, F32 factor) {
  const I32 quotient = to_int(fmul(to_float(shift_right<1>(draw)), factor));
  const I32 remainder = sub32(draw, low_product32(quotient, remaining));
  return min32(remainder, sub32(remainder, remaining));
}

void seed_lists(const uint32_t* seeds, int64_t count, Lists& lists) {
  for (int l = 0; l < kLists; ++l) lists.words[0][l] = seeds[l < count ? l : 0];
  const I32 factor = set32(1812433253u);
  I32 x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load32(lists.words[0] + v * kHalfLanes);
  for (int i = 1; i < kTwisterState; ++i) {
    for (int v = 0; v < kVectors; ++v) {  // interleaved, because each word depends on the previous one
      x[v] = add32(low_product32(xor32(x[v], shift_right<30>(x[v])), factor), set32(static_cast<uint32_t>(i)));
      store32(lists.words[i] + v * kHalfLanes, x[v]);
    }
  }
}

// Compute the targets of the steps [first, last) from the generators' words, by `twist` and `temper` of
// twister.h in vectors.
void make_targets(const GreenArgs& args, uint32_t first, uint32_t last, Lists& lists) {
  const I32 low_bits = set32(0x7FFFFFFFu), one = set32(1), zero = set32(0), matrix = set32(0x9908B0DFu);
  const I32 mask7 = set32(0x9D2C5680u), mask15 = set32(0xEFC60000u);
  const int word = static_cast<int>(first % kTwisterState), count = static_cast<int>(last - first);
  const bool vectors = args.vocab - last >= kMinRemaining;
  const GreenStep* steps = args.steps + first;
  for (int l = 0; l < kLists; l += kHalfLanes) {
    I32 high = load32(lists.words[word] + l);
    for (int k = 0; k < count; ++k) {
      const int i = word + k, next = i + 1 < kTwisterState ? i + 1 : 0;
      const int middle =
          i < kTwisterState - kTwisterMiddle ? i + kTwisterMiddle : i + kTwisterMiddle - kTwisterState;
      const I32 low = load32(lists.words[next] + l);
      const I32 twisted = xor32(load32(lists.words[middle] + l), shift_right<1>(choose(low_bits, low, high)));
      I32 y = xor_and(twisted, sub32(zero, and32(low, one)), matrix);
      store32(lists.words[i] + l, y);
      high = low;
      y = xor32(y, shift_right<11>(y));
      y = xor_and(y, shift_left<7>(y), mask7);
      y = xor_and(y, shift_left<15>(y), mask15);
      y = xor32(y, shift_right<18>(y));
      if (vectors)
        y = add32(remainder_of(y, set32(steps[k].remaining), set_float(steps[k].factor)), set32(steps[k].step));
      store32(lists.targets[k] + l, y);
    }
  }
  for (int k = 0; k < count && !vectors; ++k)
    for (uint32_t& target : lists.targets[k]) target = steps[k].step + target % steps[k].remaining;
}

// Set `moves` to nonzero for each list whose token these steps move, and return whether there is one.
bool find_moves(uint32_t first, int count, const Lists& lists, const uint32_t* positions, ListWords moves) {
  for (int l = 0; l < kLists; l += kHalfLanes) {
    const I32 position = load32(positions + l), after = sub32(position, set32(first));
    I32 matches = or_equal(set32(0), min32(after, set32(static_cast<uint32_t>(count - 1))), after);
    for (int k = 0; k < count; ++k) matches = or_equal(matches, load32(lists.targets[k] + l), position);
    store32(moves + l, matches);
  }
  uint32_t any = 0;
  for (int l = 0; l < kLists; ++l) any |= moves[l];
  return any != 0;
}

// Apply the steps to the position of one token, and return whether it becomes final.
bool follow(uint32_t first, int count, const uint32_t* targets, uint32_t& position) {
  for (int k = 0; k < count; ++k, targets += kLists) {
    if (*targets == position) return true;
    if (position == first + static_cast<uint32_t>(k)) position = *targets;
  }
  return false;
}

// Mark the green tokens of up to kLists seeds. `positions` is scratch: kLists words for each token of the seed
// with the most tokens.
void find_green(const GreenArgs& args, int64_t seed, int64_t count, uint32_t* positions, Lists& lists) {
  const uint32_t steps = args.green < args.vocab ? args.green : args.vocab - 1;
  const int64_t* offsets = args.offsets + seed;
  int64_t max_tokens = 0;
  for (int64_t l = 0; l < count; ++l) {
    const int64_t tokens = offsets[l + 1] - offsets[l];
    max_tokens = tokens > max_tokens ? tokens : max_tokens;
  }
  for (int64_t n = 0; n < max_tokens; ++n) {
    for (int64_t l = 0; l < kLists; ++l) {
      const bool exists = l < count && offsets[l] + n < offsets[l + 1];
      positions[n * kLists + l] = exists ? args.tokens[offsets[l] + n] : kNoPosition;
      if (exists) args.is_green[offsets[l] + n] = args.green < args.vocab ? 0 : 1;
    }
  }
  seed_lists(args.seeds + seed, count, lists);
  for (uint32_t first = 0; first < steps; first += kSteps) {
    const uint32_t last = steps - first < kSteps ? steps : first + kSteps;
    const int count_steps = static_cast<int>(last - first);
    make_targets(args, first, last, lists);
    for (int64_t n = 0; n < max_tokens; ++n) {
      uint32_t* position = positions + n * kLists;
      ListWords moves;
      if (!find_moves(first, count_steps, lists, position, moves)) continue;
      for (int64_t l = 0; l < count; ++l) {
        if (moves[l] == 0 || !follow(first, count_steps, lists.targets[0] + l, position[l])) continue;
        args.is_green[offsets[l] + n] = 1;
        position[l] = kNoPosition;
      }
    }
  }
}

}  // namespace

namespace IET_ISA {

void kgw_green(const GreenArgs& args, int64_t begin, int64_t end, uint32_t* positions) {
  Lists lists;
  for (int64_t seed = begin; seed < end; seed += kLists)
    find_green(args, seed, end - seed < kLists ? end - seed : kLists, positions, lists);
}

void torch_permute(uint32_t count, uint32_t seed, uint32_t* permutation) {
  Twister twister;
  twister.seed_with_word(seed);
  for (uint32_t i = 0; i < count; ++i) permutation[i] = i;
  for (uint32_t first = 0; first + 1 < count; first += kTwisterState) {
    twister.advance();
    for (uint32_t k = 0; k < kTwisterState && first + k + 1 < count; ++k) {
      const uint32_t step = first + k, other = step + temper(twister.words[k]) % (count - step);
      const uint32_t swapped = permutation[step];
      permutation[step] = permutation[other];
      permutation[other] = swapped;
    }
  }
}

}  // namespace IET_ISA
}  // namespace iet
