// Vector arithmetic of hidden Markov chains, for the functions of csrc/cpu/chain_loops.cpp. Each
// operation is rounded by itself and all sums have the same order, so results agree to the bit on every
// instruction set. Of the standard library only log is used, as in embed.cpp.
#include "chain.h"

#include <math.h>

#include "loops.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // all functions with vector arguments are inlined
#endif

namespace iet {
namespace {

constexpr double kLow = 1.0 / (1 << 20), kHigh = 1 << 20;  // see iet/decoding/chain.py

inline bool in_range(double total) { return kLow < total && total < kHigh; }

#if defined(__GNUC__)

typedef double D8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float F8 __attribute__((vector_size(32), aligned(4), may_alias));

inline D8 widen(const float* from) { return __builtin_convertvector(*reinterpret_cast<const F8*>(from), D8); }
inline void narrow(D8 x, float* to) { *reinterpret_cast<F8*>(to) = __builtin_convertvector(x, F8); }
inline D8 load(const double* from) { return *reinterpret_cast<const D8*>(from); }
inline void store(D8 x, double* to) { *reinterpret_cast<D8*>(to) = x; }
inline D8 all(double x) { return D8{x, x, x, x, x, x, x, x}; }
inline D8 minimum(D8 x, D8 y) { return x < y ? x : y; }
inline D8 maximum(D8 x, D8 y) { return x > y ? x : y; }

#else

struct D8 {
  double lane[8];
};
#define IET_EACH_LANE(value)                                 \
  D8 z;                                                      \
  for (int lane = 0; lane < 8; ++lane) z.lane[lane] = value; \
  return z;
inline D8 widen(const float* from) { IET_EACH_LANE(from[lane]) }
inline void narrow(D8 x, float* to) {
  for (int lane = 0; lane < 8; ++lane) to[lane] = static_cast<float>(x.lane[lane]);
}
inline D8 load(const double* from) { IET_EACH_LANE(from[lane]) }
inline void store(D8 x, double* to) {
  for (int lane = 0; lane < 8; ++lane) to[lane] = x.lane[lane];
}
inline D8 all(double x) { IET_EACH_LANE(x) }
inline D8 operator+(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] + y.lane[lane]) }
inline D8 operator-(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] - y.lane[lane]) }
inline D8 operator*(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] * y.lane[lane]) }
inline D8 minimum(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] < y.lane[lane] ? x.lane[lane] : y.lane[lane]) }
inline D8 maximum(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] > y.lane[lane] ? x.lane[lane] : y.lane[lane]) }

#endif

// Probability that a stage ends before token t, where `rate_ratio` multiplies the rate of agents.
double advance_at(const Chain& chain, int64_t t, int64_t first, double rate_ratio) {
  if (t == first) return 0;  // no stage ends before the first token
  const double chance = chain.rate * rate_ratio;
  const double high = chance > chain.lowest ? chance : chain.lowest;
  return high < chain.highest ? high : chain.highest;
}

// Probability that a stage ends, for each state; the null state is the last.
struct Chances {
  double agents, null_advance;
  int64_t null_state;

  D8 of(int64_t from) const {
    alignas(64) double lanes[kChainLanes];
    for (int64_t lane = 0; lane < kChainLanes; ++lane)
      lanes[lane] = from + lane == null_state ? null_advance : agents;
    return load(lanes);
  }
};

// Return row t of the ratios such that vectors can be read at every state: near the end of the array, a padded
// copy.
const float* row_of(const Chain& chain, int64_t t, float* padded_row) {
  const int64_t width = chain_width(chain.states);
  const float* row = chain.ratios + t * chain.states;
  if (t * chain.states + width <= chain.tokens * chain.states) return row;
  for (int64_t i = 0; i < width; ++i) padded_row[i] = i < chain.states ? row[i] : 0;
  return padded_row;
}

