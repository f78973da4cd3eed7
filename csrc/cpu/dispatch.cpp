// Which instruction set runs. Chosen once by cpuid; IET_CPU names another (iet/kernels.py passes it on).
#include <cstring>

#include "../ops.h"

namespace iet {
namespace {

constexpr CpuOps kBaseline = {"baseline",
                              baseline::embed_cpu,
                              baseline::score_cpu,
                              baseline::permute_cpu,
                              baseline::waterfall_ranks_cpu,
                              baseline::waterfall_permute_cpu};

#if defined(IET_X86)
constexpr CpuOps kAvx2 = {"avx2",
                          avx2::embed_cpu,
                          avx2::score_cpu,
                          avx2::permute_cpu,
                          avx2::waterfall_ranks_cpu,
                          avx2::waterfall_permute_cpu};
constexpr CpuOps kAvx512 = {"avx512",
                            avx512::embed_cpu,
                            avx512::score_cpu,
                            avx512::permute_cpu,
                            avx512::waterfall_ranks_cpu,
                            avx512::waterfall_permute_cpu};

bool has_avx2() { return __builtin_cpu_supports("avx2"); }
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const CpuOps* find(const char* isa) {
  if (std::strcmp(isa, kBaseline.isa) == 0) return &kBaseline;
#if defined(IET_X86)
  if (std::strcmp(isa, kAvx2.isa) == 0 && has_avx2()) return &kAvx2;
  if (std::strcmp(isa, kAvx512.isa) == 0 && has_avx512()) return &kAvx512;
#endif
  return nullptr;
}

const char* const kBetter[] = {"avx2", "avx512"};

const CpuOps* best() {
  const CpuOps* ops = &kBaseline;
  for (const char* isa : kBetter)
    if (const CpuOps* better = find(isa)) ops = better;
  return ops;
}

const CpuOps* selected = best();

}  // namespace

const CpuOps& cpu_ops() { return *selected; }

const char* cpu_isas() {
  return find("avx512") ? "baseline avx2 avx512" : find("avx2") ? "baseline avx2" : "baseline";
}

bool select_cpu_isa(const char* isa) {
  const CpuOps* ops = find(isa);
  if (ops != nullptr) selected = ops;
  return ops != nullptr;
}

}  // namespace iet
