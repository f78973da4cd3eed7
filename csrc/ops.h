// What every op takes: raw pointers, shapes in elements, strides in bytes. Declarations, cpu and cuda.
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
};

// How many logits of a row may have to be put back: ids that E walks out of the grid, and unmarked ids. (Family
// gumbel puts none back: every column has noise.)
static inline int64_t embed_saved(const Marking& marking) {
  return static_cast<int64_t>(marking.grid.a) * marking.grid.b - marking.vocab + marking.n_unmarked;
}

struct ScoreArgs {
  const int64_t* token_ids;  // [tokens]
  int64_t tokens;
  float* scores;  // [tokens, n_keys] packed
};

struct SpansArgs {
  const int64_t* token_ids;   // [tokens]
  const bool* counted;        // [tokens]
  const int64_t* boundaries;  // [spans + 1] ascending, within the text
  int64_t spans;
  int64_t* sums;  // [spans, n_keys] packed, zero before; in units of 2^-22
};

struct PermuteArgs {      // known answers
  const uint64_t* seeds;  // [count]
  const uint32_t* ids;    // [count], below V
  int64_t count;
  uint32_t* ranks;  // [count]
};

// Scheme `waterfall`: the distinct contexts of a text, the distinct tokens after each, and integer keys.
struct WaterfallArgs {
  uint32_t vocab, n_gram;
  const uint32_t* keys;  // [n_keys]
  int64_t n_keys;
  const uint32_t* contexts;  // [n_contexts, n-1], ids below V
  int64_t n_contexts;
  const int64_t* offsets;  // [n_contexts + 1]: the tokens after context c are [offsets[c], offsets[c + 1])
  const uint32_t* tokens;  // ids below V, ascending in each context
  uint32_t* ranks;         // [n_keys, offsets[n_contexts]]
};

constexpr int kWaterfallBlock = 48;  // draws

// Room for the draws of one permutation, in blocks. About 1.48 V at most are made; twice V leaves none out.
static inline int64_t waterfall_blocks(uint32_t vocab) {
  return (2 * static_cast<int64_t>(vocab) + 4096) / kWaterfallBlock;
}

// Scratch that one thread needs, in words: draws, the step of each block, and a table of V ranks.
static inline int64_t waterfall_scratch(uint32_t vocab) {
  return waterfall_blocks(vocab) * (kWaterfallBlock + 1) + vocab;
}

// Keyed Gumbel-max of serving engines: Philox is vLLM's, Murmur SGLang's.
enum class EnginePrf : uint32_t { philox = 0, murmur = 1 };

struct EngineGumbelArgs {
  EnginePrf prf;
  const uint32_t* words;  // [width + tokens]: the context of token t is words[t .. t + width - 1]
  uint32_t width;         // 1 to 64
  const bool* scored;     // [tokens]
  int64_t tokens;
  const uint64_t* keys;  // [n_keys]
  int64_t n_keys;
  float* scores;  // [tokens, n_keys] packed
};

// KGW's green lists: the first `green` entries of torch.randperm(vocab), for each of some seeds.
struct GreenArgs {
  uint32_t vocab, green;
  const uint32_t* seeds;  // [n_seeds]
  int64_t n_seeds;
  const int64_t* offsets;  // [n_seeds + 1]: the tokens of seed s are [offsets[s], offsets[s + 1])
  const uint32_t* tokens;  // ids below V
  uint8_t* is_green;       // as many
  const struct GreenStep* steps;
};
struct GreenStep {      // of torch.randperm, each below `green`
  uint32_t step, left;  // left = vocab - step
  float factor;         // 2 / left, less 2 to 4 times 2^-24 of it
};
constexpr int kGreenLists = 32;  // made side by side

