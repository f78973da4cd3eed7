// Code that differs between host and device: launches, and loads and stores of a dtype. Except for this and a
// few intrinsics the kernels are plain C++, so tests/native/cuda_on_host can run them on the CPU.
#pragma once

#include "../keyed.h"
#include "../numeric.h"

#if !defined(__CUDACC__)
#include "on_host.h"
#endif

namespace iet {
namespace {

#if defined(__CUDACC__)
// Every kernel has one argument, a struct.
template <class Args>
const char* launch(void (*kernel)(Args), dim3 grid, dim3 block, void* stream, Args args) {
  void* parameters[] = {&args};
  const cudaError_t status = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, parameters, 0,
                                              static_cast<cudaStream_t>(stream));
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

template <class Args>
const char* load(void (*kernel)(Args)) {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}

inline const char* clear(void* data, int64_t bytes, void* stream) {
  const cudaError_t status =
      cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream));
  return status == cudaSuccess ? nullptr : cudaGetErrorString(status);
}
#endif

// Widening is exact, narrowing rounds once to nearest even. NaN stays NaN, but its bits differ between device
// and host.
IET_HD float as_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return bits_to_float(bits);
#endif
}

IET_HD uint32_t as_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  return float_to_bits(value);
#endif
}

IET_HD uint64_t as_bits(double value) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint64_t>(__double_as_longlong(value));
#else
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

// Round to the nearest integer, half to even.
IET_HD int32_t to_integer(float value) {
#if defined(__CUDA_ARCH__)
  return __float2int_rn(value);
#else
  return static_cast<int32_t>(__builtin_rintf(value));
#endif
}

#if defined(__CUDACC__)
// CUDA's own functions take unsigned long long, a different type of the same size.
IET_HD void add_atomically(uint64_t* sum, uint64_t value) {
#if defined(__CUDA_ARCH__)
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
#endif
}
IET_HD uint64_t compare_and_swap(uint64_t* word, uint64_t expected, uint64_t wanted) {
#if defined(__CUDA_ARCH__)
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(wanted));
#else
  return expected + wanted - *word;
#endif
}
#endif

// ---------------------------------------------------------------- the threads of a warp

// All threads of the warp, or of the block, call these. Host code that nvcc compiles never does.
#if defined(__CUDACC__)
// The value of the lane whose number differs in the bits of `by`.
template <class T>
IET_HD T shuffle(T value, int by) {
#if defined(__CUDA_ARCH__)
  return __shfl_xor_sync(0xFFFFFFFFu, value, by);
#else
  return value;
#endif
}
IET_HD uint64_t shuffle(uint64_t value, int by) { return shuffle(static_cast<unsigned long long>(value), by); }
IET_HD uint32_t ballot(bool value) {
#if defined(__CUDA_ARCH__)
  return __ballot_sync(0xFFFFFFFFu, value);
#else
  return value;
#endif
}
IET_HD void wait_for_block() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#endif
}
IET_HD void wait_for_warp() {
#if defined(__CUDA_ARCH__)
  __syncwarp();
#endif
}
#endif

IET_HD uint32_t lowest_bit(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__popc((bits & -bits) - 1));
#else
  return static_cast<uint32_t>(__builtin_ctz(bits));
#endif
}

// kLanes logits share a 32-bit word.
struct Float32Words {
  using Storage = uint32_t;
  static constexpr int kLanes = 1;
  static IET_HD void load(uint32_t word, float* values) { values[0] = as_float(word); }
  static IET_HD uint32_t store(const float* values) { return as_bits(values[0]); }
};

struct Float16Words {
  using Storage = uint16_t;
  static constexpr int kLanes = 2;
  static IET_HD void load(uint32_t word, float* values) {
#if defined(__CUDA_ARCH__)
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(values[0]), "=f"(values[1])
        : "r"(word));
#else
    values[0] = Float16::load(static_cast<uint16_t>(word));
    values[1] = Float16::load(static_cast<uint16_t>(word >> 16));
#endif
  }
  static IET_HD uint32_t store(const float* values) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
    return word;
#elif defined(__CUDA_ARCH__)
    uint32_t word;
    asm("{.reg .f16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high};}"
        : "=r"(word)
        : "f"(values[0]), "f"(values[1]));
    return word;
#else
    return Float16::store(values[0]) | static_cast<uint32_t>(Float16::store(values[1])) << 16;
#endif
  }
};

struct BFloat16Words {
  using Storage = uint16_t;
  static constexpr int kLanes = 2;
  static IET_HD void load(uint32_t word, float* values) {
    values[0] = as_float(word << 16);
    values[1] = as_float(word & 0xFFFF0000u);
  }
  static IET_HD uint32_t store(const float* values) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
    return word;
#else
    return rounded(values[0]) | rounded(values[1]) << 16;
#endif
  }

 private:
  static IET_HD uint32_t rounded(float value) {  // as BFloat16::store, on the host and on sm_75
    const uint32_t bits = as_bits(value);
    const uint32_t quiet = (bits >> 16 & 0x8000u) | 0x7FC0u;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  }
};

}  // namespace
}  // namespace iet
