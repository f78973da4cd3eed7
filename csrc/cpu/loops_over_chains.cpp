// Hidden Markov chains over texts, each with a twin in tests/oracle that gives the same bits. The arithmetic
// is in chain.cpp, compiled for each instruction set.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "arrays.h"
#include "chain.h"
#include "loops.h"

namespace py = pybind11;

namespace iet {
namespace {

using Integers = Row<const int64_t>;

const OwnLoops& loops() { return own_loops(cpu_isa()); }

// Keep both handing over and staying possible, see iet/decoding/chain.py.
constexpr double kLowestChance = 1e-12;

bool hands_over(double most) { return most <= 1 - 1e-9; }

// Room for vectors of doubles, at an address at which none of them crosses a line of the cache.
class Room {
 public:
  explicit Room(int64_t size) : size_(static_cast<size_t>(size) + kChainLanes), room_(new double[size_]) {
    void* start = room_.get();
    size_t space = size_ * sizeof(double);
    next_ = static_cast<double*>(std::align(kChainLanes * sizeof(double), size * sizeof(double), start, space));
  }
  // The next `count` of them, each of this value.
  double* take(int64_t count, double value = 0) {
    double* taken = next_;
    std::fill(taken, taken + count, value);
    next_ += count;
    return taken;
  }

