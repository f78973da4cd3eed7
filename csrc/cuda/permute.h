// Declarations of the CUDA ops.
#pragma once

#include "../ops.h"

namespace iet {

// Ranks and phi of (seed, id) pairs in host memory, computed on the current device; null, or what went wrong.
const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis);
// Devices that the driver shows; 0 where there is no driver.
int device_count();

}  // namespace iet
