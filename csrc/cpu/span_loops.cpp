// Loops for reports: offsets of tokens, and sums over spans. Each has a twin in tests/oracle that gives the
// same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "arrays.h"

namespace py = pybind11;

namespace iet {
namespace {

using Integers = Row<const int64_t>;

// ---------------------------------------------------------------- iet/marks/tokenizer.py

bool match_spelling(Integers ids, Integers starts, Integers lengths, Packed<const uint8_t, 1> spelling,
                    Row<const uint8_t> raw, Row<int64_t> ends) {
  int64_t at = 0;
  for (int64_t t = 0; t < ids.size; ++t) {
    const int64_t length = lengths[ids[t]];
    if (length == 0 || length > raw.size - at) return false;
    if (std::memcmp(spelling.data + starts[ids[t]], raw.data + at, static_cast<size_t>(length)) != 0)
      return false;
    ends[t] = at += length;
  }
  return at == raw.size;
}

// ---------------------------------------------------------------- iet/decoding/windows.py

void column_summary(Matrix<const float> values, Integers boundaries, Integers columns, Row<double> totals,
                    Row<float> highest) {
  for (int64_t s = 0; s < columns.size; ++s)
    for (int64_t t = boundaries[s]; t < boundaries[s + 1]; ++t) {
      const float value = values(t, columns[s]);
      totals[s] += value;
      if (value > highest[s]) highest[s] = value;
    }
}

// ---------------------------------------------------------------- iet/decoding/transitions.py

int64_t floor_of(int64_t value, int64_t divisor) { return value / divisor - (value % divisor < 0 ? 1 : 0); }

void leads(Matrix<const double> f, Matrix<const int64_t> sides, int64_t width, int64_t step,
           int64_t neighbourhood, bool at_end, Row<double> means, Row<double> leads) {
  for (int64_t i = 0; i < sides.rows; ++i) {
    const int64_t start = sides(i, 0), end = sides(i, 1), agent = sides(i, 2);
    int64_t low = std::max<int64_t>(0, floor_of(2 * start - width, 2 * step) + 1);
    int64_t high = std::min(f.rows, floor_of(2 * end - width - 1, 2 * step) + 1);
    if (low >= high) {
      const int64_t middle = start + end - width;
      low = std::min(std::max<int64_t>(0, floor_of(middle, 2 * step)), f.rows - 1);
      if (low + 1 < f.rows && middle > step * (2 * low + 1)) ++low;
      high = low + 1;
    }
    if (at_end) low = std::max(low, high - neighbourhood);
    else high = std::min(high, low + neighbourhood);
    for (int64_t a = 0; a < f.columns; ++a) {
      means[a] = 0;
      for (int64_t w = low; w < high; ++w) means[a] += f(w, a);
    }
    double best = f.columns > 1 ? -std::numeric_limits<double>::infinity() : 0.0;
    for (int64_t a = 0; a < f.columns; ++a)
      if (a != agent && means[a] > best) best = means[a];
    leads[i] = (means[agent] - best) / static_cast<double>(high - low);
  }
}

// ---------------------------------------------------------------- iet/decoding/shares.py

constexpr int64_t kBins = 64;
constexpr double kPeakPosterior = 0.99, kNegligible = 1e-3;

void share_intervals(Matrix<const float> posterior, Integers starts, Integers ends, Integers agents,
                     double tail, Row<double> missing, Matrix<double> laws, Row<double> lows,
                     Row<double> highs) {
  const Row<double> law = laws[0], convolved = laws[1], part_law = laws[2];
  for (int64_t s = 0; s < starts.size; ++s) {
    int64_t begin = starts[s], count_missing = 0;
    const int64_t end = ends[s], agent = agents[s], count = end - begin, bins = std::min(count, kBins);
    for (int64_t k = 0; k <= bins; ++k) law[k] = 0;
    law[0] = 1;
    double certain_missing = 0;
    int64_t peak = begin;
    bool has_peak = false;
    for (int64_t t = begin; t <= end; ++t) {
      if (t < end && posterior(t, agent) >= kPeakPosterior) {
        if (!has_peak || posterior(t, agent) > posterior(peak, agent)) peak = t;
        has_peak = true;
        continue;
      }
      if (t < end && !has_peak) continue;
      const int64_t part_end = t < end ? peak : end;
      count_missing = 0, has_peak = false;
      for (int64_t i = begin; i < part_end; ++i) {
        const double q = 1.0 - posterior(i, agent);
        if (q < kNegligible) certain_missing += std::max(q, 0.0);
        else missing[count_missing++] = q;
      }
      begin = part_end;
      if (count_missing == 0) continue;
      std::sort(missing.data, missing.data + count_missing);  // packed
      for (int64_t k = 0; k <= bins; ++k) part_law[k] = convolved[k] = 0;
      int64_t last = 0;
      for (int64_t j = 0; j <= count_missing; ++j) {
        const double chance =
            (j ? missing[count_missing - j] : 1.0) - (j < count_missing ? missing[count_missing - j - 1] : 0.0);
        const double place = static_cast<double>(j * bins) / static_cast<double>(count);
        const int64_t step = std::min(static_cast<int64_t>(place), bins - 1);
        part_law[step] += chance * (step + 1 - place);
        part_law[step + 1] += chance * (place - step);
        last = step + 1;
      }
      for (int64_t k = 0; k <= bins; ++k)
        if (law[k] > 0)
          for (int64_t j = 0; j <= last; ++j) convolved[std::min(k + j, bins)] += law[k] * part_law[j];
      for (int64_t k = 0; k <= bins; ++k) law[k] = convolved[k];
    }
    if (count == 0) continue;
    double below = 0;
    int64_t k = 0;
    while (k < bins && below + law[k] < tail) below += law[k++];
    const int64_t first_bin = k > 0 && bins < count ? k - 1 : k;
    while (k < bins && below + law[k] < 1.0 - tail) below += law[k++];
    lows[s] = std::max(0.0, 1.0 - k / static_cast<double>(bins) - certain_missing / count);
    highs[s] = 1.0 - first_bin / static_cast<double>(bins);
  }
}

}  // namespace

void bind_span_loops(py::module_& loops) {
  const auto add = [&](const char* name, auto function) {
    loops.def(name, function, py::call_guard<py::gil_scoped_release>());
  };
  add("match_spelling", &match_spelling);
  add("column_summary", &column_summary);
  add("leads", &leads);
  add("share_intervals", &share_intervals);
}

}  // namespace iet
