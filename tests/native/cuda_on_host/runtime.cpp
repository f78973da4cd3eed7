// The functions of csrc/cuda/runtime.cu for a module that runs on the host, and functions for tests.
#include "../../../csrc/ops.h"
#include "on_host.h"

namespace iet {

int device_count() { return 1; }
const char* device_error() { return ""; }

void* host_memory(int64_t bytes, const char** error) {
  *error = on_host::error;
  return std::calloc(1, static_cast<size_t>(bytes));
}

}  // namespace iet

// Let every later launch and copy fail with this message; null: none.
extern "C" void on_host_fail(const char* error) { on_host::error = error; }

extern "C" int on_host_launches() { return on_host::launches; }
