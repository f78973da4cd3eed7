// Calls to the CUDA runtime other than kernels: queries for a driver and devices, and shared host memory.
#include <cstring>

#include "../ops.h"

namespace iet {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const char* device_error() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess ? "" : cudaGetErrorString(status);
}

// With unified addressing, which all 64-bit platforms have, the device uses the host's address.
void* host_memory(int64_t bytes, const char** error) {
  void* memory = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable);
  *error = status == cudaSuccess ? nullptr : cudaGetErrorString(status);
  if (status == cudaSuccess) std::memset(memory, 0, static_cast<size_t>(bytes));
  return memory;
}

}  // namespace iet
