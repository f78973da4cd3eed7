// The sequences of an engine's requests, and the rows of a step at positions of them: contexts, how often each
// occurred before, and free tokens. One definition for host and device.
#pragma once

#include "keyed.h"

namespace iet {

struct Integers {  // int32 or int64, strided
  const void* data;
  int64_t stride;  // in elements
  int32_t wide;    // 1: int64
};

// Which positions of an answer carry no mark: iet/generation/free.py.
struct FreeRule {
  int64_t first;
  uint64_t rate;  // of 2^32
};

// Rows of a step, each at a position of a sequence of tokens. A row's context is the n-1 ids before it:
// committed tokens, then the drafts before the row. Without `sequences`, row i continues sequence i.
struct RowsArgs {
  int64_t rows;
  Integers sequences;  // row -> sequence, below 0: padding; null: row i belongs to sequence i
  int64_t n_sequences;
  Integers tokens;       // [n_sequences, columns]; `stride` is that of a sequence
  int64_t token_stride;  // of an element
  int64_t columns;
  Integers lengths;     // [n_sequences], committed tokens; null: all columns are
  Integers num_drafts;  // row -> number of drafts before it; null: 0
  Integers drafts;      // [rows], the inputs of rows: the drafts before row i are those of rows i-place+1 to i
  Integers slots;       // [n_sequences] -> key, -1: unmarked
  const float* temperatures;  // [n_sequences]; null: 1
  int64_t temperature_stride;
  float kappa;
  // [n_sequences] -> table of counts, null where contexts are not counted; null: nowhere. The rows of a
  // sequence are adjacent, in the order of their drafts.
  uint64_t* const* tables;
  const int64_t* request_keys;  // [n_sequences], of free tokens, whose rows are not marked; null: none are free
  Integers prompt_lengths;      // [n_sequences], where answers begin
  FreeRule free;
};

namespace {

IET_HD int64_t element(const Integers& integers, int64_t i) {
  const int64_t at = i * integers.stride;
  return integers.wide ? static_cast<const int64_t*>(integers.data)[at]
                       : static_cast<const int32_t*>(integers.data)[at];
}

// ---------------------------------------------------------------- positions

// The position of a row in its sequence.
struct Position {
  int64_t row, sequence, committed, drafts;

  IET_HD int64_t end() const { return committed + drafts; }
};

IET_HD Position position_of(const RowsArgs& args, int64_t row) {
  Position at{row, args.sequences.data == nullptr ? row : element(args.sequences, row), args.columns,
              args.num_drafts.data == nullptr ? 0 : element(args.num_drafts, row)};
  if (args.lengths.data != nullptr && at.sequence >= 0 && at.sequence < args.n_sequences) {
    const int64_t length = element(args.lengths, at.sequence);
    at.committed = length < args.columns ? length : args.columns;
  }
  return at;
}

// The id at a position of the row's sequence: committed, or a draft before the row.
IET_HD int64_t id_at(const RowsArgs& args, const Position& at, int64_t position) {
  if (position >= at.committed) {
    const int64_t input = at.row - at.drafts + position - at.committed + 1;
    return element(args.drafts, input < 0 ? 0 : input);
  }
  const Integers& tokens = args.tokens;
  return element({tokens.data, 1, tokens.wide}, at.sequence * tokens.stride + position * args.token_stride);
}

// ---------------------------------------------------------------- how often each context occurred

// A hash table for each sequence grows with it, so that a step costs the same at any length.
//
// Words of a table: [0] the number of starts whose contexts are counted, [1] the number of entries less 1, a
// power of two, [2] where hashes start, a random number, then the entries: 40 bits of the context's hash, and
// 24 bits of its count; 0 if there is none. A wrong count needs two contexts with equal 40 bits and
// neighbouring entries: below 1e-6 in 128k tokens.
constexpr uint64_t kCountMask = 0xFFFFFFu;
constexpr int64_t kTableHeader = 3;  // words

struct ContextHash {
  uint64_t bits;

