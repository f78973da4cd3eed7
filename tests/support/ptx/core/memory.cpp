#include "memory.h"

namespace ptx {

GlobalMemory::GlobalMemory(const Launch& launch) : first_(launch.buffers) {
  for (s64 i = 0; i < launch.number_of_buffers; i++) buffers_.push_back(&launch.buffers[i]);
}

Buffer* GlobalMemory::find(int thread, u64 address, int size) {
  for (std::size_t i = 0; i < buffers_.size(); i++) {
    Buffer* const buffer = buffers_[i];
    if (!holds(*buffer, address, size)) continue;
    for (; i > 0; i--) buffers_[i] = buffers_[i - 1];  // the next access is probably to the same buffer
    return latest_ = buffers_[0] = buffer;
  }
  Fault made =
      fault(OUT_OF_BOUNDS, thread, "%d bytes at %#llx are in no buffer", size, (unsigned long long)address);
  made.address = address, made.size = size;
  throw made;
}

void GlobalMemory::refuse(int thread, const Buffer& buffer) const {
  Fault made = fault(FAULT, thread, "is read as constant (.nc) and written by the same kernel");
  made.buffer = &buffer - first_;
  throw made;
}

namespace {

constexpr s16 NO_THREAD = -1, SEVERAL_WARPS = -2;
// Lower values: several threads of one warp, which have not met since (`apart`), or have met (`met`).
constexpr s16 apart(int warp) { return s16(-3 - 2 * warp); }
constexpr s16 met(int warp) { return s16(-4 - 2 * warp); }

}  // namespace

void SharedMemory::begin_launch(s64 size, s64 granule) {
  size_ = size, granule_ = granule;
  const std::size_t aligned = (size + 31) / 32 * 32;  // no access is wider
  if (data_.size() < aligned) data_.resize(aligned);
  if (granules_.size() < aligned / granule) granules_.resize(aligned / granule);
}

void SharedMemory::begin_block() { block_++, epoch_++; }

void SharedMemory::check(int thread, u64 address, int size) const {
  check_alignment(thread, address, size);
  if (address > u64(size_) || u64(size_) - address < u64(size)) {
    throw fault(OUT_OF_BOUNDS, thread, "%d bytes at %llu of %lld bytes of shared memory", size,
                (unsigned long long)address, (long long)size_);
  }
}

SharedMemory::Granule& SharedMemory::granule(u64 place) {
  Granule& cell = granules_[place];
  if (cell.epoch != epoch_) {
    cell.epoch = epoch_, cell.reader = cell.writer = NO_THREAD, cell.atomic = false;
  }
  return cell;
}

// Combine a thread with the recorded one.
s16 SharedMemory::joined(s16 recorded, int thread) {
  const int warp = thread / WARP;
  if (recorded == NO_THREAD || recorded == thread || recorded == met(warp)) return s16(thread);
  return (recorded >= 0 && recorded / WARP == warp) || recorded == apart(warp) ? apart(warp) : SEVERAL_WARPS;
}

// Return whether another thread is recorded, without a barrier since.
bool SharedMemory::other(s16 recorded, int thread) {
  return recorded != NO_THREAD && recorded != thread && recorded != met(thread / WARP);
}

void SharedMemory::meet_warp(int warp) {
  const auto now = [warp](s16 recorded) {
    return (recorded >= 0 && recorded / WARP == warp) || recorded == apart(warp) ? met(warp) : recorded;
  };
  for (Granule& cell : granules_) {
    if (cell.epoch == epoch_) cell.reader = now(cell.reader), cell.writer = now(cell.writer);
  }
}

u8* SharedMemory::peek(int thread, u64 address, int size) {
  check(thread, address, size);
  for (u64 i = address / granule_, last = (address + size - 1) / granule_; i <= last; i++) {
    if (!ready(granules_[i])) {
      throw fault(UNINITIALISED, thread, "reads shared memory that no thread wrote, at %llu",
                  (unsigned long long)address);
    }
  }
  return data_.data() + address;
}

u8* SharedMemory::load(int thread, u64 address, int size) {
  u8* const data = peek(thread, address, size);
  for (u64 i = address / granule_, last = (address + size - 1) / granule_; i <= last; i++) {
    Granule& cell = granule(i);
    if (other(cell.writer, thread)) {
      throw fault(RACE, thread, "reads shared memory that another thread wrote since the barrier, at %llu",
                  (unsigned long long)address);
    }
    if (cell.reader != SEVERAL_WARPS) cell.reader = joined(cell.reader, thread);
  }
  return data;
}

void SharedMemory::store(int thread, u64 address, int size, const void* value, bool atomic) {
  check(thread, address, size);
  const bool differs = std::memcmp(data_.data() + address, value, size) != 0;
  for (u64 i = address / granule_, last = (address + size - 1) / granule_; i <= last; i++) {
    Granule& cell = granule(i);
    if (other(cell.reader, thread)) {
      throw fault(RACE, thread, "writes shared memory that another thread read since the barrier, at %llu",
                  (unsigned long long)address);
    }
    // Writing the same value again is no race.
    const bool harms = atomic ? !cell.atomic : differs && ready(cell);
    if (harms && other(cell.writer, thread)) {
      throw fault(RACE, thread,
                  "writes another value to shared memory than another thread since the barrier, at %llu",
                  (unsigned long long)address);
    }
    cell.atomic |= atomic, cell.written_in = block_, cell.writer = joined(cell.writer, thread);
  }
  std::memcpy(data_.data() + address, value, size);
}

void SharedMemory::forget(int thread, u64 address, int size) {
  check(thread, address, size);
  for (u64 i = address / granule_, last = (address + size - 1) / granule_; i <= last; i++) {
    granules_[i].written_in = 0;
  }
}

void LocalMemory::begin_block(int threads, s64 size) {
  size_ = size;
  data_.resize(threads * size_);
  ready_.assign(threads * size_, 0);
}

s64 LocalMemory::place(int thread, u64 address, int size) const {
  check_alignment(thread, address, size);
  if (address > u64(size_) || u64(size_) - address < u64(size)) {
    throw fault(OUT_OF_BOUNDS, thread, "%d bytes beyond %lld of local memory, at %llu", size, (long long)size_,
                (unsigned long long)address);
  }
  return thread * size_ + s64(address);
}

u8* LocalMemory::load(int thread, u64 address, int size) {
  const s64 at = place(thread, address, size);
  for (int i = 0; i < size; i++) {
    if (!ready_[at + i]) {
      throw fault(UNINITIALISED, thread, "reads local memory that was not written, at %llu",
                  (unsigned long long)address);
    }
  }
  return data_.data() + at;
}

u8* LocalMemory::store(int thread, u64 address, int size) {
  const s64 at = place(thread, address, size);
  std::memset(ready_.data() + at, 1, size);
  return data_.data() + at;
}

}  // namespace ptx
