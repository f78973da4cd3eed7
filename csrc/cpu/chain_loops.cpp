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

// Bounds of the probabilities of switching and of staying, see iet/decoding/chain.py.
constexpr double kLowestChance = 1e-12;

bool can_switch(double max_prior) { return max_prior <= 1 - 1e-9; }

// A buffer for vectors of doubles, aligned so that no vector crosses a cache line.
class ScratchBuffer {
 public:
  explicit ScratchBuffer(int64_t size)
      : size_(static_cast<size_t>(size) + kChainLanes), buffer_(new double[size_]) {
    void* start = buffer_.get();
    size_t space = size_ * sizeof(double);
    next_ = static_cast<double*>(std::align(kChainLanes * sizeof(double), size * sizeof(double), start, space));
  }
  // Return the next `count` doubles, set to `value`.
  double* take(int64_t count, double value = 0) {
    double* start = next_;
    std::fill(start, start + count, value);
    next_ += count;
    return start;
  }

 private:
  size_t size_;
  std::unique_ptr<double[]> buffer_;
  double* next_;
};

// ---------------------------------------------------------------- iet/decoding/chain.py

void posteriors(Packed<float, 2> ratios, Integers cuts, int64_t part_tokens, Row<const double> prior,
                int64_t stages, double mean_segment, double null_segment, Packed<float, 2> posterior,
                Row<float> null_posterior, Row<double> log_likelihoods) {
  const int64_t states = prior.size, null_state = states - 1, width = chain_width(states),
                tokens = null_posterior.size;
  const bool alternates = !std::isnan(null_segment);
  const double min_segment = static_cast<double>(stages);
  const double null_rate_ratio =
      alternates ? std::max(mean_segment, min_segment) / std::max(null_segment, min_segment) : 1.0;
  const int64_t row = stages * width, texts = cuts.size - 1;
  int64_t longest = 0;
  for (int64_t d = 0; d < texts; ++d) longest = std::max(longest, cuts[d + 1] - cuts[d]);
  const int64_t parts = (longest + part_tokens - 1) / part_tokens;
  ScratchBuffer scratch((6 + 1) * width + (3 + parts) * row);
  double *priors = scratch.take(width), *leave = scratch.take(width), *self_transition = scratch.take(width, 1);
  double *occupancy = scratch.take(width), *weights = scratch.take(width),
         *initial_weights = scratch.take(width);
  double *initial = scratch.take(row), *state = scratch.take(row), *beta = scratch.take(row);
  double* part_states = scratch.take(parts * row);
  double max_prior = 0, sum = 0;
  for (int64_t i = 0; i < states; ++i) {
    const double other_share = std::max(1 - prior[i], 1e-9);
    priors[i] = prior[i], leave[i] = i < null_state || alternates ? 1 / other_share : 1.0;
    initial_weights[i] = alternates ? prior[i] * other_share : prior[i];
    if (i == null_state) initial_weights[i] /= null_rate_ratio;
    sum += initial_weights[i], max_prior = std::max(max_prior, prior[i]);
  }
  self_transition[null_state] = alternates;
  for (int64_t m = 0; m < stages; ++m)
    for (int64_t i = 0; i < states; ++i) initial[m * width + i] = initial_weights[i] / sum / stages;
  if (prior[null_state] == 0)
    for (int64_t t = 0; t < tokens; ++t) ratios.data[t * states + null_state] = 0;
  const bool switches = can_switch(max_prior);
  const Chain chain = {ratios.data,
                       tokens,
                       states,
                       stages,
                       priors,
                       leave,
                       self_transition,
                       min_segment / std::max(mean_segment, min_segment),
                       switches ? kLowestChance : 0,
                       switches ? 1 - kLowestChance : 0,
                       null_rate_ratio};
  const std::unique_ptr<float[]> alpha(
      new float[static_cast<size_t>(std::min(part_tokens, longest) * row) + 1]);
  std::vector<float> end_of_ratios(static_cast<size_t>(width));
  float* padded_row = end_of_ratios.data();
  for (int64_t d = 0; d < texts; ++d) {
    const int64_t first = cuts[d], end = cuts[d + 1], last = (end - first + part_tokens - 1) / part_tokens - 1;
    std::copy(initial, initial + row, state);
    std::fill(beta, beta + row, 0.0);
    for (int64_t m = 0; m < stages; ++m) std::fill(beta + m * width, beta + m * width + states, 1.0);
    // Forward through all parts, then backward. Only one part's α are in memory at a time.
    for (int64_t step = 0; step <= 2 * last; ++step) {
      const bool keep = step >= last;
      const int64_t p = keep ? 2 * last - step : step, begin = first + p * part_tokens;
      if (p < last && keep) std::copy(part_states + p * row, part_states + (p + 1) * row, state);
      if (!keep) std::copy(state, state + row, part_states + p * row);
      const ChainPart part = {first, begin, std::min(begin + part_tokens, end), keep, state, alpha.get()};
      double log_ratio;
      loops().chain_forward(chain, part, occupancy, weights, padded_row, &log_ratio);
      if (p == last || !keep) log_likelihoods[d] += log_ratio;
      if (keep)
        loops().chain_backward(chain, part, beta, occupancy, weights, padded_row, posterior.data,
                               null_posterior.data);
    }
  }
}

