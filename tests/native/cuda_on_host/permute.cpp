// What csrc/cuda/permute.cu defines, for a module that runs on the host.
#include "../../../csrc/ops.h"

namespace iet {

const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis) {
  const Grid grid = make_grid(vocab);
  for (int64_t i = 0; i < args.count; ++i) {
    args.ranks[i] = permute(args.ids[i], RoundKeys(args.seeds[i]), grid);
    phis[i] = phi_fourier(args.ranks[i], phase_step(k_p, vocab));
  }
  return nullptr;
}

int device_count() { return 0; }
const char* device_error() { return "this module runs on the host"; }

}  // namespace iet
