// Records of rows, 16 bytes each: a warp reads a row's context, checks it, hashes it and writes the record that
// embed_kernel and best_kernel read.
//
// Inputs are read in at, some from host memory that the device can access (vLLM's table of tokens). Each id of
// a context is loaded by its own thread, all at once.
//
// If contexts are counted, the block of a sequence's first row first counts those of the tokens that were
// committed since the last step, in the sequence's table, and then makes the records of all of its rows.
#include "../ops.h"
#include "device.h"

namespace iet {
namespace {

constexpr int kWarp = 32;                                 // threads of a row
constexpr int kThreads = 128, kWarps = kThreads / kWarp;  // of a sequence whose contexts are counted
constexpr int kMaxContext = 15;

struct RowsLaunch {
  CudaKernelParams params;
  CudaRowsArgs args;
};

// The threads of a block, for count_contexts.
struct BlockThreads {
  static constexpr int kCount = kThreads;
  int64_t number;

  IET_HD void wait() const { wait_for_block(); }
  IET_HD uint64_t compare_and_swap(uint64_t* word, uint64_t expected, uint64_t wanted) const {
    return iet::compare_and_swap(word, expected, wanted);
  }
  IET_HD void add(uint64_t* word, uint64_t value) const { add_atomically(word, value); }
};

// Make the record of a row, by one warp. `table` is null, or has the contexts of the first `counted` starts.
IET_HD void read_row(const RowsLaunch& launch, const Position& at, const uint64_t* table, int64_t counted,
                     uint32_t* context) {
  const CudaKernelParams& params = launch.params;
  const CudaRowsArgs& outputs = launch.args;
  const RowsArgs& args = outputs.in;
  const int64_t context_len = params.n_gram - 1, i = at.row;
  const uint32_t lane = threadIdx.x % kWarp;

  // The row is not marked until all checks have passed. They are equal for all threads, which return together.
  RowRecord record{0, kUnmarkedRow, 0.0f};
  if (lane == 0) outputs.records[i] = record;
  if (at.sequence < 0) return;
  const bool sequence_is_wrong = at.sequence >= args.n_sequences;
  const int64_t slot = sequence_is_wrong ? -2 : element(args.slots, at.sequence);
  if (slot == -1) return;
  record.kappa = args.temperatures == nullptr || sequence_is_wrong
                     ? args.kappa
                     : fmul(args.kappa, args.temperatures[at.sequence * args.temperature_stride]);
  const int64_t target = outputs.row_index.data == nullptr ? 0 : element(outputs.row_index, i);
  const bool slot_is_wrong = slot < 0 || slot >= params.n_keys;
  const bool row_is_wrong = target < 0 || target >= outputs.logits_rows;
  const bool kappa_is_wrong = !(record.kappa >= 0 && record.kappa <= 0x1.fffffep+127f);
  const auto refuse = [&](Refusal reason) { outputs.refused[reason] = static_cast<int32_t>(i + 1); };
  if (slot_is_wrong || row_is_wrong || kappa_is_wrong) {
    if (lane == 0) refuse(slot_is_wrong ? kRefusedSlot : row_is_wrong ? kRefusedRow : kRefusedTemperature);
    return;
  }

  const int64_t begin = at.end() - context_len;  // of the context
  if (begin < 0 || is_free(args, at)) return;
  bool unmarked = false;
  if (lane < context_len) {
    const int64_t id = id_at(args, at, begin + lane);
    // A negative draft is padding, and everything after it is discarded.
    if (id < 0 && begin + lane < at.committed) refuse(kRefusedContext);
    unmarked = !is_marked_id(id, params.vocab, params.unmarked_bits);
    context[lane] = static_cast<uint32_t>(id);
  }
  wait_for_warp();
  if (ballot(unmarked) != 0) return;

  uint32_t count = 0;
  if (table != nullptr) {
    for (int64_t start = counted + lane; start < begin; start += kWarp)
      count += occurs_at(args, at, start, context, context_len) ? 1 : 0;
    for (int by = kWarp / 2; by > 0; by /= 2) count += shuffle(count, by);
  }
  if (lane != 0) return;
  if (table != nullptr) count += count_in(table, context, context_len);
  if (outputs.caller_counts.data != nullptr) {
    const int64_t caller_count = element(outputs.caller_counts, i);
    if (caller_count < 0) return refuse(kRefusedCount);
    count = static_cast<uint32_t>(caller_count);
  }
  record.seed = context_seed(params.subkeys + 2 * slot, context, static_cast<uint32_t>(context_len), count);
  record.step = params.family == Family::gumbel ? 0 : params.steps[slot];
  outputs.records[i] = record;
}

__global__ void __launch_bounds__(kThreads) rows_kernel(const RowsLaunch launch) {
  __shared__ uint32_t contexts[kWarps][kMaxContext + 1];
  const RowsArgs& args = launch.args.in;
  const int64_t i = blockIdx.x, warp = threadIdx.x / kWarp;
  const Position first = position_of(args, i);
  if (args.tables == nullptr) return read_row(launch, first, nullptr, 0, contexts[0]);
  if (first.drafts != 0) {  // the block of the sequence's first row makes its record
    const bool is_alone =
        first.drafts < 0 || first.drafts > i || position_of(args, i - first.drafts).drafts != 0;
    if (is_alone && threadIdx.x == 0) launch.args.records[i] = {0, kUnmarkedRow, 0.0f};
    return;
  }
  uint64_t* table = nullptr;
  int64_t counted = 0;
  if (first.sequence >= 0 && first.sequence < args.n_sequences) {
    table = args.tables[first.sequence];
    if (table != nullptr)
      counted = count_contexts(args, first, launch.params.n_gram - 1, table, BlockThreads{threadIdx.x});
  }
  for (int64_t row = i + warp; row < args.rows; row += kWarps) {
    const Position at = position_of(args, row);
    if (at.drafts != row - i || at.sequence != first.sequence) break;
    read_row(launch, at, table, counted, contexts[warp]);
    wait_for_warp();  // the context has been read
  }
}

}  // namespace

const char* rows_cuda(const CudaKernelParams& params, const CudaRowsArgs& args, void* stream) {
  if (args.in.rows == 0) return nullptr;
  if (args.in.rows > 0x7FFFFFFF) return "rows_cuda: more rows than 2^31 - 1";
  const int threads = args.in.tables == nullptr ? kWarp : kThreads;
  return launch(rows_kernel, dim3(static_cast<unsigned>(args.in.rows), 1, 1), dim3(threads, 1, 1), stream,
                RowsLaunch{params, args});
}

const char* load_rows_cuda() { return load(rows_kernel); }

}  // namespace iet
