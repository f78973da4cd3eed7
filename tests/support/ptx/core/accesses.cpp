// ld, st, atom, red and cp.async of the threads of a block, one after another in the order of their numbers.
#include <algorithm>

#include "machine.h"

namespace ptx {

// Resolve a generic address. Shared and local memory have their own address windows.
Space Machine::space_of(const Step& step, u64* address) {
  if (step.space != GENERIC) return Space(step.space);
  for (const auto& [space, window] : {std::pair(SHARED, SHARED_WINDOW), std::pair(LOCAL, LOCAL_WINDOW)}) {
    if (*address >= window && *address < window + (u64(1) << 32)) {
      *address -= window;
      return space;
    }
  }
  return GLOBAL;
}

u8* Machine::readable(const Step& step, Space space, u64 address, int size, int thread) {
  switch (space) {
    case SHARED:
      return shared_.load(thread, address, size);
    case LOCAL:
      return local_.load(thread, address, size);
    case PARAMETERS:
      check_alignment(thread, address, size);
      if (address + size > u64(program_->parameter_bytes)) {
        throw fault(OUT_OF_BOUNDS, thread, "reads beyond %lld bytes of parameters",
                    (long long)program_->parameter_bytes);
      }
      return const_cast<u8*>(launch_->parameters) + address;
    default:
      return global_.front().at(thread, address, size, false, step.constant);
  }
}

namespace {

// Checks that all threads of an instruction access the same space.
class SpaceCheck {
 public:
  void note(Space space, int thread) {
    if (known_ && space != space_) {
      throw fault(FAULT, thread, "generic addresses of several spaces in one instruction");
    }
    known_ = true, space_ = space;
  }

 private:
  bool known_ = false;
  Space space_ = GENERIC;
};

constexpr int MAX_VALUES = 8;  // of one access

}  // namespace

void Machine::load(const Step& step, const Mask& threads) {
  check_written(in(step, 0), threads);
  if (step.space == PARAMETERS && in(step, 0).stride == 0) return load_parameter(step, threads);
  SpaceCheck one;
  const int size = step.bytes * step.outs;
  for (int w = 0; w < warps_; w++) {
    if (!threads.of[w]) continue;
    Values addresses, values[MAX_VALUES];
    read(in(step, 0), w, addresses);
    for (u32 rest = threads.of[w]; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest), thread = w * WARP + lane;
      u64 address = addresses[lane] + step.offset;
      const Space space = space_of(step, &address);
      one.note(space, thread);
      const u8* from = readable(step, space, address, size, thread);
      for (int i = 0; i < step.outs; i++, from += step.bytes) {
        values[i][lane] = 0;
        std::memcpy(&values[i][lane], from, step.bytes);
      }
    }
    for (int i = 0; i < step.outs; i++) {
      if (wanted(step, i)) write(out(step, i), w, threads.of[w], values[i], step.bytes);
    }
  }
  note_written(step, threads);
}

// All threads read the same value.
void Machine::load_parameter(const Step& step, const Mask& threads) {
  const u64 address = read_one(in(step, 0), 0) + step.offset;
  const u8* from = readable(step, PARAMETERS, address, step.bytes * step.outs, threads.first());
  for (int i = 0; i < step.outs; i++, from += step.bytes) {
    if (!wanted(step, i)) continue;
    Values values{};
    std::memcpy(values, from, step.bytes);
    std::fill(values + 1, values + WARP, values[0]);
    for (int w = 0; w < warps_; w++) {
      if (threads.of[w]) write(out(step, i), w, threads.of[w], values, step.bytes);
    }
  }
  note_written(step, threads);
}

void Machine::store(const Step& step, const Mask& threads) {
  for (int i = 0; i < step.ins; i++) check_written(in(step, i), threads);
  SpaceCheck one;
  const int count = step.ins - 1, size = step.bytes * count;
  for (int w = 0; w < warps_; w++) {
    if (!threads.of[w]) continue;
    Values addresses, values[MAX_VALUES];
    read(in(step, 0), w, addresses);
    for (int i = 0; i < count; i++) read(in(step, i + 1), w, values[i]);
    for (u32 rest = threads.of[w]; rest; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest), thread = w * WARP + lane;
      u64 address = addresses[lane] + step.offset;
      const Space space = space_of(step, &address);
      one.note(space, thread);
      u8 data[8 * MAX_VALUES];
      for (int i = 0; i < count; i++) std::memcpy(data + i * step.bytes, &values[i][lane], step.bytes);
      if (space == SHARED) {
        shared_.store(thread, address, size, data, false);
      } else {
        u8* const to = space == LOCAL ? local_.store(thread, address, size)
                                      : global_.front().at(thread, address, size, true, false);
        std::memcpy(to, data, size);
      }
    }
  }
}

