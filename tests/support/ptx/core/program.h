// A decoded kernel, and the result of a launch. program.py has the same layouts.
#pragma once
#include "lanes.h"

namespace ptx {

inline constexpr int WARPS = 32;  // of a block

// Location of a value: a register of all lanes of a block, or a constant.
struct Operand {
  s64 offset;    // of registers: the bytes before it for one warp; of constants: their number
  s32 tracked;   // number of the mask of threads that wrote it; -1: the decoder has checked its writes
  u8 bytes;      // of a lane
  u8 constant;   // the same in every lane
  u8 negated;    // a predicate
  u8 is_signed;  // narrower values are extended with their sign
};

enum Kind : s32 {
  LANES,  // an operation of each lane for itself
  BRANCH,
  TABLE,
  END,
  TRAP,
  BARRIER,
  LOAD,
  STORE,
  ATOMIC,
  COPY,
  COMMIT,
  WAIT,
  NOTHING,
  HERE,  // activemask
  // steps at which threads of a warp wait for each other, with their mask as the last operand
  SHUFFLE,
  VOTE,
  REDUCE,
  MATCH,
  MEET,
};

enum Space : s32 { GENERIC, GLOBAL, SHARED, LOCAL, PARAMETERS, CONSTANT };

// An instruction is one or several steps; all but the first have guard SAME.
inline constexpr s32 ALWAYS = -1, SAME = -2, NOWHERE = -1;
struct Step {
  s32 kind;
  s32 operation;                   // LANES: its number; other kinds: the form
  s32 instruction;                 // its number
  s32 next;                        // the first step of the instruction after it
  s32 guard;                       // an operand, ALWAYS or SAME
  s32 outs_at, outs, ins_at, ins;  // in the list of operands (targets of branches: steps); NOWHERE: not wanted
  s32 space, bytes, is_signed, constant;
  s32 target;  // of BRANCH
  s64 offset;  // added to the first operand of an address
};

struct Constant {
  u64 value;
  s64 bytes;
};

struct Special {
  s32 which;  // see Machine::fill
  s32 unused;
  s64 offset;
};

struct Program {
  const Step* steps;
  const Operand* operands;
  const s32* lists;
  const Constant* constants;
  const Special* specials;
  s64 number_of_steps, number_of_operands, number_of_constants, number_of_specials;
  s64 register_bytes;  // of one warp
  s64 tracked, granule, local_bytes, parameter_bytes;
  s64* executed;  // by instruction: how often a warp ran it
};

struct Buffer {
  u64 begin, end;
  u8 written, assumed_constant;
  u8 unused[6];
};

struct Launch {
  s32 grid[3], block[3];
  s64 shared_bytes, number_of_buffers;
  Buffer* buffers;
  const u8* parameters;
};

// The classes of faults.py, in its order.
enum Class : s32 { FAULT, UNKNOWN, OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, RACE, DIVERGENCE, TRAPPED };

struct Failure {
  s32 kind, instruction;
  s64 block, thread;  // -1: not known
  u64 address;
  s64 size;    // of an access to no buffer, else 0
  s64 buffer;  // the number of the one that the message is about, or -1
  char message[160];
};

// The internal exception that becomes a Failure.
struct Fault {
  Class kind;
  int thread;
  char message[160];
  u64 address = 0;
  s64 size = 0, buffer = -1;
};

template <class... T>
Fault fault(Class kind, int thread, const char* format, T... values) {
  Fault made{kind, thread, {}};
  std::snprintf(made.message, sizeof made.message, format, values...);
  return made;
}

}  // namespace ptx
