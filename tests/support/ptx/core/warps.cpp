// Instructions of the threads of a warp together: votes, exchanges, reductions.
#include "machine.h"

namespace ptx {

void Machine::together(const Step& step, int warp, u32 lanes) {
  switch (step.kind) {
    case SHUFFLE:
      return shuffle(step, warp, lanes);
    case VOTE:
      return vote(step, warp, lanes);
    case REDUCE:
      return reduce(step, warp, lanes);
    case MATCH:
      return match(step, warp, lanes);
    default:  // the warp's writes to shared memory are visible to its threads
      if (lanes == alive_.of[warp]) shared_.meet_warp(warp);
  }
}

void Machine::shuffle(const Step& step, int warp, u32 lanes) {
  enum { UP, DOWN, BUTTERFLY, INDEX };
  Values mine, by, limits, got, inside;
  read(in(step, 0), warp, mine), read(in(step, 1), warp, by), read(in(step, 2), warp, limits);
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest), offset = by[lane] & 31;
    const int clamp = limits[lane] & 31, segment = limits[lane] >> 8 & 31;
    const int last = (lane & segment) | (clamp & ~segment);
    const int wanted_lanes[] = {lane - offset, lane + offset, lane ^ offset,
                                (lane & segment) | (offset & ~segment)};
    const int from = wanted_lanes[step.operation];
    inside[lane] = step.operation == UP ? from >= last : from <= last;
    const int taken = inside[lane] ? from : lane;
    if (!(lanes >> taken & 1))
      throw fault(DIVERGENCE, warp * WARP + lane, "reads from a lane that takes no part");
    got[lane] = mine[taken];
  }
  if (wanted(step, 0)) write(out(step, 0), warp, lanes, got, 4);
  if (step.outs > 1 && wanted(step, 1)) write(out(step, 1), warp, lanes, inside, 1);
}

namespace {

template <class Values>
u32 lanes_with(const Values& values, u64 value, u32 lanes) {
  u32 found = 0;
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (values[lane] == value) found |= u32(1) << lane;
  }
  return found;
}

}  // namespace

void Machine::vote(const Step& step, int warp, u32 lanes) {
  Values said;
  read(in(step, 0), warp, said);
  const u32 yes = lanes_with(said, 1, lanes);
  const u64 results[] = {yes == lanes, yes != 0, yes == lanes || yes == 0, yes};  // all, any, uni, ballot
  for (u64& each : said) each = results[step.operation];
  if (wanted(step, 0)) write(out(step, 0), warp, lanes, said, step.bytes);
}

void Machine::reduce(const Step& step, int warp, u32 lanes) {
  enum { ADD, MIN, MAX, AND, OR, XOR };
  Values values;
  read(in(step, 0), warp, values);
  u32 total = u32(values[__builtin_ctz(lanes)]);
  for (u32 rest = lanes & (lanes - 1); rest; rest &= rest - 1) {
    const u32 value = u32(values[__builtin_ctz(rest)]);
    const bool less = step.is_signed ? s32(value) < s32(total) : value < total;
    switch (step.operation) {
      case ADD:
        total += value;
        break;
      case MIN:
        total = less ? value : total;
        break;
      case MAX:
        total = less ? total : value;
        break;
      case AND:
        total &= value;
        break;
      case OR:
        total |= value;
        break;
      default:
        total ^= value;
    }
  }
  for (u64& each : values) each = total;
  if (wanted(step, 0)) write(out(step, 0), warp, lanes, values, 4);
}

void Machine::match(const Step& step, int warp, u32 lanes) {
  Values values, found;
  read(in(step, 0), warp, values);
  for (u32 rest = lanes; rest; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    found[lane] = lanes_with(values, values[lane], lanes);
  }
  if (wanted(step, 0)) write(out(step, 0), warp, lanes, found, 4);
}

}  // namespace ptx