namespace {

enum Atomic { ADD, MIN, MAX, AND, OR, XOR, EXCHANGE, COMPARE };  // numbered as in moves.py

u64 updated(const Step& step, u64 old, u64 operand, u64 other) {
  const int shift = 64 - 8 * step.bytes;
  const auto less = [&](u64 x, u64 y) {
    x <<= shift, y <<= shift;
    return step.is_signed ? s64(x) < s64(y) : x < y;
  };
  switch (step.operation) {
    case ADD:
      return old + operand;
    case MIN:
      return less(operand, old) ? operand : old;
    case MAX:
      return less(old, operand) ? operand : old;
    case AND:
      return old & operand;
    case OR:
      return old | operand;
    case XOR:
      return old ^ operand;
    case EXCHANGE:
      return operand;
    default:
      return old << shift == operand << shift ? other : old;
  }
}

}  // namespace

// Threads may run in any order.
void Machine::atomic(const Step& step, const Mask& threads) {
  for (int i = 0; i < step.ins; i++) check_written(in(step, i), threads);
  const bool keeps = step.outs > 0 && wanted(step, 0);
  each_thread(threads, warps_, [&](int thread) {
    u64 address = read_one(in(step, 0), thread) + step.offset, old = 0;
    const Space space = space_of(step, &address);
    const int size = step.bytes;
    const u8* const from =
        space == SHARED ? shared_.peek(thread, address, size) : readable(step, space, address, size, thread);
    std::memcpy(&old, from, size);
    const u64 other = step.ins > 2 ? read_one(in(step, 2), thread) : 0;
    const u64 now = updated(step, old, read_one(in(step, 1), thread), other);
    if (space == SHARED) {
      shared_.store(thread, address, size, &now, true);
    } else {
      u8* const to = space == LOCAL ? local_.store(thread, address, size)
                                    : global_.front().at(thread, address, size, true, false);
      std::memcpy(to, &now, size);
    }
    if (keeps) {
      Values values;
      values[thread % WARP] = old;
      write(out(step, 0), thread / WARP, u32(1) << thread % WARP, values, size);
    }
  });
  note_written(step, threads);
}

// cp.async: destination in shared memory, source in global memory, and optionally the number of bytes: all, or
// 0, which writes zeros.
void Machine::copy(const Step& step, const Mask& threads) {
  for (int i = 0; i < step.ins; i++) check_written(in(step, i), threads);
  each_thread(threads, warps_, [&](int thread) {
    Copies::Copy copy{thread, -1, step.bytes / 4, read_one(in(step, 0), thread) + step.offset, {}};
    const u64 taken = step.ins > 2 ? read_one(in(step, 2), thread) : step.bytes;
    if (taken != 0 && taken != u64(step.bytes)) throw fault(UNKNOWN, thread, "part of a copy");
    if (taken) {
      std::memcpy(copy.data,
                  global_.front().at(thread, read_one(in(step, 1), thread), step.bytes, false, false),
                  step.bytes);
    }
    copies_.start(shared_, copy);
  });
}

// ---------------------------------------------------------------- pending copies

void Copies::begin_block(int threads) {
  committed_.assign(threads, 0);
  pending_.clear();
}

void Copies::start(SharedMemory& shared, const Copy& copy) {
  shared.forget(copy.thread, copy.address, 4 * copy.words);
  pending_.push_back(copy);
}

void Copies::commit(const Mask& threads, int warps) {
  for (Copy& copy : pending_) {
    const bool mine = threads.of[copy.thread / WARP] >> copy.thread % WARP & 1;
    if (mine && copy.group < 0) copy.group = committed_[copy.thread];
  }
  each_thread(threads, warps, [this](int thread) { committed_[thread]++; });
}

void Copies::wait(SharedMemory& shared, const Mask& threads, int pending) {
  const auto arrives = [&](const Copy& copy) {
    const bool mine = threads.of[copy.thread / WARP] >> copy.thread % WARP & 1;
    const bool old = copy.group >= 0 && copy.group < committed_[copy.thread] - pending;
    if (!mine || (pending >= 0 && !old)) return false;
    shared.store(copy.thread, copy.address, 4 * copy.words, copy.data, false);
    return true;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), arrives), pending_.end());
}

}  // namespace ptx
