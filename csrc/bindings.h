// Shared by the Python modules. Addresses come as integers; Python keeps the arrays alive and checks their
// shape.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "keyed.h"

namespace iet {
namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

inline void check(bool accepted, const char* message) {
  if (!accepted) throw pybind11::value_error(message);
}

inline void check_vocab(uint32_t vocab) { check(vocab >= 1 && vocab <= 1u << 24, "vocab_size out of range"); }

inline void check_params(uint32_t vocab, uint32_t n_gram, Family family) {
  check_vocab(vocab);
  check(n_gram >= 2 && n_gram <= 16, "n_gram out of range");
  bool is_known = false;
  for (Family known : kFamilies) is_known |= family == known;
  check(is_known, "unknown family code; after a change below csrc/, build the module again");
}

}  // namespace
}  // namespace iet
