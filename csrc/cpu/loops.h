// Loops that are compiled once per instruction set, and the tables through which operations call them.
#pragma once

#include "../ops.h"
#include "chain.h"
#include "tiles.h"

namespace iet {

constexpr int64_t kSkipped = 128;  // columns whose noise choose_rows skips together

// Declares a struct of pointers to loops, and the loops of every instruction set. LOOPS names each loop once,
// with its arguments, and fills the whole table, so no pointer is null.
#define IET_LOOP_POINTER(name, ...) void (*name)(__VA_ARGS__);
#define IET_LOOP_FUNCTION(name, ...) void name(__VA_ARGS__);
#define IET_DECLARE_LOOPS(Table, LOOPS) \
  struct Table {                        \
    LOOPS(IET_LOOP_POINTER)             \
  };                                    \
  namespace baseline {                  \
  LOOPS(IET_LOOP_FUNCTION)              \
  }                                     \
  namespace avx2 {                      \
  LOOPS(IET_LOOP_FUNCTION)              \
  }                                     \
  namespace avx512 {                    \
  LOOPS(IET_LOOP_FUNCTION)              \
  }

// Defines k<Table>, a table for each instruction set of this build, in the order of their numbers.
#define IET_LOOP_NAME(name, ...) name,
#define IET_LOOPS_OF(isa, Table, LOOPS)            \
  namespace isa {                                  \
  constexpr Table kLoops = {LOOPS(IET_LOOP_NAME)}; \
  }
#if defined(IET_X86)
#define IET_DEFINE_LOOPS(Table, LOOPS) \
  IET_LOOPS_OF(baseline, Table, LOOPS) \
  IET_LOOPS_OF(avx2, Table, LOOPS)     \
  IET_LOOPS_OF(avx512, Table, LOOPS)   \
  constexpr Table k##Table[] = {baseline::kLoops, avx2::kLoops, avx512::kLoops};
#else
#define IET_DEFINE_LOOPS(Table, LOOPS) \
  IET_LOOPS_OF(baseline, Table, LOOPS) \
  constexpr Table k##Table[] = {baseline::kLoops};
#endif

// `saved`: buffer of one worker for embed_saved() logits of 4 bytes, which embed_rows restores. `maxima`: the
// same for a number per kSkipped columns.
#define IET_OWN_LOOPS(LOOP)                                                                                  \
  LOOP(embed_rows, const KernelParams&, const EmbedArgs&, int64_t begin, int64_t end, void* saved)           \
  LOOP(choose_rows, const KernelParams&, const ChooseArgs&, int64_t begin, int64_t end, float* maxima)       \
  LOOP(score_tile, const KernelParams&, const ScoreArgs&, const Tile&)                                       \
  LOOP(score_spans_tile, const KernelParams&, const SpansArgs&, const Tile&)                                 \
  LOOP(permute_ids, uint32_t vocab, const PermuteArgs&)                                                      \
  LOOP(chain_forward, const Chain&, const ChainPart&, double* leaving, double* occupancy, float* padded_row, \
       double* log_ratio)                                                                                    \
  LOOP(chain_backward, const Chain&, const ChainPart&, double* beta, double* occupancy, double* weights,     \
       float* padded_row, float* posterior, float* null_posterior)                                           \
  LOOP(batched_log_likelihood, const ChainBatch&)                                                            \
  LOOP(two_states, const double* ratios, int64_t columns, int64_t first, int64_t end, double enter,          \
       double stay, double* outside, double* inside, double* log_ratios)
IET_DECLARE_LOOPS(OwnLoops, IET_OWN_LOOPS)

// Instruction sets by number, from the one that runs everywhere to the best.
int cpu_isas();  // number of those that this build and this machine can run
const char* cpu_isa_name(int isa);
int cpu_isa();  // the one in use
void select_cpu_isa(int isa);

const OwnLoops& own_loops(int isa);

}  // namespace iet
