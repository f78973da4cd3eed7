// The green lists of KGW as transformers has them, and torch's shuffle; docs/internals/foreign_marks.md has the
// equations, benchmarks/security/foreign_marks.py readable twins. No standard library here, as in embed.cpp.
#include "../cpu/lanes.h"
#include "schemes.h"
#include "twister.h"

namespace iet {
namespace {

// Step i of torch.randperm's shuffle swaps the places i and t = i + draw mod (vocab - i). So a token that lies
// at t is final at i, one of the first `green` places; one that lies at i moves on to t. Many lists are made
// side by side, a few steps at once: what their t are does not depend on the tokens, and whether one of them is
// a token's place, or the token's place is one of these steps, is a comparison each.
constexpr int kLists = kGreenLists, kSteps = 48;
static_assert(kTwisterState % kSteps == 0, "whole rounds of the generator");

using ListWords = uint32_t[kLists];
constexpr int kHalfLanes = kLanes / 2;  // of I32
static_assert(kLists % kHalfLanes == 0, "whole vectors");
constexpr int kVectors = kLists / kHalfLanes;
constexpr uint32_t kNowhere = 0xFFFFFFFFu;  // the place of no token

struct alignas(64) Lists {
  ListWords words[kTwisterState], targets[kSteps];
};

// draw mod left. A product of floats is the quotient, or, as roundings and the draw's last bit take at most
// 1537 / left from it, 1 less.
constexpr uint32_t kLeastLeft = 1 << 11;
inline I32 rest_of(I32 draw, I32 left, F32 factor) {
  const I32 quotient = to_int(fmul(to_float(shift_right<1>(draw)), factor));
  const I32 rest = sub32(draw, low_product32(quotient, left));
  return min32(rest, sub32(rest, left));
}

void seed_lists(const uint32_t* seeds, int64_t count, Lists& lists) {
  for (int l = 0; l < kLists; ++l) lists.words[0][l] = seeds[l < count ? l : 0];
  const I32 factor = set32(1812433253u);
  I32 x[kVectors];
  for (int v = 0; v < kVectors; ++v) x[v] = load32(lists.words[0] + v * kHalfLanes);
  for (int i = 1; i < kTwisterState; ++i) {
    for (int v = 0; v < kVectors; ++v) {  // side by side, as each word waits for the one before it
      x[v] = add32(low_product32(xor32(x[v], shift_right<30>(x[v])), factor), set32(static_cast<uint32_t>(i)));
      store32(lists.words[i] + v * kHalfLanes, x[v]);
    }
  }
}

// The targets of the steps [first, last), from the words of the generators: `twist` and `temper` of twister.h.
void make_targets(const GreenArgs& args, uint32_t first, uint32_t last, Lists& lists) {
  const I32 low_bits = set32(0x7FFFFFFFu), one = set32(1), zero = set32(0), matrix = set32(0x9908B0DFu);
  const I32 mask7 = set32(0x9D2C5680u), mask15 = set32(0xEFC60000u);
  const int word = static_cast<int>(first % kTwisterState), count = static_cast<int>(last - first);
  const bool vectors = args.vocab - last >= kLeastLeft;
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
        y = add32(rest_of(y, set32(steps[k].left), set_float(steps[k].factor)), set32(steps[k].step));
      store32(lists.targets[k] + l, y);
    }
  }
  for (int k = 0; k < count && !vectors; ++k)
    for (uint32_t& target : lists.targets[k]) target = steps[k].step + target % steps[k].left;
}

// Which lists have to do with their token in these steps, and whether any.
bool meet(uint32_t first, int count, const Lists& lists, const uint32_t* places, ListWords met) {
  for (int l = 0; l < kLists; l += kHalfLanes) {
    const I32 place = load32(places + l), after = sub32(place, set32(first));
    I32 found = or_equal(set32(0), min32(after, set32(static_cast<uint32_t>(count - 1))), after);
    for (int k = 0; k < count; ++k) found = or_equal(found, load32(lists.targets[k] + l), place);
    store32(met + l, found);
  }
  uint32_t any = 0;
  for (int l = 0; l < kLists; ++l) any |= met[l];
  return any != 0;
}

// Do the steps for one token, and return whether it is final.
bool follow(uint32_t first, int count, const uint32_t* targets, uint32_t& place) {
  for (int k = 0; k < count; ++k, targets += kLists) {
    if (*targets == place) return true;
    if (place == first + static_cast<uint32_t>(k)) place = *targets;
  }
  return false;
}

// The tokens of up to kLists seeds. `places`: room for kLists words for each token of any seed.
void find_green(const GreenArgs& args, int64_t seed, int64_t count, uint32_t* places, Lists& lists) {
  const uint32_t steps = args.green < args.vocab ? args.green : args.vocab - 1;
  const int64_t* offsets = args.offsets + seed;
  int64_t most = 0;
  for (int64_t l = 0; l < count; ++l) {
    const int64_t tokens = offsets[l + 1] - offsets[l];
    most = tokens > most ? tokens : most;
  }
  for (int64_t n = 0; n < most; ++n) {
    for (int64_t l = 0; l < kLists; ++l) {
      const bool there = l < count && offsets[l] + n < offsets[l + 1];
      places[n * kLists + l] = there ? args.tokens[offsets[l] + n] : kNowhere;
      if (there) args.is_green[offsets[l] + n] = args.green < args.vocab ? 0 : 1;
    }
  }
  seed_lists(args.seeds + seed, count, lists);
  for (uint32_t first = 0; first < steps; first += kSteps) {
    const uint32_t last = steps - first < kSteps ? steps : first + kSteps;
    const int now = static_cast<int>(last - first);
    make_targets(args, first, last, lists);
    for (int64_t n = 0; n < most; ++n) {
      uint32_t* place = places + n * kLists;
      ListWords met;
      if (!meet(first, now, lists, place, met)) continue;
      for (int64_t l = 0; l < count; ++l) {
        if (met[l] == 0 || !follow(first, now, lists.targets[0] + l, place[l])) continue;
        args.is_green[offsets[l] + n] = 1;
        place[l] = kNowhere;
      }
    }
  }
}

}  // namespace

namespace IET_ISA {

void kgw_green(const GreenArgs& args, int64_t begin, int64_t end, uint32_t* places) {
  Lists lists;
  for (int64_t seed = begin; seed < end; seed += kLists)
    find_green(args, seed, end - seed < kLists ? end - seed : kLists, places, lists);
}

void torch_permute(uint32_t count, uint32_t seed, uint32_t* permutation) {
  Twister twister;
  twister.seed_with_word(seed);
  for (uint32_t i = 0; i < count; ++i) permutation[i] = i;
  for (uint32_t first = 0; first + 1 < count; first += kTwisterState) {
    twister.advance();
    for (uint32_t k = 0; k < kTwisterState && first + k + 1 < count; ++k) {
      const uint32_t step = first + k, other = step + temper(twister.words[k]) % (count - step);
      const uint32_t kept = permutation[step];
      permutation[step] = permutation[other];
      permutation[other] = kept;
    }
  }
}

}  // namespace IET_ISA
}  // namespace iet
