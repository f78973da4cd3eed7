// Which instruction set runs (chosen once by cpuid; IET_CPU names another, which iet/native/load.py passes on), and
// how the work is cut for threads.
#include <cstring>
#include <limits>
#include <memory>

#include "../ops.h"
#include "threads.h"

namespace iet {
namespace {

#define IET_LOOPS(isa)      \
  {#isa,                    \
   isa::embed_rows,         \
   isa::score_tile,         \
   isa::score_spans_tile,   \
   isa::permute_ids,        \
   isa::waterfall_ranks,    \
   isa::waterfall_permute,  \
   isa::engine_gumbel_tile, \
   isa::kgw_green,          \
   isa::synthid_tables,     \
   isa::synthid_tile,       \
   isa::torch_permute}
constexpr CpuLoops kBaseline = IET_LOOPS(baseline);

#if defined(IET_X86)
constexpr CpuLoops kAvx2 = IET_LOOPS(avx2);
constexpr CpuLoops kAvx512 = IET_LOOPS(avx512);

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

}  // namespace

const CpuLoops* find_cpu_loops(const char* isa) {
  if (std::strcmp(isa, kBaseline.isa) == 0) return &kBaseline;
#if defined(IET_X86)
  if (std::strcmp(isa, kAvx2.isa) == 0 && has_avx2()) return &kAvx2;
  if (std::strcmp(isa, kAvx512.isa) == 0 && has_avx512()) return &kAvx512;
#endif
  return nullptr;
}

namespace {

const char* const kBetter[] = {"avx2", "avx512"};

const CpuLoops* best() {
  const CpuLoops* loops = &kBaseline;
  for (const char* isa : kBetter)
    if (const CpuLoops* better = find_cpu_loops(isa)) loops = better;
  return loops;
}

const CpuLoops* selected = best();

// Fewer logits, scores or draws are not worth waking a thread for: they take less than some 100 microseconds.
constexpr int64_t kGrain = 1 << 15, kGrainLogits = 1 << 17;
constexpr int64_t kTileTokens = 1024, kTileKeys = 128;

template <class Function>
void in_parallel(int64_t count, int64_t grain, int num_threads, Function&& function) {
  const auto body = [](void* context, int worker, int64_t begin, int64_t end) {
    (*static_cast<Function*>(context))(worker, begin, end);
  };
  parallel_for(count, grain, num_threads, body, &function);
}

template <class Function>
void over_tiles(int64_t tokens, int64_t keys, int num_threads, Function&& function) {
  const int64_t rows = (tokens + kTileTokens - 1) / kTileTokens, columns = (keys + kTileKeys - 1) / kTileKeys;
  const int64_t size = kTileTokens * (keys < kTileKeys ? keys : kTileKeys);
  const int64_t grain = size > 0 && size < kGrain ? kGrain / size : 1;
  in_parallel(rows * columns, grain, num_threads, [&](int, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t token = tile / columns * kTileTokens, key = tile % columns * kTileKeys;
      function(Tile{token, token + kTileTokens < tokens ? token + kTileTokens : tokens, key,
                    key + kTileKeys < keys ? key + kTileKeys : keys});
    }
  });
}

}  // namespace

bool embed_cpu(const Marking& marking, const EmbedArgs& args, int num_threads) {
  const int64_t words = marking.n_gram - 1;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t slot = args.slots[row];
    if (slot < -1 || slot >= marking.n_keys) return false;
    if (!(args.kappas[row] >= 0 && args.kappas[row] < std::numeric_limits<float>::infinity())) return false;
    for (int64_t i = 0; slot >= 0 && i < words; ++i)
      if (args.contexts[row * words + i] < 0) return false;
  }
  const int64_t grain = marking.vocab < kGrainLogits ? kGrainLogits / marking.vocab : 1;
  const int64_t room = embed_saved(marking);
  const int workers = parallel_workers(args.rows, grain, num_threads);
  const std::unique_ptr<float[]> saved(new float[static_cast<size_t>(workers * room) + 1]);
  in_parallel(args.rows, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    selected->embed_rows(marking, args, begin, end, saved.get() + worker * room);
  });
  return true;
}

void score_cpu(const Marking& marking, const ScoreArgs& args, int num_threads) {
  over_tiles(args.tokens, marking.n_keys, num_threads,
             [&](const Tile& tile) { selected->score_tile(marking, args, tile); });
}

