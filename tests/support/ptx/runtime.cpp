// What the host code of csrc/cuda calls of the CUDA runtime, for a process without a GPU: memory is that of the
// process, and a launch goes to the interpreter. Whoever links this in place of cudart calls iet_ptx_connect.
//
// Everything happens at once and in order, on every stream: what streams, events and graphs do cannot be seen.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

using Launch = int (*)(const char* kernel, const unsigned* grid, const unsigned* block, void** arguments,
                       size_t shared_bytes);
using Memory = void (*)(void* address, size_t bytes);  // 0 bytes: it is given back

struct State {
  Launch launch = nullptr;
  Memory memory = nullptr;
  std::map<const void*, std::string> kernels;  // by the address of their host function
  int devices = 1, current = 0;
  cudaError_t last = cudaSuccess;
  char message[4096] = "";
  struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
  } configuration;
};

State& state() {
  static State* const made = new State;  // kernels are registered before anything else is
  return *made;
}

cudaError_t told(cudaError_t status) {
  if (status != cudaSuccess) state().last = status;
  return status;
}

cudaError_t told(cudaError_t status, const char* message) {
  std::snprintf(state().message, sizeof state().message, "%s", message);
  return told(status);
}

cudaError_t allocate(void** address, size_t bytes) {
  // Aligned for the largest vectors, and filled with a pattern so that unwritten memory is noticed.
  if (posix_memalign(address, 256, bytes == 0 ? 256 : bytes) != 0) return told(cudaErrorMemoryAllocation);
  std::memset(*address, 0xA5, bytes);
  if (state().memory != nullptr) state().memory(*address, bytes);
  return cudaSuccess;
}

cudaError_t release(void* address) {
  if (address != nullptr && state().memory != nullptr) state().memory(address, 0);
  std::free(address);
  return cudaSuccess;
}

}  // namespace

extern "C" {

void iet_ptx_connect(Launch launch, Memory memory) { state().launch = launch, state().memory = memory; }
void iet_ptx_devices(int count) { state().devices = count; }
void iet_ptx_fail(const char* message) { told(cudaErrorLaunchFailure, message); }

// ---------------------------------------------------------------- what nvcc makes of a .cu file calls

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*,
                            dim3*, int*) {
  state().kernels[host] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char* name, int, size_t, int, int) {
  std::fprintf(stderr, "ptx: the host sees a device variable, %s\n", name);
  std::abort();
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  state().configuration = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  const auto& configuration = state().configuration;
  *grid = configuration.grid, *block = configuration.block, *shared_bytes = configuration.shared_bytes;
  std::memcpy(stream, &configuration.stream, sizeof configuration.stream);
  return cudaSuccess;
}

// ---------------------------------------------------------------- launches

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t) {
  const auto found = state().kernels.find(function);
  if (found == state().kernels.end()) return told(cudaErrorInvalidDeviceFunction);
  if (state().launch == nullptr) return told(cudaErrorLaunchFailure, "ptx: no interpreter is connected");
  const unsigned blocks[] = {grid.x, grid.y, grid.z}, threads[] = {block.x, block.y, block.z};
  return static_cast<cudaError_t>(
      state().launch(found->second.c_str(), blocks, threads, arguments, shared_bytes));
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(static_cast<const void*>(kernel), grid, block, arguments, shared_bytes, stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  std::memset(attributes, 0, sizeof *attributes);
  return state().kernels.count(function) ? cudaSuccess : told(cudaErrorInvalidDeviceFunction);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int) {
  return state().kernels.count(function) ? cudaSuccess : told(cudaErrorInvalidDeviceFunction);
}

// ---------------------------------------------------------------- errors and devices

const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? state().message : status == cudaSuccess ? "no error" : "CUDA error";
}
const char* cudaGetErrorName(cudaError_t status) { return cudaGetErrorString(status); }
cudaError_t cudaPeekAtLastError() { return state().last; }
cudaError_t cudaGetLastError() {
  const cudaError_t last = state().last;
  state().last = cudaSuccess;
  return last;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = state().devices;
  return *count > 0 ? cudaSuccess : told(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = state().current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= state().devices) return told(cudaErrorInvalidDevice);
  state().current = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// ---------------------------------------------------------------- memory

cudaError_t cudaMalloc(void** address, size_t bytes) { return allocate(address, bytes); }
cudaError_t cudaFree(void* address) { return release(address); }
cudaError_t cudaMallocHost(void** address, size_t bytes) { return allocate(address, bytes); }
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) { return allocate(address, bytes); }
cudaError_t cudaFreeHost(void* address) { return release(address); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(to, value, bytes);
}

}  // extern "C"
