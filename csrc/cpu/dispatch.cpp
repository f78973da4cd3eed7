// Choice of the instruction set (once, by cpuid, or by IET_CPU through iet/native/load.py), and partition of
// the marking operations for threads.
#include <limits>
#include <memory>

#include "loops.h"

namespace iet {

IET_DEFINE_LOOPS(OwnLoops, IET_OWN_LOOPS)

int cpu_isas() {
#if defined(IET_X86)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
    return 1;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? 3 : 2;
#else
  return 1;
#endif
}

const char* cpu_isa_name(int isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  return kNames[isa];
}

const OwnLoops& own_loops(int isa) { return kOwnLoops[isa]; }

namespace {

int selected = cpu_isas() - 1;

const OwnLoops& loops() { return kOwnLoops[selected]; }

constexpr int64_t kGrainLogits = 1 << 17;  // as kGrain, in logits

}  // namespace

int cpu_isa() { return selected; }

void select_cpu_isa(int isa) { selected = isa; }

namespace {

bool valid(const KernelParams& params, const EmbedArgs& args) {
  const int64_t context_len = params.n_gram - 1;
  for (int64_t row = 0; row < args.rows; ++row) {
    const int32_t slot = args.slots[row];
    if (slot < -1 || slot >= params.n_keys) return false;
    if (slot < 0) continue;  // other arguments of unmarked rows are not read
    if (!(args.kappas[row] >= 0 && args.kappas[row] < std::numeric_limits<float>::infinity())) return false;
    for (int64_t i = 0; i < context_len; ++i)
      if (args.contexts[row * context_len + i] < 0) return false;
  }
  return true;
}

}  // namespace

bool embed_cpu(const KernelParams& params, const EmbedArgs& args, int num_threads) {
  if (!valid(params, args)) return false;
  const int64_t grain = params.vocab < kGrainLogits ? kGrainLogits / params.vocab : 1;
  const int64_t saved_size = embed_saved(params);
  const int workers = parallel_workers(args.rows, grain, num_threads);
  const std::unique_ptr<float[]> saved(new float[static_cast<size_t>(workers * saved_size) + 1]);
  in_parallel(args.rows, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    loops().embed_rows(params, args, begin, end, saved.get() + worker * saved_size);
  });
  return true;
}

bool choose_cpu(const KernelParams& params, const ChooseArgs& args, int num_threads) {
  if (!valid(params, args.rows)) return false;
  const int64_t grain = params.vocab < kGrainLogits ? kGrainLogits / params.vocab : 1;
  const int64_t blocks = (args.rows.columns + kSkipped - 1) / kSkipped;
  const int workers = parallel_workers(args.rows.rows, grain, num_threads);
  const std::unique_ptr<float[]> maxima(new float[static_cast<size_t>(workers * blocks) + 1]);
  in_parallel(args.rows.rows, grain, num_threads, [&](int worker, int64_t begin, int64_t end) {
    loops().choose_rows(params, args, begin, end, maxima.get() + worker * blocks);
  });
  return true;
}

void score_cpu(const KernelParams& params, const ScoreArgs& args, int num_threads) {
  over_tiles(args.tokens, params.n_keys, num_threads,
             [&](const Tile& tile) { loops().score_tile(params, args, tile); });
}

void score_spans_cpu(const KernelParams& params, const SpansArgs& args, int num_threads) {
  if (args.spans == 0) return;
  const int64_t start = args.boundaries[0], tokens = args.boundaries[args.spans] - start;
  over_tiles(tokens, params.n_keys, num_threads, [&](const Tile& tile) {
    loops().score_spans_tile(params, args,
                             {start + tile.token_begin, start + tile.token_end, tile.key_begin, tile.key_end});
  });
}

void permute_cpu(uint32_t vocab, const PermuteArgs& args) { loops().permute_ids(vocab, args); }

}  // namespace iet