// SynthID: g-values summed over depth, Σ_d weights[d]·g[(hash + key_d) mod size], for every hash; then of the
// n-grams of a text scale·sum + offset.
struct SynthidArgs {
  uint32_t bits;            // size = 2^bits, up to 2^16
  const uint8_t* g_values;  // [2 size] 0 or 255, twice the same
  const uint32_t* keys;     // [n_keys, depth]
  const uint32_t* weights;  // [depth], of sum below 2^16, or 2^8 if not `wide`
  uint32_t depth;
  int64_t n_keys;
  bool wide;
  void* tables;  // [size, n_keys] uint16, or uint8 if not `wide`; rows `stride` entries apart
  int64_t stride;
  uint32_t n_gram;
  const uint32_t* words;  // [tokens], the ids
  const bool* scored;     // [tokens], where n ids end
  int64_t tokens;
  float scale, offset;
  float* scores;  // [tokens, n_keys] packed
};

// The ops on all threads that are asked for (csrc/cpu/threads.h), with the instruction set in use.
// False, before anything is written, if a slot is out of range, a marked row's context holds a negative id, or
// a kappa is negative or not finite.
bool embed_cpu(const Marking&, const EmbedArgs&, int num_threads);
void score_cpu(const Marking&, const ScoreArgs&, int num_threads);
void score_spans_cpu(const Marking&, const SpansArgs&, int num_threads);
void permute_cpu(uint32_t vocab, const PermuteArgs&);
void waterfall_ranks_cpu(const WaterfallArgs&, int num_threads);
void waterfall_permute_cpu(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks);
void engine_gumbel_cpu(const EngineGumbelArgs&, int num_threads);
void kgw_green_cpu(GreenArgs, int num_threads);
void synthid_tables_cpu(const SynthidArgs&, int num_threads);  // makes the tables
void synthid_scores_cpu(const SynthidArgs&, int num_threads);  // reads them
void torch_permute_cpu(uint32_t count, uint32_t seed, uint32_t* permutation);

// A part of the work on [tokens, keys].
struct Tile {
  int64_t token_begin, token_end, key_begin, key_end;
};

// The loops: one source, compiled once per instruction set.
#define IET_DECLARE_CPU(isa)                                                                      \
  namespace isa {                                                                                 \
  void embed_rows(const Marking&, const EmbedArgs&, int64_t begin, int64_t end, void* saved);     \
  void score_tile(const Marking&, const ScoreArgs&, const Tile&);                                 \
  void score_spans_tile(const Marking&, const SpansArgs&, const Tile&);                           \
  void permute_ids(uint32_t vocab, const PermuteArgs&);                                           \
  void waterfall_ranks(const WaterfallArgs&, int64_t begin, int64_t end, uint32_t* scratch);      \
  void waterfall_permute(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks); \
  void engine_gumbel_tile(const EngineGumbelArgs&, const Tile&);                                  \
  void kgw_green(const GreenArgs&, int64_t begin, int64_t end, uint32_t* places);                 \
  void synthid_tables(const SynthidArgs&, int64_t begin, int64_t end);                            \
  void synthid_tile(const SynthidArgs&, const Tile&);                                             \
  void torch_permute(uint32_t count, uint32_t seed, uint32_t* permutation);                       \
  }
IET_DECLARE_CPU(baseline)
IET_DECLARE_CPU(avx2)
IET_DECLARE_CPU(avx512)
#undef IET_DECLARE_CPU

