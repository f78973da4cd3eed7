// Arguments and declarations of the marking operations on CPU and CUDA: raw pointers, shapes in elements,
// strides in bytes.
#pragma once

#include <cstdint>

#include "choose.h"
#include "keyed.h"
#include "numeric.h"
#include "sequences.h"

namespace iet {

struct KernelParams {  // the constants of a profile and its keys
  uint32_t vocab;      // V
  uint32_t n_gram;     // n
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

// The token of each row that family gumbel chooses: the smallest id with the largest logit + kappa·noise, among
// those that the row's filter keeps.
struct ChooseArgs {
  EmbedArgs rows;
  const Filter* filters;  // [rows]; null: all tokens are kept
  bool force;             // write forced_logit at the chosen token; else no logit changes
  int64_t* chosen;        // [rows], -1: the row is not marked, or all of its logits are -inf or NaN
};

// Maximum number of logits of a row that are restored after the main loop: ids that E maps outside [0, V), and
// unmarked ids. (Family gumbel restores none, because every column has noise.)
static inline int64_t embed_saved(const KernelParams& params) {
  return static_cast<int64_t>(params.grid.a) * params.grid.b - params.vocab + params.n_unmarked;
}

// What embed_cpu and choose_cpu take of rows, made from sequences.
struct ReadRowsArgs {
  RowsArgs in;
  int64_t* contexts;  // [rows, n-1]
  int32_t* slots;     // [rows], -1 for rows that are not marked
  float* kappas;      // [rows]
  int32_t* counts;    // [rows]; null if there are no tables
};

struct ScoreArgs {
  const int64_t* token_ids;  // [tokens]
  int64_t tokens;
  float* scores;                    // [tokens, n_keys] packed
  const int32_t* counts = nullptr;  // [tokens], as in EmbedArgs
};

struct SpansArgs {
  const int64_t* token_ids;   // [tokens]
  const uint8_t* counted;     // [tokens], 0 or 1; weights of at most 16, if scores are at least 0
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

// The operations run on `num_threads` threads (csrc/cpu/threads.h) with the selected instruction set. embed_cpu
// returns false before it writes anything if a slot is out of range, a marked row's context holds a negative
// id, or a kappa is negative or not finite.
bool embed_cpu(const KernelParams&, const EmbedArgs&, int num_threads);
bool choose_cpu(const KernelParams&, const ChooseArgs&, int num_threads);  // refuses what embed_cpu does
bool read_rows_cpu(const KernelParams&, const ReadRowsArgs&);  // false if a sequence is out of range
void score_cpu(const KernelParams&, const ScoreArgs&, int num_threads);
void score_spans_cpu(const KernelParams&, const SpansArgs&, int num_threads);
void permute_cpu(uint32_t vocab, const PermuteArgs&);

// ---------------------------------------------------------------- CUDA
//
// All pointers are on the current device. An operation is queued on a stream (a cudaStream_t), allocates
// nothing and waits for nothing. It returns null, or the error message of the CUDA runtime. No function changes
// the current device, because restoring it would create a context on an unused device.

constexpr uint32_t kChunk = 4096;  // ids

struct CudaKernelParams {  // the constants of a profile and its keys, on one device
  uint32_t vocab;          // V
  uint32_t n_gram;         // n
  Family family;
  const uint32_t* unmarked_bits;    // [ceil(V / 32)], bit v is set where id v is unmarked; null: none is
  const uint32_t* unmarked_chunks;  // bit c is set where one of the kChunk ids from c*kChunk on is unmarked
  const uint64_t* subkeys;          // [n_keys, 2]
  const uint32_t* steps;            // [n_keys], phase_step(k_p, V)
  int64_t n_keys;
};

// If the arguments of a row are invalid, rows_cuda does not mark it and writes 1 + its number to one of these.
// They are in mapped host memory, so Python reads them without a call to the device.
enum Refusal { kRefusedContext, kRefusedSlot, kRefusedRow, kRefusedTemperature, kRefusedCount, kRefusals };

// The input of embed_cuda and choose_cuda for one row.
struct alignas(16) RowRecord {
  uint64_t seed;  // k_pi
  uint32_t step;  // of the phase, 0 for gumbel; or kUnmarkedRow
  float kappa;    // kappa times the temperature
};
constexpr uint32_t kUnmarkedRow = 0xFFFFFFFFu;  // not a valid step: steps are at most half a turn

struct CudaRowsArgs {
  RowsArgs in;
  Integers row_index;  // row -> row of the logits, checked here; null: the same row
  int64_t logits_rows;
  Integers caller_counts;  // [rows], counted by the caller; null: 0, or those of the tables
  int32_t* refused;        // [kRefusals]
  RowRecord* records;      // [rows]
};

struct CudaEmbedArgs {
  void* logits;  // [logits_rows, columns], columns >= V
  DType dtype;
  int64_t logits_rows, columns;
  int64_t row_stride, element_stride;  // in bytes
  const void* source;                  // logits to mark, with the same layout; equal to `logits`: in place
  int64_t rows;
  Integers row_index;        // row -> row of the logits; null: the same row
  const RowRecord* records;  // [rows]
};

// Rows whose tokens are chosen. The chosen token gets forced_logit; other logits stay, or are copied from
// `source`.
struct CudaChooseArgs {
  CudaEmbedArgs rows;
  Integers sequences;     // row -> filter; null: row i has filter i
  const Filter* filters;  // null: all tokens are kept
  void* scratch;          // choose_scratch() bytes, of a multiple of 8
  int64_t* chosen;        // [rows], -1: none; null: not wanted
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

const char* rows_cuda(const CudaKernelParams&, const CudaRowsArgs&, void* stream);
const char* embed_cuda(const CudaKernelParams&, const CudaEmbedArgs&, void* stream);
int64_t choose_scratch(int64_t rows, int64_t columns);
const char* choose_cuda(const CudaKernelParams&, const CudaChooseArgs&, void* stream);
const char* score_cuda(const CudaKernelParams&, const CudaScoreArgs&, void* stream);
const char* score_spans_cuda(const CudaKernelParams&, const CudaScoreSpansArgs&, void* stream);
// Load every kernel. Loading is not possible while a stream is being captured.
const char* load_rows_cuda();
const char* load_embed_cuda();
const char* load_choose_cuda();
const char* load_score_cuda();
// Ranks and phi of (seed, id) pairs in host memory.
const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis);
// Number of devices of the driver, and the reason if it is 0. Initialises CUDA, which children of a later fork
// cannot use.
int device_count();
const char* device_error();
// Return zeroed host memory that every device can access at this address, until the process ends; or null and
// an error.
void* host_memory(int64_t bytes, const char** error);

}  // namespace iet
