// What the CUDA runtime is asked beside kernels: is there a driver, are there devices, memory that both sides
// see.
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

}  // namespace iet
