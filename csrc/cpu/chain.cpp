// The arithmetic of hidden Markov chains, in vectors: the steps of the Python functions that csrc/cpu/
// loops_over_chains.cpp names, every operation rounded on its own and every sum in the same order, so that
// results agree to the bit on every instruction set. No standard library here but log, as in embed.cpp.
#include "chain.h"

#include <math.h>

#include "loops.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"  // everything that takes a vector is inlined
#endif

namespace iet {
namespace {

constexpr double kLow = 1.0 / (1 << 20), kHigh = 1 << 20;  // see iet/decoding/chain.py

inline bool in_range(double total) { return kLow < total && total < kHigh; }

#if defined(__GNUC__)

typedef double D8 __attribute__((vector_size(64), aligned(8), may_alias));
typedef float F8 __attribute__((vector_size(32), aligned(4), may_alias));

inline D8 wide(const float* from) { return __builtin_convertvector(*reinterpret_cast<const F8*>(from), D8); }
inline void narrow(D8 x, float* to) { *reinterpret_cast<F8*>(to) = __builtin_convertvector(x, F8); }
inline D8 load(const double* from) { return *reinterpret_cast<const D8*>(from); }
inline void store(D8 x, double* to) { *reinterpret_cast<D8*>(to) = x; }
inline D8 all(double x) { return D8{x, x, x, x, x, x, x, x}; }
inline D8 lesser(D8 x, D8 y) { return x < y ? x : y; }
inline D8 larger(D8 x, D8 y) { return x > y ? x : y; }

#else

struct D8 {
  double lane[8];
};
#define IET_EACH_LANE(value)                                 \
  D8 z;                                                      \
  for (int lane = 0; lane < 8; ++lane) z.lane[lane] = value; \
  return z;
inline D8 wide(const float* from) { IET_EACH_LANE(from[lane]) }
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
inline D8 lesser(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] < y.lane[lane] ? x.lane[lane] : y.lane[lane]) }
inline D8 larger(D8 x, D8 y) { IET_EACH_LANE(x.lane[lane] > y.lane[lane] ? x.lane[lane] : y.lane[lane]) }

#endif

// The chance of a stage of an agent to end, times `pace`.
double advance_at(const Chain& chain, int64_t t, int64_t first, double pace) {
  if (t == first) return 0;  // nothing comes before the first token
  const double chance = chain.rate * pace;
  const double high = chance > chain.lowest ? chance : chain.lowest;
  return high < chain.highest ? high : chain.highest;
}

// Probability that a stage ends, for each state; the null state is the last.
struct Chances {
  double agents, nobodys;
  int64_t nobody;

  D8 of(int64_t from) const {
    alignas(64) double lanes[kChainLanes];
    for (int64_t lane = 0; lane < kChainLanes; ++lane) lanes[lane] = from + lane == nobody ? nobodys : agents;
    return load(lanes);
  }
};

// A row of ratios from which eight values can be read at every state; a copy at the end of the array.
const float* row_of(const Chain& chain, int64_t t, float* room) {
  const int64_t width = chain_width(chain.states);
  const float* row = chain.ratios + t * chain.states;
  if (t * chain.states + width <= chain.tokens * chain.states) return row;
  for (int64_t i = 0; i < width; ++i) room[i] = i < chain.states ? row[i] : 0;
  return room;
}

double sum_of(const double* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

template <int kStages>
double forward(const Chain& chain, const ChainPart& part, double* onward, double* held, float* room) {
  const int64_t states = chain.states, width = chain_width(states), stages = kStages ? kStages : chain.stages;
  double* const last = part.state + (stages - 1) * width;
  double log_ratio = 0;
  for (int64_t t = part.begin; t < part.end; ++t) {
    const Chances chances = {advance_at(chain, t, part.first, 1), advance_at(chain, t, part.first, chain.pace),
                             states - 1};
    const float* row = row_of(chain, t, room);
    float* alpha = part.alpha + (part.keep ? (t - part.begin) * stages * width : 0);
    for (int64_t i = 0; i < width; i += kChainLanes)
      store(load(last + i) * load(chain.leave + i) * chances.of(i), onward + i);
    const D8 arriving = all(sum_of(onward, states));
    for (int64_t i = 0; i < width; i += kChainLanes) {
      const D8 q = chances.of(i), stay = all(1.0) - q, ratio = wide(row + i);
      D8 before = load(part.state + i);
      const D8 entered = load(chain.prior + i) * (arriving - load(chain.again + i) * load(onward + i));
      D8 now = (stay * before + entered) * ratio, together = now;
      store(now, part.state + i);
      narrow(now, alpha + i);
      for (int64_t m = 1; m < stages; ++m) {
        const D8 own = load(part.state + m * width + i);
        now = (stay * own + q * before) * ratio;
        store(now, part.state + m * width + i);
        narrow(now, alpha + m * width + i);
        together = together + now;
        before = own;
      }
      store(together, held + i);
    }
    const double total = sum_of(held, states);
    if (t == part.end - 1 || !in_range(total)) {
      log_ratio += log(total);
      for (int64_t m = 0; m < stages; ++m)
        for (int64_t i = 0; i < states; ++i) part.state[m * width + i] /= total;
    }
  }
  return log_ratio;
}

template <int kStages>
void backward(const Chain& chain, const ChainPart& part, double* beta, double* held, double* weights,
              float* room, float* posterior, float* left) {
  const int64_t states = chain.states, width = chain_width(states), stages = kStages ? kStages : chain.stages;
  const int64_t last = (stages - 1) * width, agents = states - 1;
  for (int64_t t = part.end - 1; t >= part.begin; --t) {
    const float* row = row_of(chain, t, room);
    const float* alpha = part.alpha + (t - part.begin) * stages * width;
    for (int64_t i = 0; i < width; i += kChainLanes) {
      D8 sum = wide(alpha + i) * load(beta + i);
      for (int64_t m = 1; m < stages; ++m) sum = sum + wide(alpha + m * width + i) * load(beta + m * width + i);
      store(sum, held + i);
      store(wide(row + i), weights + i);
    }
    const double total = sum_of(held, states), scale = 1.0 / total;
    left[t] = static_cast<float>(held[agents] * scale);
    for (int64_t i = 0; i < agents; ++i) posterior[t * agents + i] = static_cast<float>(held[i] * scale);
    if (!in_range(total))
      for (int64_t i = 0; i < states; ++i) weights[i] *= scale;
    for (int64_t i = 0; i < width; i += kChainLanes)
      store(load(chain.prior + i) * load(beta + i) * load(weights + i), held + i);
    const D8 entering = all(sum_of(held, states));
    const Chances chances = {advance_at(chain, t, part.first, 1), advance_at(chain, t, part.first, chain.pace),
                             agents};
    for (int64_t i = 0; i < width; i += kChainLanes) {
      const D8 q = chances.of(i), stay = all(1.0) - q, weight = load(weights + i);
      const D8 others = entering - load(chain.again + i) * load(held + i);
      for (int64_t m = 0; m < last; m += width)
        store((stay * load(beta + m + i) + q * load(beta + m + width + i)) * weight, beta + m + i);
      store(stay * weight * load(beta + last + i) + q * load(chain.leave + i) * others, beta + last + i);
    }
  }
}

}  // namespace