double sum_of(const double* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

template <int kStages>
double forward(const Chain& chain, const ChainPart& part, double* leaving, double* occupancy,
               float* padded_row) {
  const int64_t states = chain.states, width = chain_width(states), stages = kStages ? kStages : chain.stages;
  double* const last = part.state + (stages - 1) * width;
  double log_ratio = 0;
  for (int64_t t = part.begin; t < part.end; ++t) {
    const Chances chances = {advance_at(chain, t, part.first, 1),
                             advance_at(chain, t, part.first, chain.null_rate_ratio), states - 1};
    const float* row = row_of(chain, t, padded_row);
    float* alpha = part.alpha + (part.keep ? (t - part.begin) * stages * width : 0);
    for (int64_t i = 0; i < width; i += kChainLanes)
      store(load(last + i) * load(chain.leave + i) * chances.of(i), leaving + i);
    const D8 arriving = all(sum_of(leaving, states));
    for (int64_t i = 0; i < width; i += kChainLanes) {
      const D8 q = chances.of(i), stay = all(1.0) - q, ratio = widen(row + i);
      D8 before = load(part.state + i);
      const D8 entered =
          load(chain.prior + i) * (arriving - load(chain.self_transition + i) * load(leaving + i));
      D8 now = (stay * before + entered) * ratio, sum_over_stages = now;
      store(now, part.state + i);
      narrow(now, alpha + i);
      for (int64_t m = 1; m < stages; ++m) {
        const D8 own = load(part.state + m * width + i);
        now = (stay * own + q * before) * ratio;
        store(now, part.state + m * width + i);
        narrow(now, alpha + m * width + i);
        sum_over_stages = sum_over_stages + now;
        before = own;
      }
      store(sum_over_stages, occupancy + i);
    }
    const double total = sum_of(occupancy, states);
    if (t == part.end - 1 || !in_range(total)) {
      log_ratio += log(total);
      for (int64_t m = 0; m < stages; ++m)
        for (int64_t i = 0; i < states; ++i) part.state[m * width + i] /= total;
    }
  }
  return log_ratio;
}

template <int kStages>
void backward(const Chain& chain, const ChainPart& part, double* beta, double* occupancy, double* weights,
              float* padded_row, float* posterior, float* null_posterior) {
  const int64_t states = chain.states, width = chain_width(states), stages = kStages ? kStages : chain.stages;
  const int64_t last = (stages - 1) * width, agents = states - 1;
  for (int64_t t = part.end - 1; t >= part.begin; --t) {
    const float* row = row_of(chain, t, padded_row);
    const float* alpha = part.alpha + (t - part.begin) * stages * width;
    for (int64_t i = 0; i < width; i += kChainLanes) {
      D8 sum = widen(alpha + i) * load(beta + i);
      for (int64_t m = 1; m < stages; ++m)
        sum = sum + widen(alpha + m * width + i) * load(beta + m * width + i);
      store(sum, occupancy + i);
      store(widen(row + i), weights + i);
    }
    const double total = sum_of(occupancy, states), scale = 1.0 / total;
    null_posterior[t] = static_cast<float>(occupancy[agents] * scale);
    for (int64_t i = 0; i < agents; ++i) posterior[t * agents + i] = static_cast<float>(occupancy[i] * scale);
    if (!in_range(total))
      for (int64_t i = 0; i < states; ++i) weights[i] *= scale;
    for (int64_t i = 0; i < width; i += kChainLanes)
      store(load(chain.prior + i) * load(beta + i) * load(weights + i), occupancy + i);
    const D8 entering = all(sum_of(occupancy, states));
    const Chances chances = {advance_at(chain, t, part.first, 1),
                             advance_at(chain, t, part.first, chain.null_rate_ratio), agents};
    for (int64_t i = 0; i < width; i += kChainLanes) {
      const D8 q = chances.of(i), stay = all(1.0) - q, weight = load(weights + i);
      const D8 others = entering - load(chain.self_transition + i) * load(occupancy + i);
      for (int64_t m = 0; m < last; m += width)
        store((stay * load(beta + m + i) + q * load(beta + m + width + i)) * weight, beta + m + i);
      store(stay * weight * load(beta + last + i) + q * load(chain.leave + i) * others, beta + last + i);
    }
  }
}

}  // namespace

