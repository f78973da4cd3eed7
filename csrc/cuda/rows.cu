// Records of rows, 16 bytes each: one block reads a row's context, checks it, hashes it and writes the record
// that embed_kernel reads.
//
// Inputs are read in place, some from host memory that the device can access (vLLM's table of tokens). Each
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
  CudaMarking marking;
  CudaRowsArgs args;
};

IET_HD int64_t element(const Integers& integers, int64_t i) {
  return element(integers.data, integers.wide, i * integers.stride);
}

// The position of a row in its sequence.
struct Place {
  int64_t row, sequence, committed, drafts;
};

// The id at a position of the row's sequence: committed, or a draft before the row.
IET_HD int64_t id_at(const CudaRowsArgs& args, const Place& place, int64_t position) {
  if (position < place.committed)
    return element(args.tokens.data, args.tokens.wide,
                   place.sequence * args.tokens.stride + position * args.token_stride);
  const int64_t input = place.row - place.drafts + position - place.committed + 1;
  return element(args.drafts, input < 0 ? 0 : input);
}

__global__ void __launch_bounds__(kThreads) rows_kernel(const RowsLaunch launch) {
  __shared__ uint32_t context[kMaxContext];
  __shared__ uint32_t found[kThreads];
  const CudaMarking& marking = launch.marking;
  const CudaRowsArgs& args = launch.args;
  const uint32_t thread = threadIdx.x;
  const int64_t i = blockIdx.x, words = marking.n_gram - 1;

  // Until something is found that speaks for marking it. The same for all threads, which leave together.
  RowRecord record{0, kLeftAlone, 0.0f};
  if (thread == 0) {
    args.records[i] = record;
    if (args.counts != nullptr) args.counts[i] = 0;
  }
  Place place{i, i, args.columns, 0};
  if (args.sequences.data != nullptr) place.sequence = element(args.sequences, i);
  if (place.sequence < 0) return;
  const bool sequence_is_wrong = place.sequence >= args.n_sequences;
  const int64_t slot = sequence_is_wrong ? -2 : element(args.slots, place.sequence);
  if (slot == -1) return;
  record.kappa = args.temperatures == nullptr || sequence_is_wrong
                     ? args.kappa
                     : fmul(args.kappa, args.temperatures[place.sequence * args.temperature_stride]);
  const int64_t target = args.row_index.data == nullptr ? 0 : element(args.row_index, i);
  const bool slot_is_wrong = slot < 0 || slot >= marking.n_keys;
  const bool row_is_wrong = target < 0 || target >= args.logits_rows;
  const bool kappa_is_wrong = !(record.kappa >= 0 && record.kappa <= 0x1.fffffep+127f);
  const auto refuse = [&](Refused reason) { args.refused[reason] = static_cast<int32_t>(i + 1); };
  if (slot_is_wrong || row_is_wrong || kappa_is_wrong) {
    if (thread == 0) refuse(slot_is_wrong ? kRefusedSlot : row_is_wrong ? kRefusedRow : kRefusedTemperature);
    return;
  }

  if (args.lengths.data != nullptr) {
    const int64_t length = element(args.lengths, place.sequence);
    place.committed = length < args.columns ? length : args.columns;
  }
  if (args.places.data != nullptr) place.drafts = element(args.places, i);
  const int64_t begin = place.committed + place.drafts - words;  // of the context
  if (begin < 0) return;
  bool unmarked = false;
  if (thread < words) {
    const int64_t id = id_at(args, place, begin + thread);
    // A draft below 0 is no draft, and everything after it is discarded.
    if (id < 0 && begin + thread < place.committed) refuse(kRefusedContext);
    unmarked = !is_marked_id(id, marking.vocab, marking.unmarked_bits);
    context[thread] = static_cast<uint32_t>(id);
  }
  if (__syncthreads_or(unmarked)) return;

  uint32_t count = 0;
  if (args.counts != nullptr) {
    for (int64_t start = thread; start < begin; start += kThreads) {
      int64_t same = 0;
      while (same < words && id_at(args, place, start + same) == context[same]) ++same;
      count += same == words;
    }
    found[thread] = count;
    __syncthreads();
    if (thread != 0) return;
    for (int other = 1; other < kThreads; ++other) count += found[other];
    args.counts[i] = static_cast<int32_t>(count);
  }
  if (thread != 0) return;
  if (args.given_counts.data != nullptr) {
    const int64_t given = element(args.given_counts, i);
    if (given < 0) return refuse(kRefusedCount);
    count = static_cast<uint32_t>(given);
  }
  record.seed = context_seed(marking.subkeys + 2 * slot, context, static_cast<uint32_t>(words), count);
  record.step = marking.family == Family::fourier ? marking.steps[slot] : 0;
  args.records[i] = record;
}

}  // namespace

const char* rows_cuda(const CudaMarking& marking, const CudaRowsArgs& args, void* stream) {
  if (args.rows == 0) return nullptr;
  if (args.rows > 0x7FFFFFFF) return "rows_cuda: more rows than 2^31 - 1";
  const int threads = args.counts == nullptr ? kWarp : kThreads;
  return launch(rows_kernel, dim3(static_cast<unsigned>(args.rows), 1, 1), dim3(threads, 1, 1), stream,
                RowsLaunch{marking, args});
}

const char* load_rows_cuda() { return load(rows_kernel); }

}  // namespace iet
