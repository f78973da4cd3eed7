// Partition of the work on foreign marks for threads.
#include <memory>

#include "schemes.h"

namespace iet {

IET_DEFINE_LOOPS(ForeignLoops, IET_FOREIGN_LOOPS)

const ForeignLoops& foreign_loops(int isa) { return kForeignLoops[isa]; }

namespace {

const ForeignLoops& loops() { return kForeignLoops[cpu_isa()]; }

}  // namespace

void waterfall_ranks_cpu(const WaterfallArgs& args, int num_threads) {
  const int64_t pairs = args.n_keys * args.n_contexts, words = waterfall_scratch(args.vocab);
  const int64_t grain = args.vocab < kGrain ? kGrain / args.vocab : 1;
  const int workers = parallel_workers(pairs, grain, num_threads);
  const std::unique_ptr<uint32_t[]> scratch(new uint32_t[static_cast<size_t>(workers * words)]);
  in_parallel(pairs, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    loops().waterfall_ranks(args, begin, end, scratch.get() + worker * words);
  });
}

void waterfall_permute_cpu(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks) {
  loops().waterfall_permute(vocab, seed, length, ranks);
}

void engine_scores_cpu(const EngineArgs& args, int num_threads) {
  over_tiles(args.tokens, args.n_keys, num_threads, [&](const Tile& tile) { loops().engine_tile(args, tile); });
}

void kgw_green_cpu(GreenArgs args, int num_threads) {
  const std::unique_ptr<GreenStep[]> steps(new GreenStep[args.green]);
  for (uint32_t step = 0; step < args.green; ++step) {
    const uint32_t remaining = args.vocab - step;
    steps[step] = {step, remaining, static_cast<float>(2.0 / remaining * (1 - 3 * 0x1p-24))};
  }
  args.steps = steps.get();
  int64_t max_tokens = 1;
  for (int64_t s = 0; s < args.n_seeds; ++s) {
    const int64_t count = args.offsets[s + 1] - args.offsets[s];
    max_tokens = count > max_tokens ? count : max_tokens;
  }
  const int64_t groups = (args.n_seeds + kGreenLists - 1) / kGreenLists;
  const int64_t draws = int64_t{kGreenLists} * (args.green + 1), grain = draws < kGrain ? kGrain / draws : 1;
  const int workers = parallel_workers(groups, grain, num_threads);
  const int64_t words = kGreenLists * max_tokens;
  const std::unique_ptr<uint32_t[]> positions(new uint32_t[static_cast<size_t>(workers * words)]);
  in_parallel(groups, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    const int64_t last = end * kGreenLists;
    loops().kgw_green(args, begin * kGreenLists, last < args.n_seeds ? last : args.n_seeds,
                      positions.get() + worker * words);
  });
}

void synthid_tables_cpu(const SynthidArgs& args, int num_threads) {
  constexpr int64_t kGroup = 16;  // keys
  const int64_t groups = (args.n_keys + kGroup - 1) / kGroup;
  in_parallel(groups, 1, num_threads, [&](int, int64_t begin, int64_t end) {
    const int64_t last = end * kGroup;
    loops().synthid_tables(args, begin * kGroup, last < args.n_keys ? last : args.n_keys);
  });
}

void synthid_scores_cpu(const SynthidArgs& args, int num_threads) {
  over_tiles(args.tokens, args.n_keys, num_threads,
             [&](const Tile& tile) { loops().synthid_tile(args, tile); });
}

void torch_permute_cpu(uint32_t count, uint32_t seed, uint32_t* permutation) {
  loops().torch_permute(count, seed, permutation);
}

}  // namespace iet
