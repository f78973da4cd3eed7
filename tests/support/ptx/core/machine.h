// Threads: their registers, their program counters, and their barriers.
//
// All threads of a block run at once, one instruction for all threads that have reached it. Those at the
// lowest step run next, so that they meet again where paths join. The blocks of a launch run one after
// another.
#pragma once
#include <map>
#include <vector>

#include "memory.h"

namespace ptx {

// A set of threads of a block, one bit per thread.
struct Mask {
  u32 of[WARPS] = {};

  bool any() const {
    u32 all = 0;
    for (const u32 bits : of) all |= bits;
    return all != 0;
  }
  int count() const {
    int total = 0;
    for (const u32 bits : of) total += __builtin_popcount(bits);
    return total;
  }
  int warps() const {
    int total = 0;
    for (const u32 bits : of) total += bits != 0;
    return total;
  }
  int first() const {
    for (int w = 0; w < WARPS; w++) {
      if (of[w]) return w * WARP + __builtin_ctz(of[w]);
    }
    return -1;
  }
  bool operator==(const Mask& other) const { return std::memcmp(of, other.of, sizeof of) == 0; }
  Mask& operator|=(const Mask& other) {
    for (int w = 0; w < WARPS; w++) of[w] |= other.of[w];
    return *this;
  }
  Mask without(const Mask& other) const {
    Mask rest;
    for (int w = 0; w < WARPS; w++) rest.of[w] = of[w] & ~other.of[w];
    return rest;
  }
};

// Call `work` with each thread of a mask, in the order of their numbers.
template <class F>
void each_thread(const Mask& mask, int warps, F work) {
  for (int w = 0; w < warps; w++) {
    for (u32 bits = mask.of[w]; bits; bits &= bits - 1) work(w * WARP + __builtin_ctz(bits));
  }
}

// Pending copies to shared memory.
class Copies {
 public:
  struct Copy {
    int thread, group, words;  // group -1: of none yet
    u64 address;
    u32 data[4];
  };
  void begin_block(int threads);
  // No thread may read the destination before the copy arrives.
  void start(SharedMemory& shared, const Copy& copy);
  // Put the copies that each thread started since its last group into a new group.
  void commit(const Mask& threads, int warps);
  // Complete all copies except the `pending` latest groups (-1: all copies, including those without a group).
  void wait(SharedMemory& shared, const Mask& threads, int pending);

 private:
  std::vector<int> committed_;  // groups of each thread
  std::vector<Copy> pending_;
};

class Machine {
 public:
  void begin_launch(const Program& program, const Launch& launch);
  void run(s64 block);  // to the end of all its threads
  int instruction() const { return at_ ? at_->instruction : -1; }

 private:
  // An operand during a launch: address of lane 0 of warp 0, and distance to the next warp.
  struct Place {
    u8* base;
    s32 stride, tracked;
    u8 bytes, negated, is_signed;
  };
  using Values = u64[WARP];

  void fill(const Special& special, s64 block);
  static bool of_block(const Special& special) { return special.which / 3 == 1; }
  u32 special(int which, int thread, s64 block) const;

  // Operands: of a step's, its i-th.
  const Place& in(const Step& step, int i) const { return places_[program_->lists[step.ins_at + i]]; }
  bool wanted(const Step& step, int i) const { return program_->lists[step.outs_at + i] != NOWHERE; }
  const Place& out(const Step& step, int i) const { return places_[program_->lists[step.outs_at + i]]; }
  void check_written(const Place& place, const Mask& threads) const {
    if (place.tracked >= 0) check_tracked(written_[place.tracked], threads);
  }
  static void check_tracked(const Mask& written, const Mask& threads);
  void note_written(const Step& step, const Mask& threads);
  const void* fetch(const Place& place, int warp, int bytes, void* scratch) const;
  void put(const Place& place, int warp, u32 lanes, const void* values, int bytes);
  // The same as numbers of 64 bits.
  void read(const Place& place, int warp, Values& values) const;
  void write(const Place& place, int warp, u32 lanes, const Values& values, int bytes);
  u64 read_one(const Place& place, int thread) const;
  Mask chosen(const Place& predicate, const Mask& among) const;

  // Running.
  void arrive(int pc, const Mask& threads);
  void advance(int pc, Mask threads);
  void part(const Step& step, int pc, const Mask& threads, const Mask& active);
  void meet_in_warp(const Step& step, int pc, Mask threads);
  bool release();
  void reduce_barrier(const Step& step, const Mask& threads);
  void execute(const Step& step, const Mask& threads);
  void each_lane(const Step& step, const Mask& threads);
  void branch_by_table(const Step& step, const Mask& threads);

  // Memory.
  static Space space_of(const Step& step, u64* address);
  u8* readable(const Step& step, Space space, u64 address, int size, int thread);
  void load(const Step& step, const Mask& threads);
  void load_parameter(const Step& step, const Mask& threads);
  void store(const Step& step, const Mask& threads);
  void atomic(const Step& step, const Mask& threads);
  void copy(const Step& step, const Mask& threads);

  // What the threads of a warp do together: `lanes` are those of one mask, all of them there.
  void together(const Step& step, int warp, u32 lanes);
  void shuffle(const Step& step, int warp, u32 lanes);
  void vote(const Step& step, int warp, u32 lanes);
  void reduce(const Step& step, int warp, u32 lanes);
  void match(const Step& step, int warp, u32 lanes);

  const Program* program_ = nullptr;
  const Launch* launch_ = nullptr;
  int threads_ = 0, warps_ = 0;
  const Step* at_ = nullptr;
  std::vector<u8> store_;  // registers, then constants
  u8* begin_ = nullptr;    // of it, aligned
  std::vector<Place> places_;
  std::vector<Mask> written_;  // of the registers that are tracked
  Mask everybody_, alive_;
  std::map<int, Mask> ready_, at_barrier_, in_warp_;  // by step
  std::vector<GlobalMemory> global_;                  // one
  SharedMemory shared_;
  LocalMemory local_;
  Copies copies_;
};

const std::vector<Operation>& operations();

}  // namespace ptx