void log_likelihoods(Packed<const float, 3> ratios, int64_t tokens, Row<const double> mean_segments,
                     Row<const double> null_segments, Matrix<const double> priors,
                     Matrix<double> log_likelihoods) {
  const int64_t states = priors.columns, null_state = states - 1, size = states * kChainLanes;
  ScratchBuffer scratch(5 * size + 6 * kChainLanes);
  double *prior = scratch.take(size), *leave = scratch.take(size);
  double *first = scratch.take(size), *second = scratch.take(size), *third = scratch.take(size);
  double *rates = scratch.take(8), *lowest = scratch.take(8), *highest = scratch.take(8),
         *null_rate_ratios = scratch.take(8);
  double *alternates = scratch.take(8), *log_ratios = scratch.take(8);
  for (int64_t begin = 0; begin < mean_segments.size; begin += kChainLanes) {
    for (int64_t s = 0; s < log_likelihoods.rows; ++s) {
      for (int64_t lane = 0; lane < kChainLanes; ++lane) {
        const int64_t r =
            std::min(begin + lane, mean_segments.size - 1);  // repeats of the last chain pad the vectors
        const double mean = std::max(mean_segments[r], 3.0);
        const bool alternating = !std::isnan(null_segments[r]);
        rates[lane] = std::min(3 / mean, 1.0);
        null_rate_ratios[lane] = alternating ? mean / std::max(null_segments[r], 3.0) : 1.0;
        alternates[lane] = alternating, log_ratios[lane] = 0;
        double max_prior = 0, sum = 0;
        for (int64_t i = 0; i < states; ++i) {
          const int64_t at = i * kChainLanes + lane;
          const double share = priors(r, i), other_share = std::max(1 - share, 1e-9);
          prior[at] = share, leave[at] = i < null_state || alternating ? 1 / other_share : 1.0;
          first[at] = alternating ? share * other_share : share;
          if (i == null_state) first[at] /= null_rate_ratios[lane];
          sum += first[at], max_prior = std::max(max_prior, share);
        }
        for (int64_t i = 0; i < states; ++i) {
          const int64_t at = i * kChainLanes + lane;
          first[at] = second[at] = third[at] = first[at] / sum / 3;
        }
        lowest[lane] = can_switch(max_prior) ? kLowestChance : 0,
        highest[lane] = can_switch(max_prior) ? 1 - kLowestChance : 0;
      }
      loops().batched_log_likelihood({ratios.data + s * tokens * states, tokens, states, rates, lowest, highest,
                                      null_rate_ratios, alternates, prior, leave, first, second, third,
                                      log_ratios});
      for (int64_t r = begin; r < std::min(begin + kChainLanes, mean_segments.size); ++r)
        log_likelihoods(s, r) = log_ratios[r - begin];
    }
  }
}

void fill_priors(Row<const double> shares, Row<const double> null_priors, int64_t repeats,
                 Matrix<double> priors) {
  const int64_t agents = shares.size;
  constexpr double kLowestShare = 1e-8;
  double total_share = 0;
  for (int64_t i = 0; i < agents; ++i) total_share += shares[i];
  for (int64_t r = 0; r < priors.rows; ++r) {
    const double null_prior = null_priors[r / repeats];
    double total = priors(r, agents) = null_prior > 0 ? std::max(null_prior, kLowestShare) : null_prior;
    for (int64_t i = 0; i < agents; ++i) {
      priors(r, i) = std::max(shares[i] * ((1 - null_prior) / total_share), kLowestShare);
      total += priors(r, i);
    }
    for (int64_t i = 0; i <= agents; ++i) priors(r, i) /= total;
  }
}

// ---------------------------------------------------------------- iet/decoding/estimates.py