namespace IET_ISA {

void chain_forward(const Chain& chain, const ChainPart& part, double* leaving, double* occupancy,
                   float* padded_row, double* log_ratio) {
  *log_ratio = chain.stages == 3 ? forward<3>(chain, part, leaving, occupancy, padded_row)
                                 : forward<0>(chain, part, leaving, occupancy, padded_row);
}

void chain_backward(const Chain& chain, const ChainPart& part, double* beta, double* occupancy, double* weights,
                    float* padded_row, float* posterior, float* null_posterior) {
  if (chain.stages == 3)
    return backward<3>(chain, part, beta, occupancy, weights, padded_row, posterior, null_posterior);
  backward<0>(chain, part, beta, occupancy, weights, padded_row, posterior, null_posterior);
}

void batched_log_likelihood(const ChainBatch& batch) {
  const int64_t null_state = batch.states - 1;
  const D8 rates = load(batch.rates), lowest = load(batch.lowest), highest = load(batch.highest);
  const D8 null_rate_ratios = load(batch.null_rate_ratios), alternates = load(batch.alternates), one = all(1.0);
  for (int64_t t = 0; t < batch.tokens; ++t) {
    D8 advance = all(0.0), null_advance = all(0.0);
    if (t > 0) {  // no stage ends before the first token
      advance = minimum(maximum(rates, lowest), highest);
      null_advance = minimum(maximum(rates * null_rate_ratios, lowest), highest);
    }
    D8 arriving = all(0.0), total = all(0.0);
    for (int64_t i = 0; i <= null_state; ++i) {
      const D8 leaving = load(batch.third + i * 8) * load(batch.leave + i * 8);
      arriving = arriving + leaving * (i < null_state ? advance : null_advance);
    }
    for (int64_t i = 0; i <= null_state; ++i) {
      const D8 q = i < null_state ? advance : null_advance, stay = one - q;
      const D8 ratio = all(static_cast<double>(batch.ratios[t * batch.states + i]));
      const D8 first = load(batch.first + i * 8), second = load(batch.second + i * 8);
      const D8 third = load(batch.third + i * 8);
      D8 own = third * load(batch.leave + i * 8) * q;
      if (i == null_state) own = alternates * own;
      const D8 new_first = (stay * first + load(batch.priors + i * 8) * (arriving - own)) * ratio;
      const D8 new_second = (stay * second + q * first) * ratio,
               new_third = (stay * third + q * second) * ratio;
      store(new_first, batch.first + i * 8);
      store(new_second, batch.second + i * 8);
      store(new_third, batch.third + i * 8);
      total = total + (new_first + new_second + new_third);
    }
    alignas(64) double totals[8];
    store(total, totals);
    bool rescale = t == batch.tokens - 1;
    for (int lane = 0; lane < 8; ++lane) rescale |= !in_range(totals[lane]);
    if (!rescale) continue;
    for (int lane = 0; lane < 8; ++lane) {
      if (t < batch.tokens - 1 && in_range(totals[lane])) {
        totals[lane] = 1;
        continue;
      }
      batch.log_ratios[lane] += log(totals[lane]);
      totals[lane] = 1.0 / totals[lane];
    }
    const D8 scale = load(totals);
    for (int64_t i = 0; i <= null_state; ++i) {
      store(load(batch.first + i * 8) * scale, batch.first + i * 8);
      store(load(batch.second + i * 8) * scale, batch.second + i * 8);
      store(load(batch.third + i * 8) * scale, batch.third + i * 8);
    }
  }
}

void two_states(const double* ratios, int64_t columns, int64_t first, int64_t end, double enter, double stay,
                double* outside, double* inside, double* log_ratios) {
  const double leave = 1.0 - stay, remain = 1.0 - enter, start = leave / (enter + leave);
  for (int64_t b = first; b < end; ++b) {
    const double* row = ratios + b * columns;
    if (b == first) {
      for (int64_t a = 0; a < columns; ++a) outside[a] = start, inside[a] = (1.0 - start) * row[a];
    } else {
      for (int64_t a = 0; a < columns; ++a) {
        const double before = outside[a];
        outside[a] = before * remain + inside[a] * leave;
        inside[a] = (before * enter + inside[a] * stay) * row[a];
      }
    }
    // The ratio of a block is at most e^40, so the product of eight is in range.
    if ((b - first) % 8 != 7 && b != end - 1) continue;
    for (int64_t a = 0; a < columns; ++a) {
      const double total = outside[a] + inside[a];
      log_ratios[a] += log(total);
      outside[a] /= total;
      inside[a] /= total;
    }
  }
}

}  // namespace IET_ISA
}  // namespace iet
