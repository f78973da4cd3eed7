// Runs the permutation of keyed.h in a kernel, for tests against known answers.
#include <initializer_list>

#include "../ops.h"
#include "device.h"

namespace iet {
namespace {

constexpr int kThreads = 256;

struct PermuteLaunch {
  Grid grid;
  uint32_t step;
  const uint64_t* seeds;
  const uint32_t* ids;
  int64_t count;
  uint32_t* ranks;
  float* phis;
};

__global__ void __launch_bounds__(kThreads) permute_kernel(const PermuteLaunch launch) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= launch.count) return;
  const uint32_t rank = permute(launch.ids[i], RoundKeys(launch.seeds[i]), launch.grid);
  launch.ranks[i] = rank;
  launch.phis[i] = phi_fourier(rank, launch.step);
}

template <class T>
struct DeviceArray {
  T* data = nullptr;
  cudaError_t status;
  explicit DeviceArray(int64_t count) : status(cudaMalloc(&data, count * sizeof(T))) {}
  ~DeviceArray() { cudaFree(data); }
};

}  // namespace

// Checks the status of each call, because the runtime's last error may come from other code.
const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis) {
  DeviceArray<uint64_t> seeds(args.count);
  DeviceArray<uint32_t> ids(args.count), ranks(args.count);
  DeviceArray<float> device_phis(args.count);
  for (cudaError_t status : {seeds.status, ids.status, ranks.status, device_phis.status})
    if (status != cudaSuccess) return cudaGetErrorString(status);
  const auto copy = [&](void* to, const void* from, size_t size, cudaMemcpyKind kind) -> const char* {
    const cudaError_t status = cudaMemcpy(to, from, args.count * size, kind);
    return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  };
  if (const char* error = copy(seeds.data, args.seeds, sizeof(uint64_t), cudaMemcpyHostToDevice)) return error;
  if (const char* error = copy(ids.data, args.ids, sizeof(uint32_t), cudaMemcpyHostToDevice)) return error;
  const PermuteLaunch launch_args{make_grid(vocab), phase_step(k_p, vocab), seeds.data, ids.data, args.count,
                                  ranks.data,       device_phis.data};
  const dim3 blocks(static_cast<unsigned>((args.count + kThreads - 1) / kThreads), 1, 1);
  if (const char* error = launch(permute_kernel, blocks, dim3(kThreads, 1, 1), nullptr, launch_args))
    return error;
  if (const char* error = copy(args.ranks, ranks.data, sizeof(uint32_t), cudaMemcpyDeviceToHost)) return error;
  return copy(phis, device_phis.data, sizeof(float), cudaMemcpyDeviceToHost);
}

}  // namespace iet
