// Loops over random hidden Markov chains: every instruction set gives the bits of the baseline.
#pragma once

#include <vector>

#include "../../csrc/cpu/loops.h"
#include "marks.h"

namespace fuzz {

inline void draw_shares(Random& random, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(random.number(1, 1000)) / 1000;
}

// Run one chain with the loops of an instruction set, and return what they write.
inline std::vector<double> run_chain(const Chain& chain, bool keep, const OwnLoops& loops, Random& random) {
  const int64_t width = chain_width(chain.states), agents = chain.states - 1, row = chain.stages * width;
  Array<double> state(random, row), beta(random, row), leaving(random, width), occupancy(random, width);
  Array<float> alpha(random, (keep ? chain.tokens : 1) * row), padded_row(random, width);
  Array<float> posterior(random, chain.tokens * agents), null_posterior(random, chain.tokens);
  for (int64_t i = 0; i < row; ++i) state[i] = i % width < chain.states, beta[i] = state[i];
  const ChainPart part = {0, 0, chain.tokens, keep, state.data(), alpha.data()};
  double log_ratio = 0;
  loops.chain_forward(chain, part, leaving.data(), occupancy.data(), padded_row.data(), &log_ratio);
  std::vector<double> results = {log_ratio};
  if (!keep) return results;
  loops.chain_backward(chain, part, beta.data(), occupancy.data(), leaving.data(), padded_row.data(),
                       posterior.data(), null_posterior.data());
  results.insert(results.end(), posterior.begin(), posterior.end());
  results.insert(results.end(), null_posterior.begin(), null_posterior.end());
  return results;
}

// The same for eight chains over its ratios.
inline std::vector<double> run_batch(const Chain& chain, const OwnLoops& loops, Random random) {
  Array<double> lanes(random, 6 * 8), of_states(random, 5 * 8 * chain.states);
  draw_shares(random, lanes.data(), lanes.size());
  draw_shares(random, of_states.data(), of_states.size());
  double *by_lane = lanes.data(), *by_state = of_states.data();
  for (int64_t lane = 0; lane < 8; ++lane) by_lane[8 + lane] = 1e-12, by_lane[16 + lane] = 1 - 1e-12;
  const int64_t size = 8 * chain.states;
  loops.batched_log_likelihood({chain.ratios, chain.tokens, chain.states, by_lane, by_lane + 8, by_lane + 16,
                                by_lane + 24, by_lane + 32, by_state, by_state + size, by_state + 2 * size,
                                by_state + 3 * size, by_state + 4 * size, by_lane + 40});
  return {by_lane + 40, by_lane + 48};
}

inline void try_chain(Call& call) {
  Random& random = call.random;
  const int64_t tokens = random.number(1, 40), states = random.number(2, 20), width = chain_width(states);
  const int64_t stages = random.one_in(2) ? 3 : random.number(1, 5);
  Array<float> ratios(random, tokens * states);
  Array<double> transitions(random, 3 * width);
  for (float& ratio : ratios) ratio = static_cast<float>(random.number(1, 4000)) / 1000;
  for (double& value : transitions) value = 0;
  for (int64_t i = 0; i < 3; ++i) draw_shares(random, transitions.data() + i * width, states);
  const Chain chain = {ratios.data(),
                       tokens,
                       states,
                       stages,
                       transitions.data(),
                       transitions.data() + width,
                       transitions.data() + 2 * width,
                       0.1,
                       1e-12,
                       1 - 1e-12,
                       0.5};
  const bool keep = !random.one_in(4);
  const OwnLoops &ours = own_loops(cpu_isa()), &baseline = own_loops(0);
  call.expect(run_chain(chain, keep, ours, random) == run_chain(chain, keep, baseline, random), "a chain");
  call.expect(run_batch(chain, ours, random) == run_batch(chain, baseline, random), "chains side by side");
  call.calls = 2;
}

}  // namespace fuzz
