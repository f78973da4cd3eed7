// Sums of scores and their tails: loops of evidence, with twins as in text_loops.cpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "arrays.h"

namespace py = pybind11;

namespace iet {
namespace {

using Integers = Row<const int64_t>;

// ---------------------------------------------------------------- iet/audit/evidence.py, iet/audit/tails.py

template <class X>
void distinct_sums(Matrix<const X> scores, Integers pairs, Integers lows, Integers highs, Integers columns,
                   Row<int32_t> seen, Row<double> totals, Row<int64_t> counts) {
  for (int64_t i = 0; i < lows.size; ++i)
    for (int64_t t = lows[i]; t < highs[i]; ++t) {
      const int64_t pair = pairs[t];
      if (pair < 0 || seen[pair] == i) continue;
      seen[pair] = static_cast<int32_t>(i);
      totals[i] += scores(t, columns[i]);
      ++counts[i];
    }
}

// Return log(1 - P) if `complement`, else log P, from log P; at most 0.
double log_of(double value, bool complement) {
  return std::min(0.0, complement ? std::log1p(-std::exp(std::min(value, -1e-16))) : value);
}

void binomial_tails(Integers successes, Integers trials, double chance, Row<double> log_p) {
  for (int64_t i = 0; i < trials.size; ++i) {
    const int64_t count = trials[i];
    int64_t k = successes[i];
    double q = chance;
    if (k <= 0) continue;
    if (k > count) {
      log_p[i] = -std::numeric_limits<double>::infinity();
      continue;
    }
    const bool complement = k <= count * q;
    if (complement) k = count + 1 - k, q = 1.0 - q;
    double first = std::lgamma(count + 1.0) - std::lgamma(k + 1.0) - std::lgamma(count - k + 1.0);
    first += k * std::log(q) + (count - k) * std::log(1.0 - q);
    double term = 1, terms = 1;
    const double odds = q / (1.0 - q);
    for (int64_t j = k; j < count; ++j) {
      term *= static_cast<double>(count - j) / static_cast<double>(j + 1) * odds;
      terms += term;
      if (term < 1e-17) break;
    }
    log_p[i] = log_of(first + std::log(terms), complement);
  }
}

void gamma_tails(Row<const double> totals, Integers counts, Row<double> log_p) {
  for (int64_t i = 0; i < totals.size; ++i) {
    const int64_t count = counts[i];
    const double total = totals[i];
    if (count == 0 || total <= 0) continue;
    const bool complement = total < count;
    int64_t k = complement ? count : count - 1;
    const double first = k * std::log(total) - total - std::lgamma(k + 1.0);
    double term = 1, terms = 1;
    while (term > 1e-17) {
      if (complement) term *= total / ++k;
      else if (k > 0) term *= k-- / total;
      else break;
      terms += term;
    }
    log_p[i] = log_of(first + std::log(terms), complement);
  }
}

// ---------------------------------------------------------------- iet/decoding/activity.py, unweighted_sums

constexpr double kBlockTokens = 16;

// The saddlepoint's root r*, with Φ(-r*) the tail of a sum s: from λ·s - K(λ), λ·√K''(λ), and r* at the mean.
double adjusted_root(double exponent, double v, double at_mean) {
  const double r = std::copysign(std::sqrt(2 * std::max(0.0, exponent)), v);
  return std::abs(r) < 1e-3 ? r + at_mean : r + std::log(v / r) / r;
}

constexpr int64_t kLevels = 16;     // of weights, 1/16 to 1
constexpr int64_t kMostExact = 64;  // columns; of more, sums are interpolated between knots
constexpr int64_t kKnots = 96;
constexpr double kKnotsPerMean = 32;  // in cube roots
constexpr double kFirstRoot = -10, kRootsPerUnit = 64;

// The sums of kBlockTokens unweighted scores with the roots r* of a grid, by Newton's steps.
std::vector<double> sums_of_roots() {
  constexpr double n = kBlockTokens;
  std::vector<double> sums(3200);
  double sum = 0.05;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double root = kFirstRoot + static_cast<double>(i) / kRootsPerUnit;
    for (int step = 0; step < 50; ++step) {
      const double v = (sum - n) / std::sqrt(n), exponent = sum - n - n * std::log(sum / n);
      const double slope =
          std::abs(v) < 1e-3 ? 1 / std::sqrt(n) : (1 - n / sum) / std::copysign(std::sqrt(2 * exponent), v);
      const double change = (root - adjusted_root(exponent, v, 1 / (3 * std::sqrt(n)))) / slope;
      sum = std::max(sum / 2, sum + change);
      if (std::abs(change) <= 1e-10 * sum) break;
    }
    sums[i] = sum;
  }
  return sums;
}

double unweighted_sum(double root) {
  static const std::vector<double> sums = sums_of_roots();
  const double last = static_cast<double>(sums.size() - 1);
  const double at = std::min(std::max((root - kFirstRoot) * kRootsPerUnit, 0.0), last);
  const size_t low = std::min(static_cast<size_t>(at), sums.size() - 2);
  return sums[low] + (at - static_cast<double>(low)) * (sums[low + 1] - sums[low]);
}

void unweighted_sums(Matrix<const int32_t> counts, Matrix<double> sums) {
  double weights[kLevels], numbers[kLevels];
  for (int64_t b = 0; b < sums.rows; ++b) {
    int64_t levels = 0;
    double tokens = 0, mean = 0, square = 0, cube = 0;
    for (int64_t l = 0; l < kLevels; ++l) {
      if (counts(b, l) == 0) continue;
      const double c = (l + 1.0) / kLevels, n = counts(b, l);
      weights[levels] = c, numbers[levels++] = n;
      tokens += n, mean += n * c, square += n * c * c, cube += n * c * c * c;
    }
    if (levels == 0) continue;
    const double top = weights[levels - 1], at_mean = cube / (3 * square * std::sqrt(square));
    const auto exact = [&](double weighted) {
      // K'(λ) = Σ n·c / (1 - λ·c) = s is concave in y = 1 / (1 - λ·top), so Newton's steps rise to the root.
      const double sum = std::max(weighted, 1e-9 * mean);
      double y = sum < mean ? sum / (tokens * top) : sum / mean;
      for (int step = 0; step < 60; ++step) {
        double value = 0, slope = 0;
        for (int64_t l = 0; l < levels; ++l) {
          const double ratio = top / (weights[l] + (top - weights[l]) * y);
          value += numbers[l] * weights[l] * ratio,
              slope += numbers[l] * (weights[l] * weights[l] / top) * ratio * ratio;
        }
        const double change = (sum - value * y) / slope;
        y += change;
        if (std::abs(change) <= 1e-6 * y) break;
      }
      double log_mgf = 0, variance = 0;
      for (int64_t l = 0; l < levels; ++l) {
        const double ratio = y * top / (weights[l] + (top - weights[l]) * y);
        log_mgf += numbers[l] * std::log(ratio);
        variance += numbers[l] * (weights[l] * ratio) * (weights[l] * ratio);
      }
      const double strength = (1 - 1 / y) / top, exponent = strength * sum - log_mgf;
      return unweighted_sum(adjusted_root(exponent, strength * std::sqrt(variance), at_mean));
    };
    // The cube roots of both sums are nearly linear in each other.
    const bool interpolated = sums.columns > kMostExact;
    std::vector<double> knots(interpolated ? kKnots : 0, -1.0);
    const auto knot = [&](int64_t i) {
      if (knots[i] < 0) knots[i] = std::pow(exact(mean * std::pow(i / kKnotsPerMean, 3.0)), 1.0 / 3);
      return knots[i];
    };
    for (int64_t a = 0; a < sums.columns; ++a) {
      if (levels == 1 && tokens == kBlockTokens) {
        sums(b, a) /= top;
        continue;
      }
      const double place = interpolated ? std::pow(sums(b, a) / mean, 1.0 / 3) * kKnotsPerMean : kKnots;
      const int64_t low = static_cast<int64_t>(place);
      if (low + 1 >= kKnots) {
        sums(b, a) = exact(sums(b, a));
        continue;
      }
      const double root = knot(low) + (place - static_cast<double>(low)) * (knot(low + 1) - knot(low));
      sums(b, a) = root * root * root;
    }
  }
}

}  // namespace

void bind_evidence_loops(py::module_& loops) {
  const auto add = [&](const char* name, auto function) {
    loops.def(name, function, py::call_guard<py::gil_scoped_release>());
  };
  add("binomial_tails", &binomial_tails);
  add("gamma_tails", &gamma_tails);
  add("unweighted_sums", &unweighted_sums);
  add("distinct_sums", &distinct_sums<float>);
  add("distinct_sums", &distinct_sums<double>);
}

}  // namespace iet
