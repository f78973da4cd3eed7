// The loops over hidden Markov chains on drawn ones: every instruction set gives the bits of the baseline.
#pragma once

#include <vector>

#include "../../csrc/cpu/loops.h"
#include "own.h"

namespace fuzz {

inline void draw_shares(Random& random, double* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(random.number(1, 1000)) / 1000;
}

// What the loops of an instruction set write of one text.
inline std::vector<double> read_text(const Chain& chain, bool keep, const OwnLoops& loops, Random& random) {
  const int64_t width = chain_width(chain.states), agents = chain.states - 1, row = chain.stages * width;
  Array<double> state(random, row), beta(random, row), onward(random, width), held(random, width);
  Array<float> alpha(random, (keep ? chain.tokens : 1) * row), room(random, width);
  Array<float> posterior(random, chain.tokens * agents), left(random, chain.tokens);
  for (int64_t i = 0; i < row; ++i) state[i] = i % width < chain.states, beta[i] = state[i];
  const ChainPart part = {0, 0, chain.tokens, keep, state.data(), alpha.data()};
  double log_ratio = 0;
  loops.chain_forward(chain, part, onward.data(), held.data(), room.data(), &log_ratio);
  std::vector<double> written = {log_ratio};
  if (!keep) return written;
  loops.chain_backward(chain, part, beta.data(), held.data(), onward.data(), room.data(), posterior.data(),
                       left.data());
  written.insert(written.end(), posterior.begin(), posterior.end());
  written.insert(written.end(), left.begin(), left.end());
  return written;
}

// And of eight chains over it.
inline std::vector<double> read_aside(const Chain& chain, const OwnLoops& loops, Random random) {
  Array<double> lanes(random, 6 * 8), of_states(random, 5 * 8 * chain.states);
  draw_shares(random, lanes.data(), lanes.size());
  draw_shares(random, of_states.data(), of_states.size());
  double *own = lanes.data(), *each = of_states.data();
  for (int64_t lane = 0; lane < 8; ++lane) own[8 + lane] = 1e-12, own[16 + lane] = 1 - 1e-12;
  const int64_t size = 8 * chain.states;
  loops.batched_log_likelihood({chain.ratios, chain.tokens, chain.states, own, own + 8, own + 16, own + 24,
                                own + 32, each, each + size, each + 2 * size, each + 3 * size, each + 4 * size,
                                own + 40});
  return {own + 40, own + 48};
}

inline void try_chain(Call& call) {
  Random& random = call.random;
  const int64_t tokens = random.number(1, 40), states = random.number(2, 20), width = chain_width(states);
  const int64_t stages = random.one_in(2) ? 3 : random.number(1, 5);
  Array<float> ratios(random, tokens * states);
  Array<double> law(random, 3 * width);
  for (float& ratio : ratios) ratio = static_cast<float>(random.number(1, 4000)) / 1000;
  for (double& value : law) value = 0;
  for (int64_t i = 0; i < 3; ++i) draw_shares(random, law.data() + i * width, states);
  const Chain chain = {ratios.data(),          tokens, states, stages,    law.data(), law.data() + width,
                       law.data() + 2 * width, 0.1,    1e-12,  1 - 1e-12, 0.5};
  const bool keep = !random.one_in(4);
  const OwnLoops &ours = own_loops(cpu_isa()), &baseline = own_loops(0);
  call.expect(read_text(chain, keep, ours, random) == read_text(chain, keep, baseline, random), "a chain");
  call.expect(read_aside(chain, ours, random) == read_aside(chain, baseline, random), "chains side by side");
  call.calls = 2;
}

}  // namespace fuzz
