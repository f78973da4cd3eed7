// Known answers on the device: the scheme's header, run inside a kernel.
#include <initializer_list>

#include "../ops.h"

namespace iet {
namespace {

__global__ void permute_kernel(Grid grid, uint32_t step, const uint64_t* seeds, const uint32_t* ids,
                               int64_t count, uint32_t* ranks, float* phis) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const uint32_t rank = permute(ids[i], RoundKeys(seeds[i]), grid);
  ranks[i] = rank;
  phis[i] = phi_fourier(rank, step);
}

template <class T>
struct DeviceArray {
  T* data = nullptr;
  cudaError_t status;
  explicit DeviceArray(int64_t count) : status(cudaMalloc(&data, count * sizeof(T))) {}
  ~DeviceArray() { cudaFree(data); }
};

}  // namespace

const char* permute_cuda(uint32_t vocab, uint32_t k_p, const PermuteArgs& args, float* phis) {
  DeviceArray<uint64_t> seeds(args.count);
  DeviceArray<uint32_t> ids(args.count), ranks(args.count);
  DeviceArray<float> device_phis(args.count);
  for (cudaError_t status : {seeds.status, ids.status, ranks.status, device_phis.status})
    if (status != cudaSuccess) return cudaGetErrorString(status);
  cudaMemcpy(seeds.data, args.seeds, args.count * sizeof(uint64_t), cudaMemcpyHostToDevice);
  cudaMemcpy(ids.data, args.ids, args.count * sizeof(uint32_t), cudaMemcpyHostToDevice);
  constexpr int kThreads = 256;
  permute_kernel<<<static_cast<unsigned>((args.count + kThreads - 1) / kThreads), kThreads>>>(
      make_grid(vocab), phase_step(k_p, vocab), seeds.data, ids.data, args.count, ranks.data, device_phis.data);
  cudaMemcpy(args.ranks, ranks.data, args.count * sizeof(uint32_t), cudaMemcpyDeviceToHost);
  cudaMemcpy(phis, device_phis.data, args.count * sizeof(float), cudaMemcpyDeviceToHost);
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const char* device_error() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

}  // namespace iet