void score_spans_cpu(const Marking& marking, const SpansArgs& args, int num_threads) {
  if (args.spans == 0) return;
  const int64_t start = args.boundaries[0], tokens = args.boundaries[args.spans] - start;
  over_tiles(tokens, marking.n_keys, num_threads, [&](const Tile& tile) {
    selected->score_spans_tile(
        marking, args, {start + tile.token_begin, start + tile.token_end, tile.key_begin, tile.key_end});
  });
}

void permute_cpu(uint32_t vocab, const PermuteArgs& args) { selected->permute_ids(vocab, args); }

void waterfall_ranks_cpu(const WaterfallArgs& args, int num_threads) {
  const int64_t pairs = args.n_keys * args.n_contexts, room = waterfall_scratch(args.vocab);
  const int64_t grain = args.vocab < kGrain ? kGrain / args.vocab : 1;
  const int workers = parallel_workers(pairs, grain, num_threads);
  const std::unique_ptr<uint32_t[]> scratch(new uint32_t[static_cast<size_t>(workers * room)]);
  in_parallel(pairs, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    selected->waterfall_ranks(args, begin, end, scratch.get() + worker * room);
  });
}

void waterfall_permute_cpu(uint32_t vocab, const uint32_t* seed, uint32_t length, uint32_t* ranks) {
  selected->waterfall_permute(vocab, seed, length, ranks);
}

void engine_gumbel_cpu(const EngineGumbelArgs& args, int num_threads) {
  over_tiles(args.tokens, args.n_keys, num_threads,
             [&](const Tile& tile) { selected->engine_gumbel_tile(args, tile); });
}

void kgw_green_cpu(GreenArgs args, int num_threads) {
  const std::unique_ptr<GreenStep[]> steps(new GreenStep[args.green]);
  for (uint32_t step = 0; step < args.green; ++step) {
    const uint32_t left = args.vocab - step;
    steps[step] = {step, left, static_cast<float>(2.0 / left * (1 - 3 * 0x1p-24))};
  }
  args.steps = steps.get();
  int64_t most = 1;
  for (int64_t s = 0; s < args.n_seeds; ++s) {
    const int64_t count = args.offsets[s + 1] - args.offsets[s];
    most = count > most ? count : most;
  }
  const int64_t groups = (args.n_seeds + kGreenLists - 1) / kGreenLists;
  const int64_t draws = int64_t{kGreenLists} * (args.green + 1), grain = draws < kGrain ? kGrain / draws : 1;
  const int workers = parallel_workers(groups, grain, num_threads);
  const int64_t room = kGreenLists * most;
  const std::unique_ptr<uint32_t[]> places(new uint32_t[static_cast<size_t>(workers * room)]);
  in_parallel(groups, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    const int64_t last = end * kGreenLists;
    selected->kgw_green(args, begin * kGreenLists, last < args.n_seeds ? last : args.n_seeds,
                        places.get() + worker * room);
  });
}

void synthid_tables_cpu(const SynthidArgs& args, int num_threads) {
  constexpr int64_t kGroup = 16;  // keys
  const int64_t groups = (args.n_keys + kGroup - 1) / kGroup;
  in_parallel(groups, 1, num_threads, [&](int, int64_t begin, int64_t end) {
    const int64_t last = end * kGroup;
    selected->synthid_tables(args, begin * kGroup, last < args.n_keys ? last : args.n_keys);
  });
}

void synthid_scores_cpu(const SynthidArgs& args, int num_threads) {
  over_tiles(args.tokens, args.n_keys, num_threads,
             [&](const Tile& tile) { selected->synthid_tile(args, tile); });
}

void torch_permute_cpu(uint32_t count, uint32_t seed, uint32_t* permutation) {
  selected->torch_permute(count, seed, permutation);
}

const CpuLoops& cpu_loops() { return *selected; }

const char* cpu_isas() {
  return find_cpu_loops("avx512") ? "baseline avx2 avx512"
         : find_cpu_loops("avx2") ? "baseline avx2"
                                  : "baseline";
}

bool select_cpu_isa(const char* isa) {
  const CpuLoops* loops = find_cpu_loops(isa);
  if (loops != nullptr) selected = loops;
  return loops != nullptr;
}

}  // namespace iet
