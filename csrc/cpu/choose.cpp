// choose on the CPU: the token of the largest logit + kappa·noise of each marked row, among those that its
// filter keeps. Blocks of columns whose logits are too low to win get no noise.
//
// No standard library here, as in embed.cpp.
#include "../choose.h"

#include "loops.h"
#include "noise.h"

namespace iet {
namespace {

constexpr int kBlock = static_cast<int>(kSkipped);

// The largest of some floats; -inf if all are NaN.
inline float highest_of(const float* x, int count) {
  float highest[32];
  for (int j = 0; j < 32; ++j) highest[j] = kMinusInfinity;
  int i = 0;
  for (; i + 32 <= count; i += 32)
    for (int j = 0; j < 32; ++j) highest[j] = x[i + j] > highest[j] ? x[i + j] : highest[j];
  for (; i < count; ++i) highest[0] = x[i] > highest[0] ? x[i] : highest[0];
  for (int j = 1; j < 32; ++j) highest[0] = highest[j] > highest[0] ? highest[j] : highest[0];
  return highest[0];
}

// `count` logits as floats: the logits themselves, or copies in `buffer`.
template <class T>
inline const float* floats_of(const typename T::Storage* logits, int64_t stride, int count, float* buffer) {
  if (stride == 1 && sizeof(typename T::Storage) == sizeof(float))
    return reinterpret_cast<const float*>(logits);
  int i = 0;
  if (stride == 1)
    for (; i + kHalf <= count; i += kHalf) store_floats(buffer + i, Lanes<T>::load(logits + i));
  for (; i < count; ++i) buffer[i] = T::load(logits[i * stride]);
  return buffer;
}

// Return the bits that the hash of an id has at least, if its logit + kappa·noise may reach `best`.
//
// noise >= g means u >= exp(-exp(-g)) >= 1 - 2^-k for k <= g/log(2): the first k bits of the hash are 1. g is
// lower than needed by more than what rounding changes.
inline uint32_t fewest_bits(float logit, float kappa, float best) {
  const float rounding = 1e-6f * (magnitude(best) + magnitude(logit));
  const float bits = ((best - logit - rounding) / magnitude(kappa) - 1e-3f) * 1.4426f;
  if (!(bits >= 1)) return 0;
  const int k = bits < 23 ? static_cast<int>(bits) : 23;
  return 0xFFFFFFFFu << (32 - k);
}

// A row for choose_kept.
template <class T>
struct Row {
  const typename T::Storage* logits;
  int64_t stride, columns;
  float* maxima;  // of the blocks
  uint64_t seed;
  float kappa, highest = kMinusInfinity;
  int64_t top = 0;  // the block of the highest logit

  // The columns of a block, from first on.
  struct Block {
    const float* x;
    int64_t first;
    int count;
  };
  Block block(int64_t number, float* buffer) const {
    const int64_t first = number * kBlock, left = columns - first;
    const int count = static_cast<int>(left < kBlock ? left : kBlock);
    return {floats_of<T>(logits + first * stride, stride, count, buffer), first, count};
  }
  int64_t size() const { return columns; }
  int64_t blocks() const { return (columns + kBlock - 1) / kBlock; }

  void find_maxima() {
    float buffer[kBlock];
    for (int64_t b = 0; b < blocks(); ++b) {
      const Block columns_of = block(b, buffer);
      maxima[b] = highest_of(columns_of.x, columns_of.count);
      if (maxima[b] > maxima[top]) top = b;
    }
    highest = maxima[top];
  }

  // The block with the highest logit comes first, because most of the others cannot win then.
  Choice best(float at_least) const {
    Choice choice{kMinusInfinity, 0, -1};
    float buffer[kBlock + kLanes];
    for (int64_t turn = -1; turn < blocks(); ++turn) {
      const int64_t b = turn < 0 ? top : turn;
      if (turn != top && maxima[b] > kMinusInfinity && maxima[b] >= at_least)
        choose_among(block(b, buffer), maxima[b], at_least, choice);
    }
    return choice;
  }