 private:
  size_t size_;
  std::unique_ptr<double[]> room_;
  double* next_;
};

// ---------------------------------------------------------------- iet/decoding/chain.py

void posteriors(Packed<float, 2> ratios, Integers cuts, int64_t each, Row<const double> prior, int64_t stages,
                double mean_segment, double nobody_segment, Packed<float, 2> posterior, Row<float> left,
                Row<double> found) {
  const int64_t states = prior.size, nobody = states - 1, width = chain_width(states), tokens = left.size;
  const bool alternates = !std::isnan(nobody_segment);
  const double least = static_cast<double>(stages);
  const double pace = alternates ? std::max(mean_segment, least) / std::max(nobody_segment, least) : 1.0;
  const int64_t row = stages * width, texts = cuts.size - 1;
  int64_t longest = 0;
  for (int64_t d = 0; d < texts; ++d) longest = std::max(longest, cuts[d + 1] - cuts[d]);
  const int64_t parts = (longest + each - 1) / each;
  Room room((6 + 1) * width + (3 + parts) * row);
  double *priors = room.take(width), *leave = room.take(width), *again = room.take(width, 1);
  double *held = room.take(width), *weights = room.take(width), *occupied = room.take(width);
  double *begun = room.take(row), *state = room.take(row), *beta = room.take(row);
  double* kept = room.take(parts * row);
  double most = 0, sum = 0;
  for (int64_t i = 0; i < states; ++i) {
    const double others = std::max(1 - prior[i], 1e-9);
    priors[i] = prior[i], leave[i] = i < nobody || alternates ? 1 / others : 1.0;
    occupied[i] = alternates ? prior[i] * others : prior[i];
    if (i == nobody) occupied[i] /= pace;
    sum += occupied[i], most = std::max(most, prior[i]);
  }
  again[nobody] = alternates;
  for (int64_t m = 0; m < stages; ++m)
    for (int64_t i = 0; i < states; ++i) begun[m * width + i] = occupied[i] / sum / stages;
  if (prior[nobody] == 0)
    for (int64_t t = 0; t < tokens; ++t) ratios.data[t * states + nobody] = 0;
  const bool moves = hands_over(most);
  const Chain chain = {ratios.data,
                       tokens,
                       states,
                       stages,
                       priors,
                       leave,
                       again,
                       least / std::max(mean_segment, least),
                       moves ? kLowestChance : 0,
                       moves ? 1 - kLowestChance : 0,
                       pace};
  const std::unique_ptr<float[]> alpha(new float[static_cast<size_t>(std::min(each, longest) * row) + 1]);
  std::vector<float> end_of_ratios(static_cast<size_t>(width));
  float* some = end_of_ratios.data();
  for (int64_t d = 0; d < texts; ++d) {
    const int64_t first = cuts[d], end = cuts[d + 1], last = (end - first + each - 1) / each - 1;
    std::copy(begun, begun + row, state);
    std::fill(beta, beta + row, 0.0);
    for (int64_t m = 0; m < stages; ++m) std::fill(beta + m * width, beta + m * width + states, 1.0);
    // To the last part and back: the α of one of them are kept at a time.
    for (int64_t step = 0; step <= 2 * last; ++step) {
      const bool keep = step >= last;
      const int64_t p = keep ? 2 * last - step : step, begin = first + p * each;
      if (p < last && keep) std::copy(kept + p * row, kept + (p + 1) * row, state);
      if (!keep) std::copy(state, state + row, kept + p * row);
      const ChainPart part = {first, begin, std::min(begin + each, end), keep, state, alpha.get()};
      double log_ratio;
      loops().chain_forward(chain, part, held, weights, some, &log_ratio);
      if (p == last || !keep) found[d] += log_ratio;
      if (keep) loops().chain_backward(chain, part, beta, held, weights, some, posterior.data, left.data);
    }
  }
}

void likelihoods(Packed<const float, 3> ratios, int64_t tokens, Row<const double> mean_segments,
                 Row<const double> nobody_segments, Matrix<const double> priors, Matrix<double> found) {
  const int64_t states = priors.columns, nobody = states - 1, size = states * kChainLanes;
  Room room(5 * size + 6 * kChainLanes);
  double *prior = room.take(size), *leave = room.take(size);
  double *first = room.take(size), *second = room.take(size), *third = room.take(size);
  double *rates = room.take(8), *lowest = room.take(8), *highest = room.take(8), *paces = room.take(8);
  double *alternates = room.take(8), *log_ratios = room.take(8);
  for (int64_t begin = 0; begin < mean_segments.size; begin += kChainLanes) {
    for (int64_t s = 0; s < found.rows; ++s) {
      for (int64_t lane = 0; lane < kChainLanes; ++lane) {
        const int64_t r = std::min(begin + lane, mean_segments.size - 1);  // the last one fills the vectors up
        const double mean = std::max(mean_segments[r], 3.0);
        const bool own = !std::isnan(nobody_segments[r]);
        rates[lane] = std::min(3 / mean, 1.0);
        paces[lane] = own ? mean / std::max(nobody_segments[r], 3.0) : 1.0;
        alternates[lane] = own, log_ratios[lane] = 0;
        double most = 0, sum = 0;
        for (int64_t i = 0; i < states; ++i) {
          const int64_t at = i * kChainLanes + lane;
          const double share = priors(r, i), others = std::max(1 - share, 1e-9);
          prior[at] = share, leave[at] = i < nobody || own ? 1 / others : 1.0;
          first[at] = own ? share * others : share;
          if (i == nobody) first[at] /= paces[lane];
          sum += first[at], most = std::max(most, share);
        }
        for (int64_t i = 0; i < states; ++i) {
          const int64_t at = i * kChainLanes + lane;
          first[at] = second[at] = third[at] = first[at] / sum / 3;
        }
        lowest[lane] = hands_over(most) ? kLowestChance : 0,
        highest[lane] = hands_over(most) ? 1 - kLowestChance : 0;
      }
      loops().chains_aside({ratios.data + s * tokens * states, tokens, states, rates, lowest, highest, paces,
                            alternates, prior, leave, first, second, third, log_ratios});
      for (int64_t r = begin; r < std::min(begin + kChainLanes, mean_segments.size); ++r)
        found(s, r) = log_ratios[r - begin];
    }
  }
}

void fill_priors(Row<const double> shares, Row<const double> nobodys, int64_t each, Matrix<double> priors) {
  const int64_t agents = shares.size;
  constexpr double kLowestShare = 1e-8;
  double given = 0;
  for (int64_t i = 0; i < agents; ++i) given += shares[i];
  for (int64_t r = 0; r < priors.rows; ++r) {
    const double nobody = nobodys[r / each];
    double total = priors(r, agents) = nobody > 0 ? std::max(nobody, kLowestShare) : nobody;
    for (int64_t i = 0; i < agents; ++i) {
      priors(r, i) = std::max(shares[i] * ((1 - nobody) / given), kLowestShare);
      total += priors(r, i);
    }
    for (int64_t i = 0; i <= agents; ++i) priors(r, i) /= total;
  }
}

// ---------------------------------------------------------------- iet/decoding/estimates.py

void mean_start(Packed<double, 2> joint, Row<const double> plausible, Row<const double> usual,
                Row<const double> log_lengths, Row<const double> nobodys, Row<const double> log_strengths,
                Row<double> found) {
  const int64_t lengths = usual.size, each = nobodys.size * lengths;
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t s = 0; s < plausible.size; ++s)
    for (int64_t i = 0; i < each; ++i) {
      double& value = joint.data[s * each + i];
      value += plausible[s] + usual[i % lengths];
      if (value > highest) highest = value;
    }
  double total = 0, before = 0, strength = 0, length = 0, share = 0;
  for (int64_t s = 0; s < plausible.size; ++s)
    for (int64_t i = 0; i < each; ++i) {
      const double weight = std::exp(joint.data[s * each + i] - highest);
      total += weight;
      strength += weight * log_strengths[s];
      length += weight * log_lengths[i % lengths];
      share += weight * nobodys[i / lengths];
      before += std::exp(plausible[s] + usual[i % lengths]);
    }
  found[0] = std::exp(strength / total), found[1] = std::exp(length / total);
  found[2] = share / total, found[3] = std::log(total / before) + highest;
}

void mean_length(Row<const double> log_likelihoods, Row<const double> lengths, double middle, double spread,
                 Row<double> found) {
  double highest = -std::numeric_limits<double>::infinity();
  const auto away_of = [&](int64_t r) { return (std::log(lengths[r]) - std::log(middle)) / spread; };
  for (int64_t r = 0; r < lengths.size; ++r) {
    const double away = away_of(r);
    highest = std::max(highest, log_likelihoods[r] - away * away / 2);
  }
  double total = 0, before = 0, length = 0;
  for (int64_t r = 0; r < lengths.size; ++r) {
    const double away = away_of(r), weight = std::exp(log_likelihoods[r] - away * away / 2 - highest);
    total += weight;
    length += weight * std::log(lengths[r]);
    before += std::exp(-away * away / 2);
  }
  found[0] = std::exp(length / total), found[1] = std::log(total / before) + highest;
}

double set_shares(Matrix<const float> gamma, Row<const float> left, int64_t block, Row<const double> before,
                  double nobody, Row<double> shares) {
  constexpr double kShareTokens = 1000;
  double rest = 0;
  for (int64_t a = 0; a < shares.size; ++a) shares[a] = 0;
  for (int64_t b = 0; b < left.size; ++b) {
    rest += left[b];
    for (int64_t a = 0; a < shares.size; ++a) shares[a] += gamma(b, a);
  }
  rest = block * rest + kShareTokens * nobody;
  double total = rest;
  for (int64_t a = 0; a < shares.size; ++a) {
    shares[a] = block * shares[a] + kShareTokens * before[a];
    total += shares[a];
  }
  for (int64_t a = 0; a < shares.size; ++a) shares[a] /= total;
  return rest / total;
}

double interpolated(double x, Row<const double> xs, Row<const double> ys) {
  int64_t low = 0, high = xs.size - 1;
  if (!(x > xs[low])) return ys[low];
  if (x >= xs[high]) return ys[high];
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (xs[middle] <= x ? low : high) = middle;
  }
  return (ys[high] - ys[low]) / (xs[high] - xs[low]) * (x - xs[low]) + ys[low];
}