namespace IET_ISA {

void chain_forward(const Chain& chain, const ChainPart& part, double* onward, double* held, float* room,
                   double* log_ratio) {
  *log_ratio = chain.stages == 3 ? forward<3>(chain, part, onward, held, room)
                                 : forward<0>(chain, part, onward, held, room);
}

void chain_backward(const Chain& chain, const ChainPart& part, double* beta, double* held, double* weights,
                    float* room, float* posterior, float* left) {
  if (chain.stages == 3) return backward<3>(chain, part, beta, held, weights, room, posterior, left);
  backward<0>(chain, part, beta, held, weights, room, posterior, left);
}

void chains_aside(const ChainsAside& chains) {
  const int64_t nobody = chains.states - 1;
  const D8 rates = load(chains.rates), lowest = load(chains.lowest), highest = load(chains.highest);
  const D8 paces = load(chains.paces), alternates = load(chains.alternates), one = all(1.0);
  for (int64_t t = 0; t < chains.tokens; ++t) {
    D8 advance = all(0.0), nobodys = all(0.0);
    if (t > 0) {  // nothing comes before the first token
      advance = lesser(larger(rates, lowest), highest);
      nobodys = lesser(larger(rates * paces, lowest), highest);
    }
    D8 arriving = all(0.0), total = all(0.0);
    for (int64_t i = 0; i <= nobody; ++i) {
      const D8 leaving = load(chains.third + i * 8) * load(chains.leave + i * 8);
      arriving = arriving + leaving * (i < nobody ? advance : nobodys);
    }
    for (int64_t i = 0; i <= nobody; ++i) {
      const D8 q = i < nobody ? advance : nobodys, stay = one - q;
      const D8 ratio = all(static_cast<double>(chains.ratios[t * chains.states + i]));
      const D8 first = load(chains.first + i * 8), second = load(chains.second + i * 8);
      const D8 third = load(chains.third + i * 8);
      D8 own = third * load(chains.leave + i * 8) * q;
      if (i == nobody) own = alternates * own;
      const D8 now = (stay * first + load(chains.priors + i * 8) * (arriving - own)) * ratio;
      const D8 then = (stay * second + q * first) * ratio, at_last = (stay * third + q * second) * ratio;
      store(now, chains.first + i * 8);
      store(then, chains.second + i * 8);
      store(at_last, chains.third + i * 8);
      total = total + (now + then + at_last);
    }
    alignas(64) double totals[8];
    store(total, totals);
    bool out = t == chains.tokens - 1;
    for (int lane = 0; lane < 8; ++lane) out |= !in_range(totals[lane]);
    if (!out) continue;
    for (int lane = 0; lane < 8; ++lane) {
      if (t < chains.tokens - 1 && in_range(totals[lane])) {
        totals[lane] = 1;
        continue;
      }
      chains.log_ratios[lane] += log(totals[lane]);
      totals[lane] = 1.0 / totals[lane];
    }
    const D8 scale = load(totals);
    for (int64_t i = 0; i <= nobody; ++i) {
      store(load(chains.first + i * 8) * scale, chains.first + i * 8);
      store(load(chains.second + i * 8) * scale, chains.second + i * 8);
      store(load(chains.third + i * 8) * scale, chains.third + i * 8);
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
    if ((b - first) % 8 != 7 && b != end - 1) continue;  // e^40 a block at most: eight of them stay in range
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
