// Partition of work on [tokens, keys] for threads.
#pragma once

#include "threads.h"

namespace iet {

// A part of the work on [tokens, keys].
struct Tile {
  int64_t token_begin, token_end, key_begin, key_end;
};

namespace {

// Minimum work for a thread: fewer scores or draws take less than about 100 microseconds.
constexpr int64_t kGrain = 1 << 15;
constexpr int64_t kTileTokens = 1024, kTileKeys = 128;

template <class Function>
void over_tiles(int64_t tokens, int64_t keys, int num_threads, Function&& function) {
  const int64_t rows = (tokens + kTileTokens - 1) / kTileTokens, columns = (keys + kTileKeys - 1) / kTileKeys;
  const int64_t size = kTileTokens * (keys < kTileKeys ? keys : kTileKeys);
  const int64_t grain = size > 0 && size < kGrain ? kGrain / size : 1;
  in_parallel(rows * columns, grain, num_threads, [&](int, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t token = tile / columns * kTileTokens, key = tile % columns * kTileKeys;
      function(Tile{token, token + kTileTokens < tokens ? token + kTileTokens : tokens, key,
                    key + kTileKeys < keys ? key + kTileKeys : keys});
    }
  });
}

}  // namespace
}  // namespace iet
