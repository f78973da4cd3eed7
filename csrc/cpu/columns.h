// Scores of a block of tokens under several keys, gathered to write whole cache lines of [tokens, keys]. A
// single column would touch one line for each token; with 64 keys these lines evict each other.
#pragma once

#include <cstdint>

namespace iet {
namespace {

constexpr int kColumnTokens = 256;
constexpr int kColumns = 16;
using ScoreColumns =
    float[kColumns][kColumnTokens + 16];  // not a power of two apart: columns would share cache sets

// rows[i * stride + c] = columns[c][i]
void write_rows(const ScoreColumns& columns, int count, int width, int64_t stride, float* rows) {
  if (width == kColumns) {
    for (int i = 0; i < count; ++i)
      for (int c = 0; c < kColumns; ++c) rows[i * stride + c] = columns[c][i];
  } else {
    for (int c = 0; c < width; ++c)
      for (int i = 0; i < count; ++i) rows[i * stride + c] = columns[c][i];
  }
}

}  // namespace
}  // namespace iet
