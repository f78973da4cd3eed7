// score_tokens and score_spans on CUDA: x_j(a) = phi(P(k_pi^(j), y_j)).
//
// A block scores a tile of tokens under up to kThreads keys. Values that do not depend on the key are prepared
// once in shared memory. A thread loads the sub-key of one key and scores tokens of the tile under it. Sums
// over spans are sums of integers, so threads may add to them in any order; single scores are not stored.
#include "../ops.h"
#include "device.h"
#include "registers.h"

namespace iet {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 64;
constexpr int kMaxContext = 15;
constexpr float kUnits = 0x1p22f;  // of a score, where scores are summed

struct ScoreLaunch {
  CudaKernelParams params;
  LaneGrid grid;
  Integers token_ids;
  const int32_t* counts;  // [tokens]; null: 0 everywhere
  int64_t tokens;
  uint32_t columns_log2;  // of a block
  float* scores;
  const int64_t* boundaries;  // from here on: sums over spans
  int64_t spans;
  const uint8_t* counted;
  uint64_t* sums;  // [spans, n_keys], two's complement
};

// Index of the span that contains token j, or -1.
IET_HD int64_t span_of(const ScoreLaunch& launch, int64_t j) {
  int64_t low = 0, high = launch.spans + 1;  // the first boundary above j
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (launch.boundaries[middle] <= j) low = middle + 1;
    else high = middle;
  }
  return low > launch.spans ? -1 : low - 1;
}

struct Tile {
  uint32_t ids[kTile + kMaxContext];  // from n-1 tokens before the tile on
  uint32_t counts[kTile];
  bool scored[kTile];
};

template <class Id>
IET_HD void prepare(const ScoreLaunch& launch, int64_t first, Tile& tile) {
  const CudaKernelParams& params = launch.params;
  const Id* ids = static_cast<const Id*>(launch.token_ids.data);
  const int64_t context_len = params.n_gram - 1;
  for (int i = threadIdx.x; i < kTile + context_len; i += kThreads) {
    const int64_t j = first - context_len + i;
    tile.ids[i] = j >= 0 && j < launch.tokens ? static_cast<uint32_t>(ids[j]) : 0;
  }
  for (int i = threadIdx.x; i < kTile; i += kThreads) {
    const bool counts = launch.counts != nullptr && first + i < launch.tokens;
    tile.counts[i] = counts ? static_cast<uint32_t>(launch.counts[first + i]) : 0;
    tile.scored[i] = first + i < launch.tokens &&
                     (launch.counted == nullptr || launch.counted[first + i] != 0) &&
                     is_scored(ids, first + i, params.n_gram, params.vocab, params.unmarked_bits);
  }
}

template <Family kFamily>
IET_HD float score_one(const ScoreLaunch& launch, const Tile& tile, int i, const uint64_t (&subkey)[2],
                       uint32_t step) {
  const uint32_t context_len = launch.params.n_gram - 1, id = tile.ids[i + context_len];
  const uint64_t seed = context_seed(subkey, tile.ids + i, context_len, tile.counts[i]);
  if constexpr (kFamily == Family::gumbel) {
    return score(gumbel_score(lane_uniform(seed, id)));
  } else {
    const uint32_t left = grid_row(id, launch.grid), right = id - left * launch.grid.b;
    const LaneKeys keys{RoundKeys(seed)};
    uint32_t rank[1];
    permute_lanes<true>(left, add_bmix(right, left, keys.k1, launch.grid.b), launch.grid, keys, rank);
    return score(phi_fourier(rank[0], step));
  }
}

// At least six blocks per multiprocessor here, and four below: for eight the compiler spills registers, on
// sm_90 here and on sm_80 below.
template <Family kFamily>
__global__ void __launch_bounds__(kThreads, 6) score_kernel(const ScoreLaunch launch) {
  __shared__ Tile tile;
  const CudaKernelParams& params = launch.params;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  if (launch.token_ids.wide) prepare<int64_t>(launch, first, tile);
  else prepare<int32_t>(launch, first, tile);
  __syncthreads();

  const uint32_t columns = 1u << launch.columns_log2;
  const int64_t key = static_cast<int64_t>(blockIdx.y) * columns + (threadIdx.x & (columns - 1));
  if (key >= params.n_keys) return;
  const uint64_t subkey[2] = {params.subkeys[2 * key], params.subkeys[2 * key + 1]};
  const uint32_t step = params.steps[key];
  // Neighbouring threads write neighbouring scores, even with few keys.
  for (int i = threadIdx.x >> launch.columns_log2; i < kTile; i += kThreads >> launch.columns_log2) {
    if (first + i >= launch.tokens) break;
    launch.scores[(first + i) * params.n_keys + key] =
        tile.scored[i] ? score_one<kFamily>(launch, tile, i, subkey, step) : 0.0f;
  }
}