  IET_HD void absorb(uint32_t id) {
    bits = (bits ^ id) * 0x9E3779B97F4A7C15ull;
    bits ^= bits >> 29;
  }
  IET_HD uint64_t finish() const {
    const uint64_t mixed = bits * 0xBF58476D1CE4E5B9ull;
    return mixed ^ mixed >> 32;
  }
};

IET_HD bool has_hash(uint64_t entry, uint64_t hash) { return ((entry ^ hash) & ~kCountMask) == 0; }

// Count the contexts of committed tokens up to the last one, which is that of the next row. Return how many are
// counted; some stay if the table is full. `threads` gives the number of this thread and of all, waits for all,
// and has atomic operations.
template <class Threads>
IET_HD int64_t count_contexts(const RowsArgs& args, const Position& at, int64_t context_len, uint64_t* table,
                              const Threads& threads) {
  const uint64_t mask = table[1];
  const int64_t limit = static_cast<int64_t>((mask + 1) / 4 * 3);  // so that every search ends
  int64_t counted = static_cast<int64_t>(table[0]), end = at.committed - context_len;
  end = end < 0 ? 0 : end < limit ? end : limit;
  threads.wait();       // all have read the header
  if (counted > end) {  // tokens were taken back
    for (uint64_t i = threads.number; i <= mask; i += Threads::kCount) table[kTableHeader + i] = 0;
    counted = 0;
    threads.wait();
  }
  for (int64_t start = counted + threads.number; start < end; start += Threads::kCount) {
    ContextHash context{table[2]};
    for (int64_t i = 0; i < context_len; ++i) context.absorb(static_cast<uint32_t>(id_at(args, at, start + i)));
    const uint64_t hash = context.finish();
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
      uint64_t* const word = table + kTableHeader + i;
      const uint64_t found = threads.compare_and_swap(word, 0, (hash & ~kCountMask) | 1);
      if (found == 0) break;
      if (!has_hash(found, hash)) continue;
      threads.add(word, 1);
      break;
    }
  }
  threads.wait();
  if (threads.number == 0) table[0] = static_cast<uint64_t>(end);
  return end;
}

// The count of a context in a table.
IET_HD uint32_t count_in(const uint64_t* table, const uint32_t* context, int64_t context_len) {
  ContextHash of_context{table[2]};
  for (int64_t i = 0; i < context_len; ++i) of_context.absorb(context[i]);
  const uint64_t hash = of_context.finish(), mask = table[1];
  for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
    const uint64_t entry = table[kTableHeader + i];
    if (entry == 0) return 0;
    if (has_hash(entry, hash)) return static_cast<uint32_t>(entry & kCountMask);
  }
}

IET_HD bool occurs_at(const RowsArgs& args, const Position& at, int64_t start, const uint32_t* context,
                      int64_t context_len) {
  for (int64_t i = 0; i < context_len; ++i)
    if (id_at(args, at, start + i) != context[i]) return false;
  return true;
}

// ---------------------------------------------------------------- free tokens

IET_HD uint32_t mix_free(uint32_t x) {
  x = (x ^ x >> 16) * 0x85EBCA6Bu;
  x = (x ^ x >> 13) * 0xC2B2AE35u;
  return x ^ x >> 16;
}

IET_HD bool is_free(const RowsArgs& args, const Position& at) {
  if (args.request_keys == nullptr) return false;
  const int64_t position = at.end() - element(args.prompt_lengths, at.sequence);
  const uint64_t key = static_cast<uint64_t>(args.request_keys[at.sequence]);
  uint32_t mixed = mix_free(static_cast<uint32_t>(position) * 0x9E3779B1u + static_cast<uint32_t>(key));
  mixed = mix_free(mixed ^ static_cast<uint32_t>(key >> 32));
  return position < args.free.first || mixed < args.free.rate;
}

}  // namespace
}  // namespace iet