  int64_t count(float at_least, int64_t limit) const {
    float buffer[kBlock];
    int64_t found = 0;
    for (int64_t b = 0; b < blocks() && found < limit; ++b) {
      if (!(maxima[b] >= at_least)) continue;
      const Block columns_of = block(b, buffer);
      int here = 0;
      for (int i = 0; i < columns_of.count; ++i) here += columns_of.x[i] >= at_least;
      found += here;
    }
    return found;
  }

  uint64_t weight(float at_least) const {
    const float scale = weight_scale(kappa);
    float buffer[kBlock];
    uint64_t total = 0;
    for (int64_t b = 0; b < blocks(); ++b) {
      if (!(maxima[b] >= at_least) || weight_of(maxima[b], highest, scale) == 0) continue;
      const Block columns_of = block(b, buffer);
      for (int i = 0; i < columns_of.count; ++i) {
        const float x = columns_of.x[i];
        total += weight_of(x >= at_least ? x : kMinusInfinity, highest, scale);
      }
    }
    return total;
  }

 private:
  // Update a choice with the columns of a block, whose largest logit is `block_highest`.
  void choose_among(const Block& columns_of, float block_highest, float at_least, Choice& choice) const {
    // The largest noise there is, so that no sum is above the bound.
    if (marked_logit(block_highest, kappa, gumbel_noise(0xFFFFFFu)) < choice.sum) return;
    const int count = columns_of.count;
    uint32_t words[kBlock + kLanes];
    for (int i = 0; i < count; ++i) words[i] = noise_word(seed, static_cast<uint32_t>(columns_of.first + i));
    const uint32_t high = static_cast<uint32_t>(seed >> 32);
    const uint32_t fewest = fewest_bits(block_highest, kappa, choice.sum);
    if (fewest > 0) {
      uint32_t reached = 0;
      for (int i = 0; i < count; ++i) reached |= noise_hash(words[i], high) >= fewest ? 1u : 0u;
      if (!reached) return;
    }
    for (int i = count; i < count + kHalf; ++i) words[i] = 0;
    const GumbelLanes noise(seed);
    float sums[kBlock + kLanes];
    for (int i = 0; i < count; ++i) sums[i] = columns_of.x[i] >= at_least ? columns_of.x[i] : kMinusInfinity;
    for (int i = 0; i < count; i += kHalf) mark_at<1, Float32>(sums + i, words + i, kappa, noise);
    const float sum = highest_of(sums, count);
    if (!(sum >= choice.sum) || sum == kMinusInfinity) return;
    for (int i = 0; i < count; ++i) {
      if (sums[i] != sum) continue;
      const int64_t id = columns_of.first + i;
      if (sum > choice.sum || id < choice.id) choice = {sum, columns_of.x[i], id};
      return;
    }
  }
};

template <class T>
void choose_in_rows(const KernelParams& params, const ChooseArgs& args, int64_t begin, int64_t end,
                    float* maxima) {
  const int64_t stride = args.rows.element_stride / static_cast<int64_t>(sizeof(typename T::Storage));
  for (int64_t row = begin; row < end; ++row) {
    uint64_t seed;
    args.chosen[row] = -1;
    if (!row_seed(params, args.rows, row, seed)) continue;
    auto* const logits = row_logits<T>(args.rows, row);
    Row<T> of_row{logits, stride, args.rows.columns, maxima, seed, args.rows.kappas[row]};
    of_row.find_maxima();
    Choice choice = of_row.best(kMinusInfinity);
    if (args.filters != nullptr)
      choice = choose_kept(of_row, args.filters[row], of_row.highest, of_row.kappa, choice);
    args.chosen[row] = choice.id;
    if (args.force && choice.id >= 0)
      logits[choice.id * stride] = T::store(forced_logit(of_row.highest, of_row.kappa, T::kLargest));
  }
}

}  // namespace

namespace IET_ISA {

void choose_rows(const KernelParams& params, const ChooseArgs& args, int64_t begin, int64_t end,
                 float* maxima) {
  switch (args.rows.dtype) {
    case DType::float32:
      return choose_in_rows<Float32>(params, args, begin, end, maxima);
    case DType::float16:
      return choose_in_rows<Float16>(params, args, begin, end, maxima);
    case DType::bfloat16:
      return choose_in_rows<BFloat16>(params, args, begin, end, maxima);
  }
}

}  // namespace IET_ISA
}  // namespace iet