// The loops of one instruction set. No slot is ever empty.
struct CpuLoops {
  const char* isa;
  // `saved`: room of one worker for embed_saved() logits of 4 bytes, which a row puts back.
  void (*embed_rows)(const Marking&, const EmbedArgs&, int64_t begin, int64_t end, void* saved);
  void (*score_tile)(const Marking&, const ScoreArgs&, const Tile&);
  void (*score_spans_tile)(const Marking&, const SpansArgs&, const Tile&);
  void (*permute_ids)(uint32_t vocab, const PermuteArgs&);
  // The pairs [begin, end) of n_keys * n_contexts, key by key; a pair writes its own ranks only.
  void (*waterfall_ranks)(const WaterfallArgs&, int64_t begin, int64_t end, uint32_t* scratch);
  void (*waterfall_permute)(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks);
  void (*engine_gumbel_tile)(const EngineGumbelArgs&, const Tile&);
  // The seeds [begin, end); `places`: room for kGreenLists words for each token of any seed.
  void (*kgw_green)(const GreenArgs&, int64_t begin, int64_t end, uint32_t* places);
  void (*synthid_tables)(const SynthidArgs&, int64_t begin, int64_t end);  // keys
  void (*synthid_tile)(const SynthidArgs&, const Tile&);
  void (*torch_permute)(uint32_t count, uint32_t seed, uint32_t* permutation);
};
const CpuLoops& cpu_loops();
// Those of an instruction set, or null if this build or this machine cannot run it.
const CpuLoops* find_cpu_loops(const char* isa);
// Names that this build and this machine can run, best last, separated by spaces.
const char* cpu_isas();
// Choose one of them; false if it is none.
bool select_cpu_isa(const char* isa);

// ---------------------------------------------------------------- CUDA
//
// Every pointer is one of the device. An op is queued on a stream, allocates nothing and waits for nothing; it
// returns null, or what the CUDA runtime says is wrong.

struct CudaQueue {
  int device;
  void* stream;  // cudaStream_t
};

struct CudaMarking {  // what a profile fixes, on one device
  uint32_t vocab;     // V
  uint32_t n_gram;    // n
  Family family;
  const uint32_t* unmarked_bits;  // [ceil(V / 32)], bit v is set where id v is unmarked; null: none is
  const uint64_t* subkeys;        // [n_keys, 2]
  const uint32_t* k_p;            // [n_keys]
  const uint32_t* steps;          // [n_keys], phase_step(k_p, V)
  int64_t n_keys;
};

struct Integers {  // int32 or int64, as they come
  const void* data;
  int64_t stride;  // in elements
  int32_t wide;    // 1: int64
};

// Where embed_cuda leaves a row unmarked because its arguments are wrong, it writes 1 + the number of the row
// into one of these, which Python reads at its next synchronisation.
enum Refused { kRefusedContext, kRefusedSlot, kRefusedRow, kRefusedTemperature, kRefusals };

struct CudaEmbedArgs {
  void* logits;  // [logits_rows, columns], columns >= V, changed in place
  DType dtype;
  int64_t logits_rows, columns;
  int64_t row_stride, element_stride;  // in bytes
  int64_t rows;                        // how many are marked here: all below have as many
  Integers row_index;                  // row -> row of logits; null: row i is row i
  Integers contexts;                   // [rows, n-1], oldest first; `stride` is that of a row
  int64_t context_element_stride;      // in elements, like all strides but those of logits
  Integers slots;                      // row -> key, -1: unmarked
  const float* temperatures;           // [rows]; null: 1
  int64_t temperature_stride;
  float kappa;
  int32_t* refused;  // [kRefusals]
};

struct CudaScoreArgs {
  Integers token_ids;  // [tokens] packed
  int64_t tokens;
  float* scores;  // [tokens, n_keys] packed
};

struct CudaScoreSpansArgs {
  Integers token_ids;  // [tokens] packed
  int64_t tokens;
  const int64_t* boundaries;  // [spans + 1], ascending, within the text
  int64_t spans;
  const uint8_t* counted;  // [tokens]; null: all
  double* sums;            // [spans, n_keys] packed
};

const char* embed_cuda(const CudaMarking&, const CudaEmbedArgs&, CudaQueue);
const char* score_cuda(const CudaMarking&, const CudaScoreArgs&, CudaQueue);
const char* score_spans_cuda(const CudaMarking&, const CudaScoreSpansArgs&, CudaQueue);
// Load every kernel onto a device, which must not wait until a stream is being captured.
const char* load_embed_cuda(int device);
const char* load_score_cuda(int device);
// Ranks and phi of (seed, id) pairs in host memory, computed on the current device.
const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis);
// Devices that the driver shows; 0 where there is none, and why.
int device_count();
const char* device_error();

}  // namespace iet
