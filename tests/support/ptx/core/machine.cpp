#include "machine.h"

#include <algorithm>
#include <climits>

namespace ptx {

// ---------------------------------------------------------------- a launch and its blocks

void Machine::begin_launch(const Program& program, const Launch& launch) {
  program_ = &program, launch_ = &launch, at_ = nullptr;
  threads_ = launch.block[0] * launch.block[1] * launch.block[2];
  warps_ = (threads_ + WARP - 1) / WARP;
  constexpr s64 CONSTANT_BYTES = 8 * WARP;
  const s64 registers = program.register_bytes * warps_;
  store_.assign(registers + program.number_of_constants * CONSTANT_BYTES + 64, 0);
  begin_ = store_.data() + (-reinterpret_cast<std::uintptr_t>(store_.data()) & 63);
  for (s64 i = 0; i < program.number_of_constants; i++) {
    const Constant& constant = program.constants[i];
    u8* const to = begin_ + registers + i * CONSTANT_BYTES;
    for (int lane = 0; lane < WARP; lane++) {
      std::memcpy(to + lane * constant.bytes, &constant.value, constant.bytes);
    }
  }
  places_.resize(program.number_of_operands);
  for (s64 i = 0; i < program.number_of_operands; i++) {
    const Operand& from = program.operands[i];
    const s64 offset = from.constant ? registers + from.offset * CONSTANT_BYTES : from.offset * warps_;
    places_[i] = {begin_ + offset, from.constant ? 0 : from.bytes * WARP,
                  from.tracked,    from.bytes,
                  from.negated,    from.is_signed};
  }
  written_.resize(program.tracked);
  everybody_ = Mask();
  for (int thread = 0; thread < threads_; thread++) everybody_.of[thread / WARP] |= u32(1) << thread % WARP;
  global_.clear();
  global_.emplace_back(launch);
  shared_.begin_launch(launch.shared_bytes, program.granule);
  for (s64 i = 0; i < program.number_of_specials; i++) fill(program.specials[i], 0);
}

void Machine::run(s64 block) {
  std::fill(written_.begin(), written_.end(), Mask());
  for (s64 i = 0; i < program_->number_of_specials; i++) {
    if (of_block(program_->specials[i])) fill(program_->specials[i], block);
  }
  shared_.begin_block();
  local_.begin_block(threads_, program_->local_bytes);
  copies_.begin_block(threads_);
  ready_.clear(), at_barrier_.clear(), in_warp_.clear();
  alive_ = everybody_;
  arrive(0, everybody_);
  do {
    while (!ready_.empty()) {
      const auto first = ready_.begin();
      const auto [pc, threads] = *first;
      ready_.erase(first);
      advance(pc, threads);
    }
  } while (release());
}

u32 Machine::special(int which, int thread, s64 block) const {
  const s32 *const grid = launch_->grid, *const shape = launch_->block;
  const int axis = which % 3;
  const auto coordinate = [axis](s64 number, const s32* sizes) {
    for (int i = 0; i < axis; i++) number /= sizes[i];
    return u32(axis == 2 ? number : number % sizes[axis]);
  };
  const u32 lane = thread % WARP, one = u32(1) << lane;
  switch (which / 3) {
    case 0:
      return coordinate(thread, shape);
    case 1:
      return coordinate(block, grid);
    case 2:
      return shape[axis];
    case 3:
      return grid[axis];
  }
  const u32 others[] = {lane,      u32(thread / WARP), one, one - 1, (one - 1) | one, ~((one - 1) | one),
                        ~(one - 1)};
  return others[which - 12];
}

void Machine::fill(const Special& special_, s64 block) {
  u32* const to = reinterpret_cast<u32*>(begin_ + special_.offset * warps_);
  for (int thread = 0; thread < warps_ * WARP; thread++) to[thread] = special(special_.which, thread, block);
}

// ---------------------------------------------------------------- operands

void Machine::check_tracked(const Mask& written, const Mask& threads) {
  const Mask unknown = threads.without(written);
  if (unknown.any()) throw fault(UNINITIALISED, unknown.first(), "reads a register that was not written");
}

void Machine::note_written(const Step& step, const Mask& threads) {
  for (int i = 0; i < step.outs; i++) {
    if (wanted(step, i) && out(step, i).tracked >= 0) written_[out(step, i).tracked] |= threads;
  }
}

const void* Machine::fetch(const Place& place, int warp, int bytes, void* scratch) const {
  const u8* const from = place.base + warp * place.stride;
  if (place.bytes == bytes && !place.negated) return from;
  u8* const to = static_cast<u8*>(scratch);
  if (place.negated) {
    for (int i = 0; i < WARP; i++) to[i] = !from[i];
  } else {
    for (int i = 0; i < WARP; i++) std::memcpy(to + i * bytes, from + i * place.bytes, bytes);
  }
  return scratch;
}

namespace {

template <class T>
void blend(void* to, const void* from, u32 lanes) {
  T* const target = static_cast<T*>(to);
  const T* const values = static_cast<const T*>(from);
  for (int i = 0; i < WARP; i++) target[i] = lanes >> i & 1 ? values[i] : target[i];
}

}  // namespace

void Machine::put(const Place& place, int warp, u32 lanes, const void* values, int bytes) {
  u8* const to = place.base + warp * place.stride;
  if (place.bytes == bytes) {
    switch (bytes) {
      case 1:
        return blend<u8>(to, values, lanes);
      case 2:
        return blend<u16>(to, values, lanes);
      case 4:
        return blend<u32>(to, values, lanes);
      default:
        return blend<u64>(to, values, lanes);
    }
  }
  Values wide;
  for (int i = 0; i < WARP; i++) {
    wide[i] = 0;
    std::memcpy(&wide[i], static_cast<const u8*>(values) + i * bytes, bytes);
  }
  write(place, warp, lanes, wide, bytes);
}

void Machine::read(const Place& place, int warp, Values& values) const {
  const u8* const from = place.base + warp * place.stride;
  switch (place.bytes) {
    case 1:
      for (int i = 0; i < WARP; i++) values[i] = from[i] ^ place.negated;
      break;
    case 2:
      for (int i = 0; i < WARP; i++) values[i] = reinterpret_cast<const u16*>(from)[i];
      break;
    case 4:
      for (int i = 0; i < WARP; i++) values[i] = reinterpret_cast<const u32*>(from)[i];
      break;
    default:
      std::memcpy(values, from, sizeof values);
  }
}

// `bytes` of each number are significant; they are extended to the width of the register.
void Machine::write(const Place& place, int warp, u32 lanes, const Values& values, int bytes) {
  u8* const to = place.base + warp * place.stride;
  const int shift = 64 - 8 * bytes;
  if (lanes == ~u32(0) && place.bytes == bytes && bytes >= 4) {
    for (int i = 0; i < WARP; i++) {
      if (bytes == 4) {
        reinterpret_cast<u32*>(to)[i] = u32(values[i]);
      } else {
        reinterpret_cast<u64*>(to)[i] = values[i];
      }
    }
    return;
  }
  for (; lanes; lanes &= lanes - 1) {
    const int i = __builtin_ctz(lanes);
    const u64 value = place.is_signed ? u64(s64(values[i] << shift) >> shift) : values[i] << shift >> shift;
    std::memcpy(to + i * place.bytes, &value, place.bytes);
  }
}

u64 Machine::read_one(const Place& place, int thread) const {
  u64 value = 0;
  std::memcpy(&value, place.base + thread / WARP * place.stride + thread % WARP * place.bytes, place.bytes);
  return value ^ place.negated;
}

Mask Machine::chosen(const Place& predicate, const Mask& among) const {
  check_written(predicate, among);
  Mask found;
  for (int w = 0; w < warps_; w++) {
    if (!among.of[w]) continue;
    const u8* const from = predicate.base + w * predicate.stride;
    u32 bits = 0;
    for (int i = 0; i < WARP; i += 8) {  // eight bytes of 0 or 1 into eight bits
      u64 eight;
      std::memcpy(&eight, from + i, 8);
      bits |= u32(eight * 0x0102040810204080 >> 56) << i;
    }
    found.of[w] = (predicate.negated ? ~bits : bits) & among.of[w];
  }
  return found;
}

// ---------------------------------------------------------------- running

void Machine::arrive(int pc, const Mask& threads) { ready_[pc] |= threads; }

// Run threads until they diverge, wait, end, or reach waiting threads.
void Machine::advance(int pc, Mask threads) {
  const int stop = ready_.empty() ? INT_MAX : ready_.begin()->first;
  Mask some;
  const Mask* active = &threads;
  while (pc < stop) {
    if (pc >= program_->number_of_steps) throw fault(FAULT, -1, "runs beyond its last instruction");
    const Step& step = program_->steps[pc];
    at_ = &step;
    if (step.guard != SAME) {
      program_->executed[step.instruction] += threads.warps();
      active = &threads;
      if (step.guard != ALWAYS) {
        some = chosen(places_[step.guard], threads);
        if (step.kind == BRANCH) {
          const Mask rest = threads.without(some);
          if (!some.any()) {
            pc = step.next;
          } else if (!rest.any()) {
            pc = step.target;
          } else {
            arrive(step.target, some);
            arrive(step.next, rest);
            return;
          }
          continue;
        }
        if (!some.any()) {
          pc = step.next;
          continue;
        }
        active = &some;
      }
    }
    if (step.kind == LANES) {
      each_lane(step, *active);
      pc++;
    } else if (step.kind == BRANCH) {
      pc = step.target;
    } else if (step.kind >= LOAD && step.kind <= HERE) {
      execute(step, *active);
      pc++;
    } else {
      return part(step, pc, threads, *active);
    }
  }
  arrive(pc, threads);
}

void Machine::each_lane(const Step& step, const Mask& threads) {
  const Operation& operation = operations()[step.operation];
  const Place* places[OPERANDS];
  for (int i = 0; i < operation.operands; i++) check_written(*(places[i] = &in(step, i)), threads);
  const bool keeps = wanted(step, 0);
  const Place nowhere{nullptr, 0, -1, 0, 0, 0};
  const Place& to = keeps ? out(step, 0) : nowhere;
  const int bytes = operation.types[0].bytes;
  alignas(64) u64 result[WARP], scratch[OPERANDS][WARP];
  const void* values[OPERANDS];
  for (int w = 0; w < warps_; w++) {
    const u32 lanes = threads.of[w];
    if (!lanes) continue;
    for (int i = 0; i < operation.operands; i++) {
      values[i] = fetch(*places[i], w, operation.types[i + 1].bytes, scratch[i]);
    }
    if (operation.divides) {
      for (u32 rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        u64 divisor = 0;
        const int size = operation.types[2].bytes;
        std::memcpy(&divisor, static_cast<const u8*>(values[1]) + lane * size, size);
        if (divisor == 0) throw fault(FAULT, w * WARP + lane, "divides by zero");
      }
    }
    // Registers of threads that have ended may hold any value.
    if (to.bytes == bytes && (alive_.of[w] & ~lanes) == 0) {
      operation.work(to.base + w * to.stride, values);
    } else {
      operation.work(result, values);
      if (keeps) put(to, w, lanes, result, bytes);
    }
  }
  if (to.tracked >= 0) written_[to.tracked] |= threads;
}

void Machine::execute(const Step& step, const Mask& threads) {
  switch (step.kind) {
    case LOAD:
      return load(step, threads);
    case STORE:
      return store(step, threads);
    case ATOMIC:
      return atomic(step, threads);
    case COPY:
      return copy(step, threads);
    case COMMIT:
      return copies_.commit(threads, warps_);
    case WAIT:
      return copies_.wait(shared_, threads, step.operation);
    case HERE: {  // a device may say that fewer are
      const Place& to = out(step, 0);
      for (int w = 0; w < warps_; w++) {
        Values values;
        std::fill(values, values + WARP, threads.of[w]);
        if (threads.of[w]) write(to, w, threads.of[w], values, 4);
      }
      return note_written(step, threads);
    }
    default:
      return;
  }
}

// Handle a step that may split the threads: those that do not take part continue at once.
void Machine::part(const Step& step, int pc, const Mask& threads, const Mask& active) {
  const Mask rest = threads.without(active);
  if (rest.any()) arrive(step.next, rest);
  switch (step.kind) {
    case END:
      alive_ = alive_.without(active);
      return;
    case TRAP:
      throw fault(TRAPPED, active.first(), "stops the kernel");
    case TABLE:
      return branch_by_table(step, active);
    case BARRIER:
      at_barrier_[pc] |= active;
      return;
    default:
      return meet_in_warp(step, pc, active);
  }
}

void Machine::branch_by_table(const Step& step, const Mask& threads) {
  check_written(in(step, 0), threads);
  each_thread(threads, warps_, [&](int thread) {
    const u64 choice = read_one(in(step, 0), thread);
    if (choice >= u64(step.outs)) throw fault(FAULT, thread, "a branch to no entry of its table");
    Mask one;
    one.of[thread / WARP] = u32(1) << thread % WARP;
    arrive(program_->lists[step.outs_at + choice], one);
  });
}

// Release each group once all threads of its mask have arrived or ended.
void Machine::meet_in_warp(const Step& step, int pc, Mask threads) {
  threads |= in_warp_[pc];
  in_warp_.erase(pc);
  const Place& masks = in(step, step.ins - 1);
  check_written(masks, threads);
  Mask complete;
  each_thread(threads, warps_, [&](int thread) {
    const u32 mask = u32(read_one(masks, thread)), own = u32(1) << thread % WARP;
    const int w = thread / WARP;
    if (!(mask & own)) throw fault(DIVERGENCE, thread, "a thread that is not in its own mask");
    if ((mask & alive_.of[w] & ~threads.of[w]) == 0) complete.of[w] |= own;
  });
  const Mask waiting = threads.without(complete);
  if (waiting.any()) in_warp_[pc] = waiting;
  if (!complete.any()) return;
  for (int i = 0; i + 1 < step.ins; i++) check_written(in(step, i), complete);
  for (int w = 0; w < warps_; w++) {
    for (u32 rest = complete.of[w]; rest;) {
      const u32 mask = u32(read_one(masks, w * WARP + __builtin_ctz(rest)));
      u32 group = 0;
      for (u32 bits = rest; bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        if (u32(read_one(masks, w * WARP + lane)) == mask) group |= u32(1) << lane;
      }
      rest &= ~group;
      together(step, w, group);
    }
  }
  note_written(step, complete);
  arrive(pc + 1, complete);
}

// No thread can run: release all threads that wait at a barrier, and return whether there were any.
bool Machine::release() {
  if (!in_warp_.empty()) {
    const auto& [pc, threads] = *in_warp_.begin();
    at_ = &program_->steps[pc];
    throw fault(DIVERGENCE, threads.first(), "waits for threads of its warp that do not come");
  }
  if (at_barrier_.empty()) return false;
  const auto& [last, latest] = *at_barrier_.rbegin();
  at_ = &program_->steps[last];
  if (at_barrier_.size() > 1) {
    throw fault(DIVERGENCE, latest.first(), "threads of one block wait at different barriers");
  }
  if (const int there = latest.count(); there < threads_) {
    throw fault(DIVERGENCE, latest.first(), "a barrier to which not all threads of the block come%s",
                there == alive_.count() ? ": some have ended" : "");
  }
  reduce_barrier(*at_, latest);
  shared_.meet();
  arrive(last + 1, latest);
  at_barrier_.clear();
  return true;
}

void Machine::reduce_barrier(const Step& step, const Mask& threads) {
  if (step.ins == 0) return;
  const int yes = chosen(in(step, 0), threads).count();
  const u64 results[] = {u64(yes == threads_), u64(yes > 0), u64(yes)};  // and, or, popc
  Values values;
  std::fill(values, values + WARP, results[step.operation]);
  if (!wanted(step, 0)) return;
  for (int w = 0; w < warps_; w++) write(out(step, 0), w, threads.of[w], values, step.bytes);
  note_written(step, threads);
}

}  // namespace ptx