void mean_start(Packed<double, 2> joint, Row<const double> strength_log_priors,
                Row<const double> length_log_priors, Row<const double> log_lengths,
                Row<const double> null_priors, Row<const double> log_strengths, Row<double> means) {
  const int64_t lengths = length_log_priors.size, cells = null_priors.size * lengths;
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t s = 0; s < strength_log_priors.size; ++s)
    for (int64_t i = 0; i < cells; ++i) {
      double& value = joint.data[s * cells + i];
      value += strength_log_priors[s] + length_log_priors[i % lengths];
      if (value > highest) highest = value;
    }
  double total = 0, prior_total = 0, strength = 0, length = 0, share = 0;
  for (int64_t s = 0; s < strength_log_priors.size; ++s)
    for (int64_t i = 0; i < cells; ++i) {
      const double weight = std::exp(joint.data[s * cells + i] - highest);
      total += weight;
      strength += weight * log_strengths[s];
      length += weight * log_lengths[i % lengths];
      share += weight * null_priors[i / lengths];
      prior_total += std::exp(strength_log_priors[s] + length_log_priors[i % lengths]);
    }
  means[0] = std::exp(strength / total), means[1] = std::exp(length / total);
  means[2] = share / total, means[3] = std::log(total / prior_total) + highest;
}

void mean_length(Row<const double> log_likelihoods, Row<const double> lengths, double middle, double spread,
                 Row<double> mean) {
  double highest = -std::numeric_limits<double>::infinity();
  const auto deviation_of = [&](int64_t r) { return (std::log(lengths[r]) - std::log(middle)) / spread; };
  for (int64_t r = 0; r < lengths.size; ++r) {
    const double deviation = deviation_of(r);
    highest = std::max(highest, log_likelihoods[r] - deviation * deviation / 2);
  }
  double total = 0, prior_total = 0, length = 0;
  for (int64_t r = 0; r < lengths.size; ++r) {
    const double deviation = deviation_of(r),
                 weight = std::exp(log_likelihoods[r] - deviation * deviation / 2 - highest);
    total += weight;
    length += weight * std::log(lengths[r]);
    prior_total += std::exp(-deviation * deviation / 2);
  }
  mean[0] = std::exp(length / total), mean[1] = std::log(total / prior_total) + highest;
}

double set_shares(Matrix<const float> gamma, Row<const float> null_posterior, int64_t block,
                  Row<const double> prior_shares, double null_prior, Row<double> shares) {
  constexpr double kPriorTokens = 1000;
  double null_total = 0;
  for (int64_t a = 0; a < shares.size; ++a) shares[a] = 0;
  for (int64_t b = 0; b < null_posterior.size; ++b) {
    null_total += null_posterior[b];
    for (int64_t a = 0; a < shares.size; ++a) shares[a] += gamma(b, a);
  }
  null_total = block * null_total + kPriorTokens * null_prior;
  double total = null_total;
  for (int64_t a = 0; a < shares.size; ++a) {
    shares[a] = block * shares[a] + kPriorTokens * prior_shares[a];
    total += shares[a];
  }
  for (int64_t a = 0; a < shares.size; ++a) shares[a] /= total;
  return null_total / total;
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
  constexpr double kStartTokens = 150, kScatterByChance = 2, kMaxShrinkage = 1000;
  int64_t count = 0;
  double token_sum = 0, squares = 0, scores = 0;
  for (int64_t a = 0; a < total.size; ++a) {
    scores += total[a], token_sum += tokens[a], squares += tokens[a] * tokens[a];
    count += tokens[a] > 0;
  }
  const double common = (scores + kStartTokens * interpolated(start, grid, mean)) / (token_sum + kStartTokens);
  if (count >= 2) {
    double scatter = 0;
    for (int64_t a = 0; a < total.size; ++a) {
      if (!(tokens[a] > 0)) continue;
      const double deviation = total[a] / tokens[a] - common;
      scatter += tokens[a] * (deviation * deviation);
    }
    const double excess = scatter / interpolated(common, mean, variances) - kScatterByChance * (count - 1);
    shrinkage = std::max(shrinkage,
                         std::min(kMaxShrinkage, (token_sum - squares / token_sum) / std::max(excess, 1e-9)));
  }
  for (int64_t a = 0; a < total.size; ++a) {
    const double shrunk_mean = (total[a] + shrinkage * common) / std::max(tokens[a] + shrinkage, 1e-9);
    strengths[a] = std::min(std::max(interpolated(shrunk_mean, mean, grid), low), high);
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

void bind_chain_loops(py::module_& loops) {
  const auto add = [&](const char* name, auto function) {
    loops.def(name, function, py::call_guard<py::gil_scoped_release>());
  };
  add("posteriors", &posteriors);
  add("log_likelihoods", &log_likelihoods);
  add("two_states", &two_states);
  add("fill_priors", &fill_priors);
  add("mean_start", &mean_start);
  add("mean_length", &mean_length);
  add("set_shares", &set_shares);
  add("set_strengths", &set_strengths);
}

}  // namespace iet
