// The rows of a step on the CPU: what embed_cpu and choose_cpu take, from sequences. The work of rows_kernel.
#include "../ops.h"

namespace iet {
namespace {

struct OneThread {  // for count_contexts
  static constexpr int kCount = 1;
  int64_t number = 0;

  void wait() const {}
  uint64_t compare_and_swap(uint64_t* word, uint64_t expected, uint64_t wanted) const {
    const uint64_t found = *word;
    if (found == expected) *word = wanted;
    return found;
  }
  void add(uint64_t* word, uint64_t value) const { *word += value; }
};

// The slot of a row, whose context is read; -1 if the row is not marked. Committed ids below 0 stay in a
// context with a slot, for embed_cpu to refuse.
int32_t read_row(const KernelParams& params, const RowsArgs& args, const Position& at, int64_t* context) {
  const int64_t context_len = params.n_gram - 1, begin = at.end() - context_len;
  if (at.sequence < 0 || begin < 0) return -1;
  const int64_t slot = element(args.slots, at.sequence);
  if (slot == -1 || is_free(args, at)) return -1;
  bool marked = true;
  for (int64_t i = 0; i < context_len; ++i) {
    const int64_t id = context[i] = id_at(args, at, begin + i);
    const bool is_placeholder = id < 0 && begin + i < at.committed;
    marked = marked && (is_placeholder || is_marked_id(id, params.vocab, params.unmarked, params.n_unmarked));
  }
  return marked ? static_cast<int32_t>(slot) : -1;
}

int32_t occurrences(const RowsArgs& args, const Position& at, int64_t context_len, const int64_t* ids,
                    const uint64_t* table, int64_t counted) {
  uint32_t context[16];
  for (int64_t i = 0; i < context_len; ++i) context[i] = static_cast<uint32_t>(ids[i]);
  uint32_t count = count_in(table, context, context_len);
  for (int64_t start = counted; start < at.end() - context_len; ++start)
    count += occurs_at(args, at, start, context, context_len) ? 1 : 0;
  return static_cast<int32_t>(count);
}

}  // namespace

bool read_rows_cpu(const KernelParams& params, const ReadRowsArgs& args) {
  const RowsArgs& in = args.in;
  const int64_t context_len = params.n_gram - 1;
  for (int64_t i = 0; i < in.rows; ++i)
    if (position_of(in, i).sequence >= in.n_sequences) return false;
  const uint64_t* table = nullptr;
  int64_t counted = 0;
  for (int64_t i = 0; i < in.rows; ++i) {
    const Position at = position_of(in, i);
    int64_t* const context = args.contexts + i * context_len;
    for (int64_t j = 0; j < context_len; ++j) context[j] = 0;
    args.slots[i] = read_row(params, in, at, context);
    args.kappas[i] = in.kappa;
    if (at.sequence >= 0 && in.temperatures != nullptr)
      args.kappas[i] *= in.temperatures[at.sequence * in.temperature_stride];
    if (args.counts == nullptr) continue;
    args.counts[i] = 0;
    if (at.sequence < 0) continue;
    if (at.drafts == 0) {
      table = in.tables[at.sequence];
      counted = table == nullptr ? 0 : count_contexts(in, at, context_len, in.tables[at.sequence], OneThread{});
    }
    if (args.slots[i] >= 0 && table != nullptr)
      args.counts[i] = occurrences(in, at, context_len, context, table, counted);
  }
  return true;
}

}  // namespace iet
