// Which token family gumbel chooses if the sampler keeps only some tokens. One definition for host and device.
#pragma once

#include <limits>

#include "keyed.h"

namespace iet {

// The filters of a row's sampler. All tokens are kept by {-inf, 1, 0, 0}.
struct alignas(16) Filter {
  float log_min_p;
  float top_p;
  int32_t top_k;      // 0: none
  uint32_t share_of;  // what top_p is a share of: the tokens that kOfTopK and kOfMinP keep
};
enum ShareOf : uint32_t { kOfTopK = 1, kOfMinP = 2 };

struct Choice {
  float sum, logit;
  int64_t id;  // -1: none
};

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

IET_HD float larger(float x, float y) { return x > y ? x : y; }  // y if one of them is NaN

// The chosen logit is raised to this, so that its probability rounds to 1 in all that follows.
IET_HD float forced_logit(float highest, float kappa, float largest_finite) {
  const float raised = fadd(highest, fmul(128.0f, larger(kappa, 1.0f)));
  return raised > largest_finite && highest < largest_finite ? largest_finite : raised;
}

// Logits in the order of unsigned integers; the smallest float above another one.
IET_HD float of_order(uint32_t order) { return float_of(order >> 31 ? order ^ 0x80000000u : ~order); }
IET_HD float next_above(float x) {
  const uint32_t bits = bits_of(fadd(x, 0.0f));  // one zero
  return float_of(bits >> 31 ? bits - 1 : bits + 1);
}

// 2^f = c0 + c1·f + .. + c5·f^5 for f from 0 to 1; relative error 1.6e-7.
constexpr float kExp0 = 0x1.fffffep-1f, kExp1 = 0x1.62e4f6p-1f, kExp2 = 0x1.ebd5a6p-3f, kExp3 = 0x1.c95450p-5f,
                kExp4 = 0x1.269010p-7f, kExp5 = 0x1.ec3178p-10f;

// exp((logit - highest)/T) in units of 2^-38: the weights of 2^24 logits add up in 64 bits, in any order.
IET_HD float weight_scale(float temperature) { return 0x1.715476p+0f / magnitude(temperature); }
IET_HD uint64_t weight_of(float logit, float highest, float scale) {
  const float y = larger(fmul(fadd(logit, -highest), scale), -50.0f);
  int32_t exponent = static_cast<int32_t>(y);
  exponent -= static_cast<float>(exponent) > y ? 1 : 0;
  const float f = fadd(y, -static_cast<float>(exponent));
  float sum = fadd(fmul(kExp5, f), kExp4);
  sum = fadd(fmul(sum, f), kExp3);
  sum = fadd(fmul(sum, f), kExp2);
  sum = fadd(fmul(sum, f), kExp1);
  sum = fadd(fmul(sum, f), kExp0);
  const uint64_t significand = static_cast<uint32_t>(static_cast<int32_t>(fmul(sum, 0x1p23f)));
  return significand << 15 >> static_cast<uint64_t>(-exponent);
}

// The k-th largest logit of a row, by the bits of its order.
template <class Row>
IET_HD float kth_largest(const Row& row, int64_t k) {
  uint32_t order = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1)
    if (row.count(of_order(order | bit), k) >= k) order |= bit;
  return order < 0x00800000u ? kMinusInfinity : of_order(order);  // the smaller ones are NaN
}

// The choice among the tokens that a filter keeps: the first of them in falling order of sums.
//
// Filters keep the logits from some threshold on. While a choice is below it, so are all logits that are not
// above that of the choice. The best of the others is the next choice. `choice` is the best of all. A row has
//
//   size()                  the number of its logits
//   best(at_least)          the best choice of logits of at least this
//   count(at_least, limit)  the number of these logits, or some number from `limit` on
//   weight(at_least)        the sum of their weights
template <class Row>
IET_HD Choice choose_kept(const Row& row, const Filter& filter, float highest, float kappa, Choice choice) {
  const float lowest = fadd(highest, fmul(kappa, filter.log_min_p));
  const bool has_top_k = filter.top_k > 0 && filter.top_k < row.size(), has_top_p = filter.top_p < 1;
  uint64_t total = 0;  // that top_p is a share of
  const auto is_kept = [&](float above) {
    if (choice.logit < lowest) return false;
    if (!has_top_k && !has_top_p) return true;
    const int64_t larger_ones = row.count(above, has_top_k ? filter.top_k : 1);
    if (has_top_k && larger_ones >= filter.top_k) return false;
    if (!has_top_p || larger_ones == 0) return true;
    if (total == 0) {
      float first = kMinusInfinity;
      if (filter.share_of & kOfMinP) first = larger(lowest, first);
      if (has_top_k && filter.share_of & kOfTopK) first = larger(kth_largest(row, filter.top_k), first);
      total = row.weight(first);
    }
    return static_cast<double>(row.weight(above)) <
           static_cast<double>(filter.top_p) * static_cast<double>(total);
  };
  while (choice.id >= 0) {
    const float above = next_above(choice.logit);
    if (is_kept(above)) break;
    const Choice next = row.best(larger(lowest, above));
    if (next.id == choice.id) break;  // if the smallest numbers count as 0
    choice = next;
  }
  return choice;
}

}  // namespace
}  // namespace iet