void set_strengths(Row<const double> total, Row<const double> tokens, double start, double shrinkage,
                   Row<const double> grid, Row<const double> mean, Row<const double> variances, double low,
                   double high, Row<double> strengths) {
  constexpr double kStartTokens = 150, kByChance = 2, kMostAlike = 1000;
  int64_t count = 0;
  double held = 0, squares = 0, scores = 0;
  for (int64_t a = 0; a < total.size; ++a) {
    scores += total[a], held += tokens[a], squares += tokens[a] * tokens[a];
    count += tokens[a] > 0;
  }
  const double common = (scores + kStartTokens * interpolated(start, grid, mean)) / (held + kStartTokens);
  if (count >= 2) {
    double scatter = 0;
    for (int64_t a = 0; a < total.size; ++a) {
      if (!(tokens[a] > 0)) continue;
      const double apart = total[a] / tokens[a] - common;
      scatter += tokens[a] * (apart * apart);
    }
    const double beyond = scatter / interpolated(common, mean, variances) - kByChance * (count - 1);
    shrinkage = std::max(shrinkage, std::min(kMostAlike, (held - squares / held) / std::max(beyond, 1e-9)));
  }
  for (int64_t a = 0; a < total.size; ++a) {
    const double each = (total[a] + shrinkage * common) / std::max(tokens[a] + shrinkage, 1e-9);
    strengths[a] = std::min(std::max(interpolated(each, mean, grid), low), high);
  }
}

// ---------------------------------------------------------------- iet/decoding/activity.py

void two_states(Packed<const double, 2> ratios, int64_t columns, Integers edges, Row<const double> enters,
                double stay, Packed<double, 3> log_ratios) {
  const int64_t rates = enters.size;
  std::vector<double> states(static_cast<size_t>(2 * columns));
  for (int64_t d = 0; d + 1 < edges.size; ++d)
    for (int64_t i = 0; i < rates; ++i)
      loops().two_states(ratios.data, columns, edges[d], edges[d + 1], enters[i], stay, states.data(),
                         states.data() + columns, log_ratios.data + (d * rates + i) * columns);
}

}  // namespace

void bind_loops_over_chains(py::module_& loops) {
  const auto add = [&](const char* name, auto function) {
    loops.def(name, function, py::call_guard<py::gil_scoped_release>());
  };
  add("posteriors", &posteriors);
  add("likelihoods", &likelihoods);
  add("two_states", &two_states);
  add("priors", &fill_priors);
  add("mean_start", &mean_start);
  add("mean_length", &mean_length);
  add("shares", &set_shares);
  add("strengths", &set_strengths);
}

}  // namespace iet
