// What the loops over hidden Markov chains take (iet/decoding/chain.py, iet/decoding/activity.py); all of it is
// packed.
#pragma once

#include <cstdint>

namespace iet {

constexpr int64_t kChainLanes =
    8;  // rows of states are filled up to a multiple of that, chains go side by side

inline int64_t chain_width(int64_t states) { return (states + kChainLanes - 1) / kChainLanes * kChainLanes; }

// A chain over agents and, last, the null state, at tokens of a text.
struct Chain {
  const float* ratios;  // [T, states]
  int64_t tokens, states, stages;
  const double *prior, *leave,
      *again;  // [width], 0 past the states; again: alternates for the null state, 1 for agents
  double rate, lowest, highest, pace;
};

// The tokens [begin, end) of a text that starts at `first`; `keep`: every token's α.
struct ChainPart {
  int64_t first, begin, end;
  bool keep;
  double* state;  // [stages, width]
  float* alpha;   // [end - begin, stages, width]
};

// Eight chains of three stages over one text, side by side.
struct ChainsAside {
  const float* ratios;
  int64_t tokens, states;
  const double *rates, *lowest, *highest, *paces, *alternates;  // [8]
  const double *priors, *leave;                                 // [states, 8]
  double *first, *second, *third;                               // [states, 8]
  double* log_ratios;                                           // [8]
};

}  // namespace iet
