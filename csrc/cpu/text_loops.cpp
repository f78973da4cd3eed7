// Loops over whole texts. Each has a twin in tests/oracle with the same steps in the same order, so that
// results agree to the bit.
//
// Compiled once for all instruction sets, because memory accesses and branches limit their speed, not
// arithmetic.
#include <algorithm>
#include <cmath>
#include <limits>

#include "arrays.h"

namespace py = pybind11;

namespace iet {
namespace {

using Bools = Row<const bool>;
using Integers = Row<const int64_t>;

// ---------------------------------------------------------------- iet/native/pairs.py

void number_pairs(Integers ids, Bools scored, Row<const uint64_t> factors, uint64_t shift, Row<int32_t> slots,
                  Row<int64_t> numbers) {
  const int64_t n_gram = factors.size;
  int64_t count = 0;
  for (int64_t t = 0; t < ids.size; ++t) {
    if (!scored[t]) continue;
    uint64_t hash = 0;
    for (int64_t back = 0; back < n_gram; ++back) hash += static_cast<uint64_t>(ids[t - back]) * factors[back];
    for (int64_t slot = static_cast<int64_t>(hash >> shift);;) {
      const int64_t first = slots[slot];
      if (first < 0) {
        slots[slot] = static_cast<int32_t>(t);
        numbers[t] = count++;
        break;
      }
      int64_t back = 0;
      while (back < n_gram && ids[t - back] == ids[first - back]) ++back;
      if (back == n_gram) {
        numbers[t] = numbers[first];
        break;
      }
      slot = slot + 1 < slots.size ? slot + 1 : 0;
    }
  }
}

void mark_repeats(Integers pairs, Row<bool> repeated) {
  int64_t count = 0;
  for (int64_t t = 0; t < pairs.size; ++t) {
    repeated[t] = 0 <= pairs[t] && pairs[t] < count;
    count = std::max(count, pairs[t] + 1);
  }
}

void number_texts(Integers ids, Bools scored, Row<const uint64_t> factors, int64_t back, Integers starts,
                  Integers ends, Row<int32_t> slots, Row<int64_t> numbers, Row<bool> repeated) {
  for (int64_t d = 0; d < starts.size; ++d) {
    const int64_t start = starts[d], end = ends[d];
    if (end - start <= back) continue;
    int64_t bits = 4;
    while ((int64_t{1} << bits) <= 2 * (end - start)) ++bits;
    const Row<int32_t> used_slots = slots.from(0, int64_t{1} << bits);
    for (int64_t i = 0; i < used_slots.size; ++i) used_slots[i] = -1;
    number_pairs(ids.from(start, end - back), scored.from(start + back, end), factors, 64 - bits, used_slots,
                 numbers.from(start + back, end));
    mark_repeats(Integers{numbers.data + start * numbers.stride, numbers.stride, end - start},
                 repeated.from(start, end));
  }
}

void times_before(Integers numbers, Integers starts, Integers ends, Row<int32_t> counts, Row<int32_t> times) {
  for (int64_t d = 0; d < starts.size; ++d) {
    for (int64_t t = starts[d]; t < ends[d]; ++t)
      if (numbers[t] >= 0) times[t] = counts[numbers[t]]++;
    for (int64_t t = starts[d]; t < ends[d]; ++t)
      if (numbers[t] >= 0) counts[numbers[t]] = 0;
  }
}

void merge_numbers(Integers numbers, Integers other_numbers, Integers starts, Integers ends,
                   Matrix<int64_t> firsts, Row<int64_t> merged, Row<bool> repeated) {
  for (int64_t d = 0; d < starts.size; ++d) {
    for (int64_t i = 0; i < ends[d] - starts[d]; ++i) firsts(0, i) = firsts(1, i) = -1;
    int64_t count = 0;
    for (int64_t t = starts[d]; t < ends[d]; ++t) {
      if (numbers[t] < 0) continue;
      int64_t& first_of_number = firsts(0, numbers[t]);
      int64_t& first_of_other = firsts(1, other_numbers[t]);
      if (first_of_number < 0) first_of_number = t;
      if (first_of_other < 0) first_of_other = t;
      const int64_t first = std::min({t, first_of_number, first_of_other});
      repeated[t] = first < t;
      merged[t] = first == t ? count++ : merged[first];
    }
  }
}

int64_t longest_repeat(Integers pairs) {
  int64_t count = 0, run = 0, longest = 0;
  for (int64_t t = 0; t < pairs.size; ++t) {
    run = 0 <= pairs[t] && pairs[t] < count ? run + 1 : 0;
    count = std::max(count, pairs[t] + 1), longest = std::max(longest, run);
  }
  return longest;
}

bool far_sources(Integers runs, int64_t window, int64_t shortest, Row<int64_t> firsts, Row<int64_t> sources) {
  int64_t covered_end = 0;
  bool has_sources = false;
  for (int64_t t = 0; t < runs.size; ++t) {
    if (runs[t] < 0) continue;
    const int64_t first = firsts[runs[t]];
    if (first < 0) {
      firsts[runs[t]] = t;
    } else if (t - first >= window) {
      has_sources = true;
      for (int64_t j = std::max(covered_end, t - shortest + 1); j <= t; ++j)
        sources[j] = sources[j - t + first];
      covered_end = t + 1;
    }
  }
  return has_sources;
}

void fresh_weights(Integers pairs, int64_t window, Row<int64_t> last, Row<float> weights) {
  for (int64_t t = 0; t < pairs.size; ++t) {
    if (pairs[t] < 0) continue;
    weights[t] = t - last[pairs[t]] > window ? 1.0f : 0.0f;
    last[pairs[t]] = t;
  }
}

void shared_weights(Integers pairs, int64_t window, Row<const float> shares, Row<int32_t> counts,
                    Row<float> weights) {
  const int64_t tokens = pairs.size;
  const auto count_of = [&](int64_t t) -> int32_t& {  // the last count is that of -1
    return counts[pairs[t] < 0 ? counts.size - 1 : pairs[t]];
  };
  for (int64_t t = 0; t < std::min(window, tokens); ++t) ++count_of(t);
  for (int64_t t = 0; t < tokens; ++t) {
    if (t + window - 1 < tokens && t > 0) ++count_of(t + window - 1);
    if (t - window >= 0) --count_of(t - window);
    if (pairs[t] >= 0) weights[t] = shares[count_of(t) - 1];
  }
}

// ---------------------------------------------------------------- iet/decoding/activity.py

constexpr int64_t kActivityBlock = 16;

template <class X>
void counted_sums(Matrix<const X> x, Bools counted, Integers starts, Integers ends, Integers edges,
                  Matrix<float> sums) {
  for (int64_t d = 0; d < starts.size; ++d) {
    int64_t at = edges[d], free_tokens = kActivityBlock;
    for (int64_t t = starts[d]; t < ends[d]; ++t) {
      if (!counted[t]) continue;
      if (free_tokens == 0) ++at, free_tokens = kActivityBlock;
      for (int64_t a = 0; a < x.columns; ++a) sums(at, a) = static_cast<float>(sums(at, a) + x(t, a));
      --free_tokens;
    }
  }
}

// ---------------------------------------------------------------- iet/decoding/fit.py

template <class X>
void block_sums(Matrix<const X> x, Row<const float> weight, int64_t block, Matrix<float> sums,
                Row<float> weights) {
  for (int64_t b = 0; b < weights.size; ++b)
    for (int64_t t = b * block; t < std::min(b * block + block, x.rows); ++t) {
      if (!(weight[t] > 0)) continue;
      weights[b] += weight[t];
      for (int64_t a = 0; a < x.columns; ++a) sums(b, a) = static_cast<float>(sums(b, a) + weight[t] * x(t, a));
    }
}

template <class X>
void log_ratios(Matrix<const X> x, Row<const float> weights, Matrix<const double> strengths,
                Matrix<const double> offsets, bool of_blocks, Packed<float, 3> ratios) {
  float* out = ratios.data;
  for (int64_t s = 0; s < strengths.rows; ++s)
    for (int64_t t = 0; t < x.rows; ++t) {
      const double weight = weights[t], score_weight = of_blocks ? 1.0 : weight;
      for (int64_t a = 0; a < x.columns; ++a)
        *out++ = static_cast<float>(score_weight * strengths(s, a) * x(t, a) - weight * offsets(s, a));
    }
}

template <class X>
void clipped_ratios(Matrix<const X> x, Row<const float> weights, Matrix<const double> strengths,
                    Matrix<const double> offsets, double limit, Packed<float, 3> ratios) {
  float* out = ratios.data;
  for (int64_t s = 0; s < strengths.rows; ++s)
    for (int64_t t = 0; t < x.rows; ++t) {
      const double weight = weights[t];
      for (int64_t a = 0; a < x.columns; ++a) {
        const double ratio = strengths(s, a) * x(t, a) - weight * offsets(s, a);
        *out++ = static_cast<float>(ratio > limit ? limit : ratio < -limit ? -limit : ratio);  // NaN stays
      }
      *out++ = 0;
    }
}

template <class X>
void occupancy_sums(Matrix<const X> gamma, Matrix<const X> sums, Row<const X> weights, Row<double> total,
                    Row<double> tokens) {
  for (int64_t b = 0; b < gamma.rows; ++b)
    for (int64_t a = 0; a < gamma.columns; ++a) {
      const double occupancy = gamma(b, a);
      total[a] += occupancy * sums(b, a);
      tokens[a] += occupancy * weights[b];
    }
}

// ---------------------------------------------------------------- iet/decoding/posterior.py

void most_probable_labels(Matrix<const float> gamma, Row<const float> null_gamma, int64_t resolution,
                          bool allow_unattributed, Matrix<float> posterior, Row<float> null_posterior,
                          Row<int32_t> labels) {
  for (int64_t t = 0; t < labels.size; ++t) {
    const int64_t pool = t / resolution;
    int64_t best = 0;
    null_posterior[t] = null_gamma[pool];
    for (int64_t a = 0; a < gamma.columns; ++a) {
      posterior(t, a) = gamma(pool, a);
      if (gamma(pool, a) > gamma(pool, best)) best = a;
    }
    labels[t] = allow_unattributed && gamma(pool, best) <= null_gamma[pool] ? -1 : static_cast<int32_t>(best);
  }
}

template <class X>
void place_boundaries(Matrix<const X> x, Row<const float> weights, Row<const double> strengths,
                      Row<const double> offsets, int64_t reach, Row<int32_t> labels) {
  int64_t begin = 0;
  for (int64_t t = 1; t < labels.size;) {
    if (labels[t] == labels[t - 1]) {
      ++t;
      continue;
    }
    const int32_t previous = labels[t - 1], next = labels[t];
    const int64_t low = std::max(begin + 1, t - reach + 1);
    int64_t high = t, boundary = t;
    while (high < std::min(t + reach - 1, labels.size - 1) && labels[high + 1] == next) ++high;
    double best = 0;
    for (int side = 0; side < 2; ++side) {
      const int32_t gaining = side ? previous : next, losing = side ? next : previous;
      const int64_t count = side ? high - t : t - low;
      double gain = 0;
      for (int64_t distance = 0; distance < count; ++distance) {
        const int64_t j = t - 1 - distance + side * (2 * distance + 1);
        if (gaining >= 0) gain += weights[j] * (strengths[gaining] * x(j, gaining) - offsets[gaining]);
        if (losing >= 0) gain -= weights[j] * (strengths[losing] * x(j, losing) - offsets[losing]);
        if (gain > best) best = gain, boundary = j + side;
      }
    }
    for (int64_t j = boundary; j < t; ++j) labels[j] = next;
    for (int64_t j = t; j < boundary; ++j) labels[j] = previous;
    begin = boundary;
    t = std::max(t, boundary) + 1;
  }
}

void absorb_short_runs(Matrix<const float> posterior, Row<const float> null_posterior, int64_t min_segment,
                       Row<int64_t> run_starts, Row<int32_t> labels) {
  const int64_t tokens = labels.size;
  int64_t count = 0, start = 0, end = 0;
  while (end < tokens) {
    ++end;
    if (end < tokens && labels[end] == labels[end - 1]) continue;
    if (end - start < min_segment && end - start < tokens) {
      double best = -1;
      int32_t likeliest = labels[start];
      for (int side = 0; side < 2; ++side) {
        const int64_t neighbour = side == 0 ? start - 1 : end;
        if (neighbour < 0 || neighbour >= tokens) continue;
        const int32_t label = labels[neighbour];
        double mass = 0;
        for (int64_t t = start; t < end; ++t) mass += label < 0 ? null_posterior[t] : posterior(t, label);
        if (mass > best) best = mass, likeliest = label;
      }
      for (int64_t t = start; t < end; ++t) labels[t] = likeliest;
    }
    const bool joins_left = count > 0 && labels[start - 1] == labels[start];
    if (end < tokens && labels[end] == labels[end - 1]) {
      if (joins_left) start = run_starts[--count];
      continue;
    }
    if (!joins_left) run_starts[count++] = start;
    start = end;
  }
}

// ---------------------------------------------------------------- iet/decoding/windows.py

template <class X>
void windows(Matrix<const X> x, int64_t width, int64_t step, Row<double> total, Matrix<double> f) {
  int64_t left = 0, right = 0;
  for (int64_t i = 0; i < f.rows; ++i) {
    const int64_t start = i * step;
    if (start >= right) {
      left = right = start;
      for (int64_t a = 0; a < x.columns; ++a) total[a] = 0;
    }
    for (; right < start + width; ++right)
      for (int64_t a = 0; a < x.columns; ++a) total[a] += x(right, a);
    for (; left < start; ++left)
      for (int64_t a = 0; a < x.columns; ++a) total[a] -= x(left, a);
    for (int64_t a = 0; a < x.columns; ++a) f(i, a) = total[a] / static_cast<double>(width);
  }
}

template <class X>
void margin(Matrix<const X> f, Row<double> z) {
  for (int64_t i = 0; i < f.rows; ++i) {
    double first = f(i, 0), second = -std::numeric_limits<double>::infinity();
    for (int64_t a = 1; a < f.columns; ++a) {
      const double value = f(i, a);
      if (value > first) second = first, first = value;
      else if (value > second) second = value;
    }
    z[i] = f.columns > 1 ? first - second : first;
  }
}

// ---------------------------------------------------------------- iet/bulk/templates.py

// Ends and hashes of the fragments of a document; returns their number. A fragment ends after `shortest`
// symbols or more if the bits `mask` of a hash of the last nine symbols are 0.
int64_t hash_fragments(Row<const uint64_t> symbols, int64_t shortest, uint64_t mask, Row<int64_t> ends,
                       Row<uint64_t> hashes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15, kMixer = 0xD6E8FEB86659FD93;
  uint64_t recent = 0, fragment = 1;  // hashes of the last symbols and of the fragment so far
  int64_t count = 0, start = 0;
  for (int64_t t = 0; t < symbols.size; ++t) {
    uint64_t mixed = (symbols[t] + 1) * kFactor;
    mixed ^= mixed >> 32;
    mixed *= kMixer;
    recent = (recent << 4) + (mixed >> 8);
    fragment = (fragment ^ mixed) * kFactor;
    fragment ^= fragment >> 29;
    if (t + 1 < symbols.size && (t + 1 - start < shortest || ((recent >> 32) & mask) != 0)) continue;
    start = ends[count] = t + 1;
    hashes[count++] = std::max<uint64_t>(fragment, 1);  // 0 marks an empty slot
    fragment = 1;
  }
  return count;
}

// Counts fragments in an open-addressing table whose size is a power of two. A fragment that finds no slot
// within 64 probes is not counted.
void count_fragments(Row<const uint64_t> fragments, int64_t document, Row<uint64_t> hashes,
                     Row<uint32_t> counts, Row<int64_t> firsts) {
  const uint64_t mask = static_cast<uint64_t>(hashes.size) - 1;
  for (int64_t i = 0; i < fragments.size; ++i) {
    for (uint64_t probe = 0; probe < 64; ++probe) {
      const int64_t slot = static_cast<int64_t>((fragments[i] + probe) & mask);
      if (hashes[slot] == 0) hashes[slot] = fragments[i], firsts[slot] = document;
      if (hashes[slot] != fragments[i]) continue;
      ++counts[slot];
      break;
    }
  }
}

}  // namespace

void bind_text_loops(py::module_& loops) {
  const auto add = [&](const char* name, auto function) {
    loops.def(name, function, py::call_guard<py::gil_scoped_release>());
  };
  add("number_pairs", &number_pairs);
  add("number_texts", &number_texts);
  add("mark_repeats", &mark_repeats);
  add("times_before", &times_before);
  add("merge_numbers", &merge_numbers);
  add("longest_repeat", &longest_repeat);
  add("far_sources", &far_sources);
  add("fresh_weights", &fresh_weights);
  add("shared_weights", &shared_weights);
  add("most_probable_labels", &most_probable_labels);
  add("absorb_short_runs", &absorb_short_runs);
  add("hash_fragments", &hash_fragments);
  add("count_fragments", &count_fragments);
  // Scores come in both precisions.
  add("windows", &windows<float>);
  add("windows", &windows<double>);
  add("margin", &margin<float>);
  add("margin", &margin<double>);
  add("log_ratios", &log_ratios<float>);
  add("log_ratios", &log_ratios<double>);
  add("counted_sums", &counted_sums<float>);
  add("counted_sums", &counted_sums<double>);
  add("block_sums", &block_sums<float>);
  add("block_sums", &block_sums<double>);
  add("clipped_ratios", &clipped_ratios<float>);
  add("clipped_ratios", &clipped_ratios<double>);
  add("occupancy_sums", &occupancy_sums<float>);
  add("occupancy_sums", &occupancy_sums<double>);
  add("place_boundaries", &place_boundaries<float>);
  add("place_boundaries", &place_boundaries<double>);
}

}  // namespace iet
