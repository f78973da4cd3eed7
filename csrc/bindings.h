// Shared by the Python modules. Addresses come as integers; Python keeps the arrays alive and checks their
// shape.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <tuple>

#include "keyed.h"
#include "sequences.h"

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

using Address = std::tuple<uintptr_t, int64_t, bool>;  // of integers: data, stride, whether they are int64

inline Integers integers(const Address& address) {
  return {at<void>(std::get<0>(address)), std::get<1>(address), std::get<2>(address)};
}

// RowsArgs as Python gives them, in the same order: see iet/native/rows.py.
using PyRows = std::tuple<int64_t, Address, int64_t, Address, int64_t, int64_t, Address, Address, Address,
                          Address, uintptr_t, int64_t, float, uintptr_t, uintptr_t, Address, int64_t, uint64_t>;

inline RowsArgs rows_args(const PyRows& rows) {
  const auto& [count, sequences, n_sequences, tokens, token_stride, columns, lengths, num_drafts, drafts, slots,
               temperatures, temperature_stride, kappa, tables, request_keys, prompt_lengths, free_first,
               free_rate] = rows;
  return {count,
          integers(sequences),
          n_sequences,
          integers(tokens),
          token_stride,
          columns,
          integers(lengths),
          integers(num_drafts),
          integers(drafts),
          integers(slots),
          at<float>(temperatures),
          temperature_stride,
          kappa,
          at<uint64_t*>(tables),
          at<int64_t>(request_keys),
          integers(prompt_lengths),
          {free_first, free_rate}};
}

}  // namespace
}  // namespace iet
