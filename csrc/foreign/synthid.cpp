// The g-values of SynthID in transformers. The equations are in docs/internals/foreign_marks.md, readable twins
// in benchmarks/security/foreign_marks.py. No standard library here, as in embed.cpp.
#include "../cpu/columns.h"
#include "schemes.h"

namespace iet {
namespace {

// Depth d of an n-gram with hash h reads g[(h + k_d) mod size], a rotation of one table. So the sum over depth
// depends on h alone, and is tabulated once for a key. The entries of all keys for one h are adjacent, so a
// token's scores come from contiguous memory.
template <class Entry>
void make_tables(const SynthidArgs& args, Entry* tables, int64_t begin, int64_t end) {
  const uint32_t size = 1u << args.bits;
  for (int64_t key = begin; key < end; key += kColumns) {
    const int columns = static_cast<int>(end - key < kColumns ? end - key : kColumns);
    for (uint32_t first = 0; first < size; first += kColumnTokens) {
      const int count = static_cast<int>(size - first < kColumnTokens ? size - first : kColumnTokens);
      Entry sums[kColumns][kColumnTokens] = {};
      for (int c = 0; c < columns; ++c) {
        const uint32_t* keys = args.keys + (key + c) * args.depth;
        for (uint32_t d = 0; d < args.depth; ++d) {
          const Entry weight = static_cast<Entry>(args.weights[d]);
          const uint8_t* g = args.g_values + first + (keys[d] & (size - 1));  // all bits set, or none
          for (int i = 0; i < count; ++i) {
            const Entry mask = static_cast<Entry>(static_cast<int8_t>(g[i]));
            sums[c][i] = static_cast<Entry>(sums[c][i] + (weight & mask));
          }
        }
      }
      for (int i = 0; i < count; ++i)
        for (int c = 0; c < columns; ++c) tables[(first + i) * args.stride + key + c] = sums[c][i];
    }
  }
}

template <class Entry>
void read_tables(const SynthidArgs& args, const Entry* tables, const Tile& tile) {
  const float scale = args.scale, offset = args.offset;
  const uint32_t mask = (1u << args.bits) - 1;
  for (int64_t t = tile.token_begin; t < tile.token_end; ++t) {
    float* scores = args.scores + t * args.n_keys;
    if (args.scored[t]) {
      uint32_t hash = 1;  // the low half is sufficient
      for (int64_t j = t + 1 - args.n_gram; j <= t; ++j) hash = (hash + args.words[j]) * 0x4C957F2Du + 1;
      const Entry* sums = tables + (hash & mask) * args.stride;
      for (int64_t k = tile.key_begin; k < tile.key_end; ++k)
        scores[k] = fadd(fmul(static_cast<float>(sums[k]), scale), offset);
    } else {
      for (int64_t k = tile.key_begin; k < tile.key_end; ++k) scores[k] = 0.0f;
    }
  }
}

}  // namespace

namespace IET_ISA {

void synthid_tables(const SynthidArgs& args, int64_t begin, int64_t end) {
  if (args.wide) make_tables(args, static_cast<uint16_t*>(args.tables), begin, end);
  else make_tables(args, static_cast<uint8_t*>(args.tables), begin, end);
}

void synthid_tile(const SynthidArgs& args, const Tile& tile) {
  if (args.wide) read_tables(args, static_cast<const uint16_t*>(args.tables), tile);
  else read_tables(args, static_cast<const uint8_t*>(args.tables), tile);
}

}  // namespace IET_ISA
}  // namespace iet
