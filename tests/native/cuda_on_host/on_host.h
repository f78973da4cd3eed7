// The part of CUDA that csrc/cuda uses, on the CPU. Blocks run one after another; each thread of a block is a
// fiber that runs until it ends or reaches a barrier. csrc/cuda/device.h includes this file for other compilers
// than nvcc.
//
// It checks the kernels' arithmetic, indices, alignment, barriers and writes. It cannot check races between
// threads, speed, the device's own instructions, streams and graphs. Those need a GPU.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y, unsigned z) : x(x), y(y), z(z) {}
};

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), gridDim(0, 0, 0);

namespace on_host {

constexpr unsigned kWarp = 32;
enum Wait { kNone, kAtBlock, kAtWarp, kEnded };

struct Fiber {
  ucontext_t context;
  unsigned thread;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<char> stacks;
  ucontext_t scheduler;
  Fiber* current = nullptr;
  unsigned threads = 0, started = 0, ended = 0;
  bool pending = false, result = false;  // of __syncthreads_or: disjunction so far, and that of all threads
  std::vector<Wait> waits;               // of threads
  std::vector<Fiber*> fiber_of;          // of threads
  std::vector<uint64_t> given, taken;    // of threads: what they give their warps, and gave the last time
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
};

inline Block block;
inline const char* error = nullptr;  // if set, launches and copies fail with it
inline int launches = 0;
constexpr size_t kStack = 64 << 10;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "cuda_on_host: %s\n", what);
  std::abort();
}

// Run threads on one fiber until one of them waits. Threads without a barrier share a fiber.
inline void run_fiber() {
  while (block.started < block.threads) {
    block.current->thread = threadIdx.x = block.started++;
    block.fiber_of[threadIdx.x] = block.current;
    block.body(block.argument);
    block.waits[block.current->thread] = kEnded;
    ++block.ended;
  }
  swapcontext(&block.current->context, &block.scheduler);
}

inline void wait(Wait where) {
  block.waits[block.current->thread] = where;
  swapcontext(&block.current->context, &block.scheduler);
}

inline bool barrier(bool value) {
  block.pending |= value;
  wait(kAtBlock);
  return block.result;
}

// Give a value to the warp, and return what all of its threads gave.
template <class T>
const uint64_t* exchange(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  block.given[threadIdx.x] = bits;
  const unsigned thread = threadIdx.x;
  wait(kAtWarp);
  return block.taken.data() + thread / kWarp * kWarp;
}

inline void resume(Fiber& fiber) {
  block.current = &fiber;
  threadIdx.x = fiber.thread;
  block.waits[fiber.thread] = kNone;
  swapcontext(&block.scheduler, &fiber.context);
}

// Let the threads [begin, end) go on, if all of them wait there.
inline bool release(unsigned begin, unsigned end, Wait where) {
  for (unsigned i = begin; i < end; ++i)
    if (block.waits[i] != where) return false;
  if (where == kAtWarp) {
    for (unsigned i = begin; i < end; ++i) block.taken[i] = block.given[i];
  } else {
    block.result = block.pending;
    block.pending = false;
  }
  for (unsigned i = begin; i < end; ++i) resume(*block.fiber_of[i]);
  return true;
}

inline void run_block(unsigned threads) {
  block.fibers.resize(threads);
  block.stacks.resize(threads * kStack);
  block.waits.assign(threads, kNone), block.fiber_of.resize(threads);
  block.given.resize(threads), block.taken.resize(threads);
  block.threads = threads, block.started = block.ended = 0, block.pending = false;
  unsigned fibers = 0;
  while (block.started < threads) {
    Fiber& fiber = block.fibers[fibers];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = block.stacks.data() + fibers * kStack;
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
    ++fibers;
    fiber.thread = block.started;
    resume(fiber);
  }
  while (block.ended < threads) {
    bool goes_on = release(0, threads, kAtBlock);
    for (unsigned warp = 0; warp < threads; warp += kWarp)
      goes_on |= release(warp, warp + kWarp < threads ? warp + kWarp : threads, kAtWarp);
    if (!goes_on) fail("threads of a block wait at a barrier that others do not reach");
  }
}

}  // namespace on_host

inline bool __syncthreads_or(bool value) { return on_host::barrier(value); }
inline void __syncthreads() { on_host::barrier(false); }
inline void wait_for_block() { on_host::barrier(false); }
inline void wait_for_warp() { on_host::exchange(0); }

enum cudaError_t { cudaSuccess, cudaErrorUnknown };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

template <class T>
cudaError_t cudaMalloc(T** data, size_t size) {
  *data = static_cast<T*>(std::malloc(size));
  return cudaSuccess;
}
inline void cudaFree(void* data) { std::free(data); }
inline const char* cudaGetErrorString(cudaError_t) { return on_host::error; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  if (on_host::error != nullptr) return cudaErrorUnknown;
  std::memcpy(to, from, size);
  return cudaSuccess;
}

namespace iet {

template <class Args>
const char* launch(void (*kernel)(Args), dim3 grid, dim3 threads, void*, Args args) {
  struct Call {
    void (*kernel)(Args);
    Args args;
  } call{kernel, args};
  on_host::block.argument = &call;
  on_host::block.body = [](void* argument) {
    const Call& call = *static_cast<Call*>(argument);
    call.kernel(call.args);
  };
  if (on_host::error != nullptr) return on_host::error;
  ++on_host::launches;
  if (grid.y > 65535 || threads.x > 1024) return "invalid configuration argument";
  gridDim = grid;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx.x = x, blockIdx.y = y;
      on_host::run_block(threads.x);
    }
  return nullptr;
}

template <class Args>
const char* load(void (*)(Args)) {
  return on_host::error;
}

inline const char* clear(void* data, int64_t bytes, void*) {
  std::memset(data, 0, static_cast<size_t>(bytes));
  return nullptr;
}

inline void add_atomically(uint64_t* sum, uint64_t value) { *sum += value; }

inline uint64_t compare_and_swap(uint64_t* word, uint64_t expected, uint64_t wanted) {
  const uint64_t found = *word;
  if (found == expected) *word = wanted;
  return found;
}

template <class T>
T shuffle(T value, int by) {
  const uint64_t* const values = on_host::exchange(value);
  T other;
  std::memcpy(&other, values + (threadIdx.x % on_host::kWarp ^ static_cast<unsigned>(by)), sizeof other);
  return other;
}

inline uint32_t ballot(bool value) {
  const uint64_t* const values = on_host::exchange(value);
  uint32_t lanes = 0;
  for (unsigned lane = 0; lane < on_host::kWarp; ++lane) lanes |= (values[lane] & 1 ? 1u : 0u) << lane;
  return lanes;
}

}  // namespace iet
