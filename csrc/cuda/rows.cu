// Records of rows, 16 bytes each: one block reads a row's context, checks it, hashes it and writes the record
// that embed_kernel reads.
//
// Inputs are read in at, some from host memory that the device can access (vLLM's table of tokens). Each
// id of a context is loaded by its own thread, all at once. All threads of the block search the whole
// sequence for earlier occurrences of the context.
#include "../ops.h"
#include "device.h"

namespace iet {
namespace {

constexpr int kThreads = 128;  // of a row whose contexts are counted
constexpr int kWarp = 32;      // of any other
constexpr int kMaxContext = 15;

struct RowsLaunch {
  CudaKernelParams params;
  CudaRowsArgs args;
};

IET_HD int64_t element(const Integers& integers, int64_t i) {
  return element(integers.data, integers.wide, i * integers.stride);
}

// The position of a row in its sequence.
struct Position {
  int64_t row, sequence, committed, drafts;
};

// The id at a position of the row's sequence: committed, or a draft before the row.
IET_HD int64_t id_at(const CudaRowsArgs& args, const Position& at, int64_t position) {
  if (position < at.committed)
    return element(args.tokens.data, args.tokens.wide,
                   at.sequence * args.tokens.stride + position * args.token_stride);
  const int64_t input = at.row - at.drafts + position - at.committed + 1;
  return element(args.drafts, input < 0 ? 0 : input);
}

__global__ void __launch_bounds__(kThreads) rows_kernel(const RowsLaunch launch) {
  __shared__ uint32_t context[kMaxContext];
  __shared__ uint32_t counts_of_threads[kThreads];
  const CudaKernelParams& params = launch.params;
  const CudaRowsArgs& args = launch.args;
  const uint32_t thread = threadIdx.x;
  const int64_t i = blockIdx.x, context_len = params.n_gram - 1;

  // The row is not marked until all checks have passed. They are equal for all threads, which return together.
  RowRecord record{0, kUnmarkedRow, 0.0f};
  if (thread == 0) {
    args.records[i] = record;
    if (args.counts != nullptr) args.counts[i] = 0;
  }
  Position at{i, i, args.columns, 0};
  if (args.sequences.data != nullptr) at.sequence = element(args.sequences, i);
  if (at.sequence < 0) return;
  const bool sequence_is_wrong = at.sequence >= args.n_sequences;
  const int64_t slot = sequence_is_wrong ? -2 : element(args.slots, at.sequence);
  if (slot == -1) return;
  record.kappa = args.temperatures == nullptr || sequence_is_wrong
                     ? args.kappa
                     : fmul(args.kappa, args.temperatures[at.sequence * args.temperature_stride]);
  const int64_t target = args.row_index.data == nullptr ? 0 : element(args.row_index, i);
  const bool slot_is_wrong = slot < 0 || slot >= params.n_keys;
  const bool row_is_wrong = target < 0 || target >= args.logits_rows;
  const bool kappa_is_wrong = !(record.kappa >= 0 && record.kappa <= 0x1.fffffep+127f);
  const auto refuse = [&](Refusal reason) { args.refused[reason] = static_cast<int32_t>(i + 1); };
  if (slot_is_wrong || row_is_wrong || kappa_is_wrong) {
    if (thread == 0) refuse(slot_is_wrong ? kRefusedSlot : row_is_wrong ? kRefusedRow : kRefusedTemperature);
    return;
  }

  if (args.lengths.data != nullptr) {
    const int64_t length = element(args.lengths, at.sequence);
    at.committed = length < args.columns ? length : args.columns;
  }
  if (args.num_drafts.data != nullptr) at.drafts = element(args.num_drafts, i);
  const int64_t begin = at.committed + at.drafts - context_len;  // of the context
  if (begin < 0) return;
  bool unmarked = false;
  if (thread < context_len) {
    const int64_t id = id_at(args, at, begin + thread);
    // A negative draft is padding, and everything after it is discarded.
    if (id < 0 && begin + thread < at.committed) refuse(kRefusedContext);
    unmarked = !is_marked_id(id, params.vocab, params.unmarked_bits);
    context[thread] = static_cast<uint32_t>(id);
  }
  if (__syncthreads_or(unmarked)) return;

  uint32_t count = 0;
  if (args.counts != nullptr) {
    for (int64_t start = thread; start < begin; start += kThreads) {
      int64_t matching = 0;
      while (matching < context_len && id_at(args, at, start + matching) == context[matching]) ++matching;
      count += matching == context_len;
    }
    counts_of_threads[thread] = count;
    __syncthreads();
    if (thread != 0) return;
    for (int other = 1; other < kThreads; ++other) count += counts_of_threads[other];
    args.counts[i] = static_cast<int32_t>(count);
  }
  if (thread != 0) return;
  if (args.caller_counts.data != nullptr) {
    const int64_t caller_count = element(args.caller_counts, i);
    if (caller_count < 0) return refuse(kRefusedCount);
    count = static_cast<uint32_t>(caller_count);
  }
  record.seed = context_seed(params.subkeys + 2 * slot, context, static_cast<uint32_t>(context_len), count);
  record.step = params.family == Family::gumbel ? 0 : params.steps[slot];
  args.records[i] = record;
}

}  // namespace

const char* rows_cuda(const CudaKernelParams& params, const CudaRowsArgs& args, void* stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > 0x7FFFFFFF) return "rows_cuda: more rows than 2^31 - 1";
  const int threads = args.counts == nullptr ? kWarp : kThreads;
  return launch(rows_kernel, dim3(static_cast<unsigned>(args.rows), 1, 1), dim3(threads, 1, 1), stream,
                RowsLaunch{params, args});
}

const char* load_rows_cuda() { return load(rows_kernel); }

}  // namespace iet