template <Family kFamily>
__global__ void __launch_bounds__(kThreads, 4) score_spans_kernel(const ScoreLaunch launch) {
  __shared__ Tile tile;
  __shared__ int64_t ends[2];  // spans of the tile's first and last token
  __shared__ int64_t partial[kThreads];
  const CudaKernelParams& params = launch.params;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t last = first + kTile < launch.tokens ? first + kTile - 1 : launch.tokens - 1;
  if (launch.token_ids.wide) prepare<int64_t>(launch, first, tile);
  else prepare<int32_t>(launch, first, tile);
  if (threadIdx.x < 2) ends[threadIdx.x] = span_of(launch, threadIdx.x == 0 ? first : last);
  __syncthreads();

  const uint32_t columns = 1u << launch.columns_log2, lane = threadIdx.x >> launch.columns_log2;
  const uint32_t lanes = kThreads >> launch.columns_log2;  // threads of a key, each with a run of tokens
  const int64_t key = static_cast<int64_t>(blockIdx.y) * columns + (threadIdx.x & (columns - 1));
  const bool outside = last < launch.boundaries[0] || first >= launch.boundaries[launch.spans];
  if (outside) return;
  // If the tile is within one span, it makes one addition per key. (-1 at both ends: spans may lie between
  // them.)
  const bool in_one_span = ends[0] == ends[1] && ends[0] >= 0;
  int64_t sum = 0;
  if (key < params.n_keys) {
    const uint64_t subkey[2] = {params.subkeys[2 * key], params.subkeys[2 * key + 1]};
    const uint32_t step = params.steps[key];
    const int run = kTile / lanes, begin = lane * run;
    int64_t span = in_one_span || first + begin > last ? ends[0] : span_of(launch, first + begin);
    for (int i = begin; i < begin + run && first + i <= last; ++i) {
      if (!in_one_span) {
        const int64_t next = launch.boundaries[span + 1];  // for -1 the first boundary: the span is looked up
        if (first + i >= next) {
          if (sum != 0) add_atomically(launch.sums + span * params.n_keys + key, static_cast<uint64_t>(sum));
          sum = 0, span = span_of(launch, first + i);
        }
      }
      if (tile.scored[i] && span >= 0)
        sum += to_integer(score_one<kFamily>(launch, tile, i, subkey, step) * kUnits);
    }
    if (!in_one_span && sum != 0)
      add_atomically(launch.sums + span * params.n_keys + key, static_cast<uint64_t>(sum));
  }
  if (!in_one_span) return;
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (lane != 0 || key >= params.n_keys) return;
  for (uint32_t i = 1; i < lanes; ++i) sum += partial[threadIdx.x + i * columns];
  if (sum != 0) add_atomically(launch.sums + ends[0] * params.n_keys + key, static_cast<uint64_t>(sum));
}

// Convert sums from units to scores, in place.
__global__ void __launch_bounds__(kThreads) scale_kernel(const ScoreLaunch launch) {
  const int64_t count = launch.spans * launch.params.n_keys;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kThreads)
    launch.sums[i] = as_bits(static_cast<double>(static_cast<int64_t>(launch.sums[i])) * (1.0 / kUnits));
}

using ScoreKernel = void (*)(ScoreLaunch);

ScoreKernel score_kernel_of(Family family) {
  return family == Family::gumbel ? score_kernel<Family::gumbel> : score_kernel<Family::fourier>;
}

ScoreKernel score_spans_kernel_of(Family family) {
  return family == Family::gumbel ? score_spans_kernel<Family::gumbel> : score_spans_kernel<Family::fourier>;
}

const char* launch_score(ScoreKernel kernel, const ScoreLaunch& launch_args, void* stream) {
  ScoreLaunch args = launch_args;
  args.columns_log2 = 2;  // at least kThreads / kTile columns, so that no thread is without tokens
  while (args.columns_log2 < 8 && (int64_t{1} << args.columns_log2) < args.params.n_keys) ++args.columns_log2;
  const int64_t columns = int64_t{1} << args.columns_log2;
  const dim3 blocks(static_cast<unsigned>((args.tokens + kTile - 1) / kTile),
                    static_cast<unsigned>((args.params.n_keys + columns - 1) / columns), 1);
  return launch(kernel, blocks, dim3(kThreads, 1, 1), stream, args);
}

}  // namespace

const char* score_cuda(const CudaKernelParams& params, const CudaScoreArgs& args, void* stream) {
  if (args.tokens == 0 || params.n_keys == 0) return nullptr;
  const ScoreLaunch launch_args{params,
                                make_lane_grid(params.vocab),
                                args.token_ids,
                                args.counts,
                                args.tokens,
                                0,
                                args.scores,
                                nullptr,
                                0,
                                nullptr,
                                nullptr};
  return launch_score(score_kernel_of(params.family), launch_args, stream);
}

const char* score_spans_cuda(const CudaKernelParams& params, const CudaScoreSpansArgs& args, void* stream) {
  const int64_t count = args.spans * params.n_keys;
  if (count == 0) return nullptr;
  if (const char* error = clear(args.sums, count * static_cast<int64_t>(sizeof(double)), stream)) return error;
  if (args.tokens == 0) return nullptr;
  const ScoreLaunch launch_args{params,
                                make_lane_grid(params.vocab),
                                args.token_ids,
                                args.counts,
                                args.tokens,
                                0,
                                nullptr,
                                args.boundaries,
                                args.spans,
                                args.counted,
                                reinterpret_cast<uint64_t*>(args.sums)};
  if (const char* error = launch_score(score_spans_kernel_of(params.family), launch_args, stream)) return error;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return launch(scale_kernel, dim3(static_cast<unsigned>(blocks < 65536 ? blocks : 65536), 1, 1),
                dim3(kThreads, 1, 1), stream, launch_args);
}

const char* load_score_cuda() {
  for (Family family : kFamilies)
    for (ScoreKernel kernel : {score_kernel_of(family), score_spans_kernel_of(family)})
      if (const char* error = load(kernel)) return error;
  return load(scale_kernel);
}

}  // namespace iet
