// The memory of a device: buffers that a kernel may access, shared memory of a block, local memory of threads.
//
// Every access is checked: it is within one buffer, and aligned to its size. Shared memory records which thread
// wrote and which threads read each part since the last barrier.
#pragma once
#include <vector>

#include "program.h"

namespace ptx {

inline constexpr u64 SHARED_WINDOW = u64(1) << 62;  // where generic addresses of shared memory begin
inline constexpr u64 LOCAL_WINDOW = u64(1) << 61;

inline void check_alignment(int thread, u64 address, int size) {
  if (address & (size - 1)) {
    throw fault(MISALIGNED, thread, "address %#llx is no multiple of %d", (unsigned long long)address, size);
  }
}

// Addresses are those of this process.
class GlobalMemory {
 public:
  explicit GlobalMemory(const Launch& launch);
  // Check that these bytes may be read or written, and return their address.
  u8* at(int thread, u64 address, int size, bool writes, bool constant) {
    check_alignment(thread, address, size);
    Buffer* found = latest_;
    if (!holds(*found, address, size)) found = find(thread, address, size);
    found->written |= writes, found->assumed_constant |= constant;
    if (found->written && found->assumed_constant) refuse(thread, *found);
    return reinterpret_cast<u8*>(address);
  }

 private:
  static bool holds(const Buffer& buffer, u64 address, int size) {
    return buffer.begin <= address && address <= buffer.end && buffer.end - address >= u64(size);
  }
  Buffer* find(int thread, u64 address, int size);
  [[noreturn]] void refuse(int thread, const Buffer& buffer) const;

  Buffer none_{};
  Buffer* first_;
  std::vector<Buffer*> buffers_;  // most recently used first
  Buffer* latest_ = &none_;
};

// Shared memory of one block at a time. `granule` is the smallest access of the kernel, in bytes.
class SharedMemory {
 public:
  // Entries record the block that wrote them, so they need not be cleared.
  void begin_launch(s64 size, s64 granule);
  void begin_block();
  // All threads of the block have met at a barrier.
  void meet() { epoch_++; }
  // All threads of one warp have met.
  void meet_warp(int warp);
  u8* load(int thread, u64 address, int size);
  // Atomic operations race only with plain accesses.
  u8* peek(int thread, u64 address, int size);
  void store(int thread, u64 address, int size, const void* value, bool atomic);
  // Mark these bytes as not written, because a copy to them is pending.
  void forget(int thread, u64 address, int size);

 private:
  struct Granule {
    u32 epoch = 0;       // when reader, writer and atomic were noted
    u32 written_in = 0;  // the last block that wrote it
    s16 reader = 0, writer = 0;
    bool atomic = false;
  };
  void check(int thread, u64 address, int size) const;
  Granule& granule(u64 place);
  static s16 joined(s16 who, int thread);
  static bool other(s16 who, int thread);
  bool ready(const Granule& granule) const { return granule.written_in == block_; }

  s64 size_ = 0, granule_ = 1;
  u32 epoch_ = 0, block_ = 0;  // of all launches
  std::vector<u8> data_;
  std::vector<Granule> granules_;
};

// Local memory of the threads of a block.
class LocalMemory {
 public:
  void begin_block(int threads, s64 size);
  u8* load(int thread, u64 address, int size);
  u8* store(int thread, u64 address, int size);

 private:
  s64 place(int thread, u64 address, int size) const;

  s64 size_ = 0;
  std::vector<u8> data_, ready_;
};

}  // namespace ptx
