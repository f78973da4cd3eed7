// Functions for Python: list the operations, and run a launch.
#include <algorithm>
#include <string>

#include "machine.h"

namespace ptx {
namespace {

std::vector<Operation>& table() {
  static std::vector<Operation> made;
  return made;
}

}  // namespace

const std::vector<Operation>& operations() { return table(); }

void add(const char* stem, const char* rest, Work work, const Operation::Type* types, int operands,
         bool divides) {
  Operation made{{}, work, operands, divides, {}};
  std::snprintf(made.name, sizeof made.name, "%s%s", stem, rest);
  std::copy(types, types + operands + 1, made.types);
  table().push_back(made);
}

}  // namespace ptx

extern "C" {

// A line for each operation, in order: its name, then kind and bits of its result and of each operand.
const char* iet_ptx_operations() {
  using namespace ptx;
  static const std::string told = [] {
    define_integers(), define_floats(), define_conversions();
    std::string lines;
    for (const Operation& each : operations()) {
      lines += each.name;
      for (int i = 0; i <= each.operands; i++) {
        const auto& [kind, bytes] = each.types[i];
        lines += ' ', lines += kind, lines += kind == 'p' ? "1" : std::to_string(8 * bytes);
      }
      lines += '\n';
    }
    return lines;
  }();
  return told.c_str();
}

// Run all blocks and return true, or fill `failure` and return false.
int iet_ptx_run(const ptx::Program* program, const ptx::Launch* launch, ptx::Failure* failure) {
  using namespace ptx;
  static thread_local Machine machine;
  s64 block = -1;
  try {
    machine.begin_launch(*program, *launch);
    const s64 blocks = s64(launch->grid[0]) * launch->grid[1] * launch->grid[2];
    for (block = 0; block < blocks; block++) machine.run(block);
    return 1;
  } catch (const Fault& fault) {
    *failure = {fault.kind, machine.instruction(), block, fault.thread, fault.address,
                fault.size, fault.buffer,          {}};
    std::memcpy(failure->message, fault.message, sizeof fault.message);
    return 0;
  }
}

}  // extern "C"
