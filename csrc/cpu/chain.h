// Arguments of the loops over hidden Markov chains (iet/decoding/chain.py, iet/decoding/activity.py). All
// arrays are packed.
#pragma once

#include <cstdint>

namespace iet {

// Lanes of a vector. Rows of states are padded to a multiple of it, and a ChainBatch has one chain per lane.
constexpr int64_t kChainLanes = 8;

inline int64_t chain_width(int64_t states) { return (states + kChainLanes - 1) / kChainLanes * kChainLanes; }

// A chain over agents and the null state, which is the last one.
struct Chain {
  const float* ratios;  // [T, states]
  int64_t tokens, states, stages;
  const double *prior, *leave;  // [width], padded by 0
  // [width]; 1 for agents; for the null state 1 if it alternates with agents, else 0
  const double* self_transition;
  double rate, lowest, highest, null_rate_ratio;
};

// The tokens [begin, end) of a text that starts at `first`. If `keep`, `alpha` gets α of every token.
struct ChainPart {
  int64_t first, begin, end;
  bool keep;
  double* state;  // [stages, width]
  float* alpha;   // [end - begin, stages, width]
};

// Eight chains of three stages each over one text, one chain a lane.
struct ChainBatch {
  const float* ratios;
  int64_t tokens, states;
  const double *rates, *lowest, *highest, *null_rate_ratios, *alternates;  // [8]
  const double *priors, *leave;                                            // [states, 8]
  double *first, *second, *third;                                          // [states, 8]
  double* log_ratios;                                                      // [8]
};

}  // namespace iet
