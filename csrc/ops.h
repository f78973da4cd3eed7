// What our own ops take: raw pointers, shapes in elements, strides in bytes. Declarations, cpu and cuda.
#pragma once

#include <cstdint>

#include "keyed.h"
#include "numeric.h"

namespace iet {

struct Marking {    // what a profile fixes
  uint32_t vocab;   // V
  uint32_t n_gram;  // n
  Family family;
  const int32_t* unmarked;  // [n_unmarked] ascending ids below V
  int64_t n_unmarked;
  const uint64_t* subkeys;  // [n_keys, 2]
  const uint32_t* k_p;      // [n_keys]
  int64_t n_keys;
  Grid grid;  // of V
};

struct EmbedArgs {
  void* logits;  // [rows, columns], columns >= V, changed in place
  DType dtype;
  int64_t rows, columns;
  int64_t row_stride, element_stride;
  const int64_t* contexts;  // [rows, n-1] packed, oldest first
  const int32_t* slots;     // [rows], row -> key, -1: unmarked
  const float* kappas;      // [rows]
  // [rows], earlier occurrences of the context in its sequence, if seeds contain them; null: 0
  const int32_t* counts = nullptr;
};

// How many logits of a row may have to be put back: ids that E walks out of the grid, and unmarked ids. (Family
// gumbel puts none back: every column has noise.)
static inline int64_t embed_saved(const Marking& marking) {
  return static_cast<int64_t>(marking.grid.a) * marking.grid.b - marking.vocab + marking.n_unmarked;
}

struct ScoreArgs {
  const int64_t* token_ids;  // [tokens]
  int64_t tokens;
  float* scores;                    // [tokens, n_keys] packed
  const int32_t* counts = nullptr;  // [tokens], as in EmbedArgs
};

struct SpansArgs {
  const int64_t* token_ids;   // [tokens]
  const bool* counted;        // [tokens]
  const int64_t* boundaries;  // [spans + 1] ascending, within the text
  int64_t spans;
  int64_t* sums;                    // [spans, n_keys] packed, zero before; in units of 2^-22
  const int32_t* counts = nullptr;  // [tokens], as in EmbedArgs
};

struct PermuteArgs {      // known answers
  const uint64_t* seeds;  // [count]
  const uint32_t* ids;    // [count], below V
  int64_t count;
  uint32_t* ranks;  // [count]
};

// Our own ops on all threads that are asked for (csrc/cpu/threads.h), with the instruction set in use.
// False, before anything is written, if a slot is out of range, a marked row's context holds a negative id, or
// a kappa is negative or not finite.
bool embed_cpu(const Marking&, const EmbedArgs&, int num_threads);
void score_cpu(const Marking&, const ScoreArgs&, int num_threads);
void score_spans_cpu(const Marking&, const SpansArgs&, int num_threads);
void permute_cpu(uint32_t vocab, const PermuteArgs&);

// ---------------------------------------------------------------- CUDA
//
// Every pointer is one of the current device. An op is queued on a stream (a cudaStream_t), allocates nothing
// and waits for nothing; it returns null, or what the CUDA runtime says is wrong. Nothing changes which device
// is the current one: setting it back would create a context on an unused device.

constexpr uint32_t kChunk = 4096;  // ids

struct CudaMarking {  // what a profile fixes, on one device
  uint32_t vocab;     // V
  uint32_t n_gram;    // n
  Family family;
  const uint32_t* unmarked_bits;    // [ceil(V / 32)], bit v is set where id v is unmarked; null: none is
  const uint32_t* unmarked_chunks;  // bit c is set where one of the kChunk ids from c*kChunk on is unmarked
  const uint64_t* subkeys;          // [n_keys, 2]
  const uint32_t* steps;            // [n_keys], phase_step(k_p, V)
  int64_t n_keys;
};

struct Integers {  // int32 or int64, as they come
  const void* data;
  int64_t stride;  // in elements
  int32_t wide;    // 1: int64
};

// Where rows_cuda leaves a row alone because its arguments are wrong, it writes 1 + the number of the row into
// one of these. They are host memory that the device sees, so that Python reads them without asking the device.
enum Refused { kRefusedContext, kRefusedSlot, kRefusedRow, kRefusedTemperature, kRefusedCount, kRefusals };

// All that embed_cuda reads of a row.
struct alignas(16) RowRecord {
  uint64_t seed;  // k_pi
  uint32_t step;  // of the phase, 0 for gumbel; or kLeftAlone
  float kappa;    // kappa times the temperature
};
constexpr uint32_t kLeftAlone = 0xFFFFFFFFu;  // no step, which is at most half a turn

// Rows of a step, each with a place in a sequence of tokens. A row's context is the n-1 ids before it: of the
// tokens that are committed, then of the drafts before the row.
//
// Without sequences row i is the end of sequence i.
struct CudaRowsArgs {
  int64_t rows;
  Integers sequences;  // row -> sequence, below 0: padding; null: row i is of sequence i
  int64_t n_sequences;
  Integers tokens;       // [n_sequences, columns]; `stride` is that of a sequence
  int64_t token_stride;  // of an element
  int64_t columns;
  Integers lengths;  // [n_sequences], committed tokens; null: all columns are
  Integers places;   // row -> number of drafts before it; null: 0
  Integers drafts;   // [rows], the inputs of rows: the drafts before row i are those of rows i-place+1 to i
  Integers slots;    // [n_sequences] -> key, -1: unmarked
  const float* temperatures;  // [n_sequences]; null: 1
  int64_t temperature_stride;
  float kappa;
  Integers row_index;  // row -> row of the logits, which is checked here; null: row i is row i
  int64_t logits_rows;
  int32_t* refused;    // [kRefusals]
  RowRecord* records;  // [rows]
  // [rows], earlier occurrences of the context in its sequence, counted here. Null: not counted
  int32_t* counts;
  // The same, counted by the caller, [rows]; null: 0, or as counted here.
  Integers given_counts = {};
};

struct CudaEmbedArgs {
  void* logits;  // [logits_rows, columns], columns >= V
  DType dtype;
  int64_t logits_rows, columns;
  int64_t row_stride, element_stride;  // in bytes
  const void* source;  // laid out as the logits, and written to them marked; the logits themselves: in place
  int64_t rows;
  Integers row_index;        // row -> row of logits; null: row i is row i
  const RowRecord* records;  // [rows]
};

struct CudaScoreArgs {
  Integers token_ids;  // [tokens] packed
  int64_t tokens;
  float* scores;                    // [tokens, n_keys] packed
  const int32_t* counts = nullptr;  // [tokens], as in EmbedArgs
};

struct CudaScoreSpansArgs {
  Integers token_ids;  // [tokens] packed
  int64_t tokens;
  const int64_t* boundaries;  // [spans + 1], ascending, within the text
  int64_t spans;
  const uint8_t* counted;           // [tokens]; null: all
  double* sums;                     // [spans, n_keys] packed
  const int32_t* counts = nullptr;  // [tokens], as in EmbedArgs
};

const char* rows_cuda(const CudaMarking&, const CudaRowsArgs&, void* stream);
const char* embed_cuda(const CudaMarking&, const CudaEmbedArgs&, void* stream);
const char* score_cuda(const CudaMarking&, const CudaScoreArgs&, void* stream);
const char* score_spans_cuda(const CudaMarking&, const CudaScoreSpansArgs&, void* stream);
// Load every kernel, which must not wait until a stream is being captured.
const char* load_rows_cuda();
const char* load_embed_cuda();
const char* load_score_cuda();
// Ranks and phi of (seed, id) pairs in host memory.
const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis);
// Number of devices that the driver shows, and the reason if it is 0. Initialises CUDA: a process that forks
// afterwards has children without it.
int device_count();
const char* device_error();
// Zeroed host memory that every device sees at this address, for the life of the process; null, and why.
void* host_memory(int64_t bytes, const char** error);

}  // namespace iet
