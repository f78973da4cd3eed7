// Calls every native op on drawn arguments and compares what it writes:
//
//   fuzz SEED CALLS THREADS SAMPLE    prints a line of JSON for every one in SAMPLE (0: none), then the counts
//
// THREADS threads of this process call at once, in the same instruction set, so that the pool has several
// callers. The exit code is 1 if a result differed; an error of a sanitizer ends the process. The draws of
// SEED depend only on the machine's instruction sets.
#include <atomic>
#include <thread>
#include <vector>

#include "chains.h"
#include "embed.h"
#include "foreign.h"

namespace {

struct Op {
  const char* name;
  void (*run)(fuzz::Call&);
  int chances, wide;  // of 100 calls; one in `wide` of this op's calls is wide
};

constexpr Op kOps[] = {
    {"permute", fuzz::try_permute, 14, 0},      {"embed", fuzz::try_embed, 18, 20000},
    {"choose", fuzz::try_choose, 6, 20000},     {"score", fuzz::try_score, 20, 5000},
    {"score_spans", fuzz::try_spans, 14, 5000}, {"engine_scores", fuzz::try_engine_scores, 12, 5000},
    {"synthid", fuzz::try_synthid, 5, 5000},    {"waterfall", fuzz::try_waterfall, 2, 5000},
    {"green", fuzz::try_green, 1, 1000},        {"pool", fuzz::try_pool, 6, 0},
    {"chain", fuzz::try_chain, 2, 0},
};
constexpr size_t kCount = sizeof kOps / sizeof kOps[0];

struct Counts {
  uint64_t calls[kCount] = {}, faults = 0, wide = 0;
};

// Run ops that `random` draws, until `wanted` calls were made.
void run(fuzz::Random random, uint64_t wanted, int64_t sample, bool crowded, Counts& counts) {
  for (uint64_t made = 0; made < wanted;) {
    int64_t ticket = random.number(0, 99);
    size_t op = 0;
    while (ticket >= kOps[op].chances) ticket -= kOps[op++].chances;
    const bool large = kOps[op].wide > 0 && random.one_in(crowded ? kOps[op].wide / 100 : kOps[op].wide);
    const uint64_t before = random.state;
    fuzz::Call call{random, large, sample > 0 && !large && random.one_in(sample)};
    kOps[op].run(call);
    if (call.faults > 0)
      std::fprintf(stderr, "  %s, state %llu, %s%s\n", kOps[op].name, static_cast<unsigned long long>(before),
                   iet::cpu_isa_name(iet::cpu_isa()), large ? ", wide" : "");
    counts.calls[op] += call.calls, counts.faults += call.faults, counts.wide += large ? call.calls : 0;
    made += call.calls;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "usage: %s SEED CALLS THREADS SAMPLE\n", argv[0]), 2;
  const uint64_t seed = std::strtoull(argv[1], nullptr, 10), calls = std::strtoull(argv[2], nullptr, 10);
  const int64_t threads = std::atoll(argv[3]), sample = std::atoll(argv[4]);
  constexpr uint64_t kRound = 20000;  // calls of a thread in one instruction set
  Counts total;
  fuzz::Random random{seed};
  uint64_t done = 0;
  for (uint64_t round = 0; done < calls; ++round) {
    iet::select_cpu_isa(static_cast<int>(round % static_cast<uint64_t>(iet::cpu_isas())));
    const uint64_t left = (calls - done + threads - 1) / threads, each = left < kRound ? left : kRound;
    std::vector<Counts> counts(static_cast<size_t>(threads));
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; ++t)
      others.emplace_back(run, fuzz::Random{random.word()}, each, 0, true, std::ref(counts[t]));
    run(fuzz::Random{random.word()}, each, sample, threads > 1, counts[0]);
    for (std::thread& other : others) other.join();
    for (const Counts& found : counts) {
      for (size_t op = 0; op < kCount; ++op) total.calls[op] += found.calls[op], done += found.calls[op];
      total.faults += found.faults, total.wide += found.wide;
    }
  }
  fuzz::Line line("counts");
  for (size_t op = 0; op < kCount; ++op) line.number(kOps[op].name, static_cast<int64_t>(total.calls[op]));
  line.number("calls", static_cast<int64_t>(done)).number("wide", static_cast<int64_t>(total.wide));
  line.number("isas", iet::cpu_isas()).number("faults", static_cast<int64_t>(total.faults)).print();
  return total.faults > 0;
}
