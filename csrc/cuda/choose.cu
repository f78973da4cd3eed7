// choose on CUDA: the token of the largest logit + kappa·noise of each marked row, among those that its filter
// keeps, in one pass over the logits; it is forced by one write.
//
// best_kernel reads every logit once, in pieces of one warp. It writes the largest logit of each piece, and the
// best token of each warp; most pieces have too low logits to win and get no noise. One block for each row then
// merges these (choose_kernel). For a filter it reads again only pieces whose largest logit is above the one
// that is tested; for top-p also the row, if the probability of what was read does not decide. No block waits
// for another one.
//
// Instructions per logit: benchmarks/results/instructions.md.
#include "../choose.h"
#include "../ops.h"
#include "device.h"
#include "registers.h"

namespace iet {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8, kFewWarps = 2;  // of a block of best_kernel; the second if there are few pieces
constexpr int kRowThreads = 512, kRowWarps = kRowThreads / kWarp;  // of choose_kernel
constexpr uint32_t kPerLane = 16, kPiece = kPerLane * kWarp;       // logits
// Number of blocks that occupy a device. If there are more pieces, each warp takes several.
constexpr int64_t kManyBlocks = 1024;
constexpr int64_t kFewPieces = 4800;
constexpr uint32_t kMostPieces = 8;  // of a warp
constexpr uint32_t kNoId = 0xFFFFFFFFu;

struct Best {
  float sum;
  uint32_t id;
};

struct ChooseLaunch {
  CudaKernelParams params;
  CudaChooseArgs args;
  Best* bests;    // [rows, warps]
  float* maxima;  // [rows, pieces]
  int64_t first_row;
  uint32_t pieces, warps, pieces_per_warp;  // of a row; of best_kernel for a row; of one of these
  uint32_t block_warps;                     // of a block of best_kernel
  float largest;                            // finite number of the dtype
};

IET_HD bool is_better(const Best& x, const Best& y) { return x.sum > y.sum || (x.sum == y.sum && x.id < y.id); }

IET_HD float warp_maximum(float x) {
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) x = larger(shuffle(x, by), x);
  return x;
}

IET_HD Best warp_best(Best best) {
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) {
    const Best other{shuffle(best.sum, by), shuffle(best.id, by)};
    if (is_better(other, best)) best = other;
  }
  return best;
}

// Whether a logit + kappa·noise may reach `bound`, from the hash of its id. exp is replaced by a larger
// function: a float whose bits are linear in the exponent, 2^e·(1 + f) for 2^(e + f).
struct ExpBound {
  static constexpr float kUnit = 0x1p23f;  // of an exponent, in the bits of a float
  float bound, slope, offset;

  IET_HD ExpBound(float kappa, float sum, float highest) {
    bound = sum - 1e-6f * (magnitude(sum) + magnitude(highest));  // more than what rounding changes
    slope = weight_scale(kappa) * kUnit;
    offset = (127.0f + 24.0f + 0.01f) * kUnit;                 // of 2^24·(1 - u)
    if (!(slope < 1e30f)) slope = 0, offset = 180.0f * kUnit;  // a temperature near 0: any may
  }
  IET_HD bool operator()(float logit, uint32_t hash) const {
    const float bits = larger(slope * (logit - bound) + offset, 0.0f), most = 180.0f * kUnit;
    return static_cast<float>(0xFFFFFFu - (hash >> 8)) <=
           as_float(static_cast<uint32_t>(bits < most ? bits : most));
  }
};

// The logits of a lane in one piece, and their ids. NaN and what lies beyond the row are -inf.
template <class Words, bool kVector>
struct LaneLogits {
  static constexpr uint32_t kWidth = kVector ? 4 * Words::kLanes : 1;  // of an access
  float x[kPerLane];

  static IET_HD uint32_t id_of(uint32_t piece, uint32_t i) {
    return piece * kPiece + (i / kWidth * kWarp + threadIdx.x % kWarp) * kWidth + i % kWidth;
  }
  IET_HD void load(const char* row, int64_t stride, uint32_t columns, uint32_t piece) {
    using Storage = typename Words::Storage;
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i += kWidth) {
      const uint32_t id = id_of(piece, i);
      if constexpr (kVector) {
        if (id + kWidth <= columns) {
          const uint4 words = *reinterpret_cast<const uint4*>(row + id * sizeof(Storage));
          Words::load(words.x, x + i);
          Words::load(words.y, x + i + Words::kLanes);
          Words::load(words.z, x + i + 2 * Words::kLanes);
          Words::load(words.w, x + i + 3 * Words::kLanes);
          continue;
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < kWidth; ++j) {
        float two[2] = {kMinusInfinity, 0};
        if (id + j < columns) Words::load(*reinterpret_cast<const Storage*>(row + (id + j) * stride), two);
        x[i + j] = two[0];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) x[i] = larger(x[i], kMinusInfinity);
  }
  static IET_HD void copy(const char* from, char* to, int64_t stride, uint32_t columns, uint32_t piece) {
    using Storage = typename Words::Storage;
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i += kWidth) {
      const uint32_t id = id_of(piece, i);
      if constexpr (kVector) {
        if (id + kWidth <= columns) {
          const int64_t at = id * sizeof(Storage);
          *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
          continue;
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < kWidth; ++j)
        if (id + j < columns)
          *reinterpret_cast<Storage*>(to + (id + j) * stride) =
              *reinterpret_cast<const Storage*>(from + (id + j) * stride);
    }
  }
  IET_HD float maximum() const {
    float highest = x[0];
#pragma unroll
    for (uint32_t i = 1; i < kPerLane; ++i) highest = larger(x[i], highest);
    return warp_maximum(highest);
  }
  // Update the best token of this lane, and `bound`, which is the largest sum of its warp.
  //
  // The largest logit of each lane comes first. Then another one can win only if its uniform variate u is so
  // near to 1 that 1 - u <= -log(u) <= exp((x - bound)/T), which costs less than its noise.
  IET_HD void choose(uint32_t piece, uint64_t seed, float kappa, Best& best, float& bound) const {
    const uint32_t high = static_cast<uint32_t>(seed >> 32);
    const auto update = [&](float logit, uint32_t id, uint32_t hash) {
      const Best other{marked_logit(logit, kappa, gumbel_noise(uniform_numerator(hash))), id};
      if (is_better(other, best)) best = other;
    };
    float highest = x[0];
    uint32_t first = 0;  // of the lane's largest logits
#pragma unroll
    for (uint32_t i = 1; i < kPerLane; ++i) {
      first = x[i] > highest ? i : first;
      highest = larger(x[i], highest);
    }
    const uint32_t first_id = id_of(piece, first);
    update(highest, first_id, noise_hash(noise_word(seed, first_id), high));
    bound = larger(warp_maximum(best.sum), bound);

    const ExpBound reaches(kappa, bound, highest);
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) {
      const uint32_t id = id_of(piece, i), hash = noise_hash(noise_word(seed, id), high);
      if (reaches(x[i], hash)) update(x[i], id, hash);
    }
    bound = larger(warp_maximum(best.sum), bound);
  }
};

// A row, as a block of either kernel sees it.
struct BlockRow {
  int64_t number;  // among the records
  RowRecord record;
  char* logits;
  const char* source;

  IET_HD BlockRow(const ChooseLaunch& launch, int64_t number) : number(number) {
    const CudaEmbedArgs& args = launch.args.rows;
    record = args.records[number];
    const Integers& index = args.row_index;
    const int64_t row = index.data == nullptr ? number : element(index, number);
    logits = static_cast<char*>(args.logits) + row * args.row_stride;
    source = static_cast<const char*>(args.source) + row * args.row_stride;
  }
  IET_HD bool is_marked() const { return record.step != kUnmarkedRow; }
};

template <class Words, bool kVector>
__global__ void __launch_bounds__(kWarps* kWarp) best_kernel(const ChooseLaunch launch) {
  const CudaEmbedArgs& args = launch.args.rows;
  const BlockRow row(launch, launch.first_row + blockIdx.y);
  const uint32_t warp = blockIdx.x * launch.block_warps + threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const uint32_t columns = static_cast<uint32_t>(args.columns);
  const bool copies = args.source != args.logits;
  if (!row.is_marked() && !copies) return;

  const float most_noise = gumbel_noise(0xFFFFFFu), kappa = row.record.kappa;
  Best best{kMinusInfinity, kNoId};
  float bound = kMinusInfinity;  // the largest sum of the warp so far
  for (uint32_t i = 0; i < launch.pieces_per_warp; ++i) {
    const uint32_t piece = warp + i * launch.warps;
    if (piece >= launch.pieces) break;
    if (copies) LaneLogits<Words, kVector>::copy(row.source, row.logits, args.element_stride, columns, piece);
    if (!row.is_marked()) continue;
    LaneLogits<Words, kVector> mine;
    mine.load(row.source, args.element_stride, columns, piece);
    const float highest = mine.maximum();
    if (lane == 0) launch.maxima[row.number * launch.pieces + piece] = highest;
    if (!(highest > kMinusInfinity) || marked_logit(highest, kappa, most_noise) < bound) continue;
    mine.choose(piece, row.record.seed, kappa, best, bound);
  }
  if (!row.is_marked()) return;
  best = warp_best(best);
  if (lane == 0) launch.bests[row.number * launch.warps + warp] = best;
}

// What the threads of a block know of their warps.
struct Exchange {
  uint64_t totals[kRowWarps];
  Best bests[kRowWarps];
};

IET_HD uint64_t block_total(uint64_t value, Exchange& exchange) {
#pragma unroll
  for (int by = kWarp / 2; by > 0; by /= 2) value += shuffle(value, by);
  if (threadIdx.x % kWarp == 0) exchange.totals[threadIdx.x / kWarp] = value;
  wait_for_block();
  value = 0;
  for (int warp = 0; warp < kRowWarps; ++warp) value += exchange.totals[warp];
  wait_for_block();
  return value;
}

IET_HD Best block_best(Best best, Exchange& exchange) {
  best = warp_best(best);
  if (threadIdx.x % kWarp == 0) exchange.bests[threadIdx.x / kWarp] = best;
  wait_for_block();
  for (int warp = 0; warp < kRowWarps; ++warp)
    if (is_better(exchange.bests[warp], best)) best = exchange.bests[warp];
  wait_for_block();
  return best;
}

// The row for choose_kept: all threads of the block call each function, and get the same result.
template <class Words, bool kVector>
struct RowOfBlock {
  const ChooseLaunch& launch;
  const BlockRow& row;
  const float* maxima;
  Exchange& exchange;
  float highest;

  // Let the warps of the block visit the pieces whose largest logits are wanted.
  template <class Wanted, class Visit>
  IET_HD void visit(Wanted&& is_wanted, Visit&& visit_piece) const {
    const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (uint32_t first = 0; first < launch.pieces; first += kRowThreads) {
      const uint32_t own = first + lane * kRowWarps + warp;
      uint32_t wanted = ballot(own < launch.pieces && is_wanted(maxima[own < launch.pieces ? own : 0]));
      for (; wanted != 0; wanted &= wanted - 1) {
        const uint32_t piece = first + lowest_bit(wanted) * kRowWarps + warp;
        LaneLogits<Words, kVector> logits;
        logits.load(row.source, launch.args.rows.element_stride,
                    static_cast<uint32_t>(launch.args.rows.columns), piece);
        visit_piece(piece, logits);
      }
    }
  }
  IET_HD Choice choice_of(const Best& best) const {
    if (best.id == kNoId) return {kMinusInfinity, kMinusInfinity, -1};
    float two[2] = {};
    Words::load(*reinterpret_cast<const typename Words::Storage*>(row.source +
                                                                  best.id * launch.args.rows.element_stride),
                two);
    return {best.sum, two[0], static_cast<int64_t>(best.id)};
  }

  IET_HD int64_t size() const { return launch.args.rows.columns; }
  IET_HD Choice best(float at_least) const {
    Best best{kMinusInfinity, kNoId};
    float bound = kMinusInfinity;
    visit([&](float maximum) { return maximum >= at_least; },
          [&](uint32_t piece, LaneLogits<Words, kVector>& logits) {
#pragma unroll
            for (uint32_t i = 0; i < kPerLane; ++i)
              logits.x[i] = logits.x[i] >= at_least ? logits.x[i] : kMinusInfinity;
            logits.choose(piece, row.record.seed, row.record.kappa, best, bound);
          });
    return choice_of(block_best(best, exchange));
  }
  IET_HD int64_t count(float at_least, int64_t limit) const {
    uint64_t touched = 0, found = 0;
    for (uint32_t piece = threadIdx.x; piece < launch.pieces; piece += kRowThreads)
      touched += maxima[piece] >= at_least ? 1 : 0;
    touched = block_total(touched, exchange);
    if (touched == 0 || static_cast<int64_t>(touched) >= limit) return static_cast<int64_t>(touched);
    visit([&](float maximum) { return maximum >= at_least; },
          [&](uint32_t, const LaneLogits<Words, kVector>& logits) {
#pragma unroll
            for (uint32_t i = 0; i < kPerLane; ++i) found += logits.x[i] >= at_least ? 1 : 0;
          });
    return static_cast<int64_t>(block_total(found, exchange));
  }
  IET_HD uint64_t weight(float at_least) const {
    const float scale = weight_scale(row.record.kappa);
    uint64_t total = 0;
    visit([&](float maximum) { return maximum >= at_least && weight_of(maximum, highest, scale) > 0; },
          [&](uint32_t, const LaneLogits<Words, kVector>& logits) {
#pragma unroll
            for (uint32_t i = 0; i < kPerLane; ++i)
              total += logits.x[i] >= at_least ? weight_of(logits.x[i], highest, scale) : 0;
          });
    return block_total(total, exchange);
  }
};

template <class Words, bool kVector>
__global__ void __launch_bounds__(kRowThreads, 1) choose_kernel(const ChooseLaunch launch) {
  __shared__ Exchange exchange;
  const CudaChooseArgs& args = launch.args;
  const BlockRow row(launch, blockIdx.x);
  if (!row.is_marked()) {
    if (args.chosen != nullptr && threadIdx.x == 0) args.chosen[row.number] = -1;
    return;
  }
  // The largest logit, as the best of pieces without noise.
  const float* const maxima = launch.maxima + row.number * launch.pieces;
  Best best{kMinusInfinity, kNoId}, highest = best;
  for (uint32_t piece = threadIdx.x; piece < launch.pieces; piece += kRowThreads)
    highest.sum = larger(maxima[piece], highest.sum);
  for (uint32_t warp = threadIdx.x; warp < launch.warps; warp += kRowThreads) {
    const Best other = launch.bests[row.number * launch.warps + warp];
    if (is_better(other, best)) best = other;
  }
  highest = block_best(highest, exchange);
  const RowOfBlock<Words, kVector> of_block{launch, row, maxima, exchange, highest.sum};
  Choice choice = of_block.choice_of(block_best(best, exchange));
  if (args.filters != nullptr) {
    const Integers& sequences = args.sequences;
    const int64_t sequence = sequences.data == nullptr ? row.number : element(sequences, row.number);
    choice = choose_kept(of_block, args.filters[sequence], highest.sum, row.record.kappa, choice);
  }
  wait_for_block();  // all threads have read the logit that changes now
  if (threadIdx.x != 0) return;
  if (args.chosen != nullptr) args.chosen[row.number] = choice.id;
  if (choice.id < 0) return;
  const float forced[2] = {forced_logit(highest.sum, row.record.kappa, launch.largest), 0};
  *reinterpret_cast<typename Words::Storage*>(row.logits + choice.id * args.rows.element_stride) =
      static_cast<typename Words::Storage>(Words::store(forced));
}

using ChooseKernel = void (*)(ChooseLaunch);

struct ChooseKernels {
  ChooseKernel best, choose;
};

template <class Words>
ChooseKernels kernels_of(bool vector) {
  if (vector) return {best_kernel<Words, true>, choose_kernel<Words, true>};
  return {best_kernel<Words, false>, choose_kernel<Words, false>};
}

ChooseKernels kernels_of(DType dtype, bool vector) {
  switch (dtype) {
    case DType::float16:
      return kernels_of<Float16Words>(vector);
    case DType::bfloat16:
      return kernels_of<BFloat16Words>(vector);
    default:
      return kernels_of<Float32Words>(vector);
  }
}

int64_t pieces_of(int64_t columns) { return (columns + kPiece - 1) / kPiece; }
int64_t warps_of(int64_t pieces, int64_t pieces_per_warp) {
  return (pieces + kWarps * pieces_per_warp - 1) / (kWarps * pieces_per_warp) * kWarps;
}

}  // namespace

int64_t choose_scratch(int64_t rows, int64_t columns) {
  const int64_t pieces = pieces_of(columns), warps = warps_of(pieces, 1);
  return rows * (warps * static_cast<int64_t>(sizeof(Best)) + pieces * static_cast<int64_t>(sizeof(float)));
}

const char* choose_cuda(const CudaKernelParams& params, const CudaChooseArgs& args, void* stream) {
  const CudaEmbedArgs& rows = args.rows;
  if (rows.rows == 0) return nullptr;
  if (rows.columns > 0x7FFFFFFF || rows.rows > 0x7FFFFFFF)
    return "choose_cuda: more rows or columns than 2^31 - 1";
  const int64_t size = rows.dtype == DType::float32 ? 4 : 2, pieces = pieces_of(rows.columns);
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool vector = rows.element_stride == size && (rows.row_stride % 16 == 0 || rows.logits_rows == 1) &&
                      aligned(rows.logits) && aligned(rows.source);
  const ChooseKernels kernels = kernels_of(rows.dtype, vector);
  constexpr float kLargest[] = {Float32::kLargest, Float16::kLargest, BFloat16::kLargest};
  uint32_t each = 1;
  while (each < kMostPieces && warps_of(pieces, 2 * each) / kWarps * rows.rows >= kManyBlocks) each *= 2;
  const int64_t warps = warps_of(pieces, each);
  const int block_warps = pieces * rows.rows < kFewPieces ? kFewWarps : kWarps;
  Best* const bests = static_cast<Best*>(args.scratch);
  float* const maxima = reinterpret_cast<float*>(bests + rows.rows * warps);
  ChooseLaunch launch_args{params,
                           args,
                           bests,
                           maxima,
                           0,
                           static_cast<uint32_t>(pieces),
                           static_cast<uint32_t>(warps),
                           each,
                           static_cast<uint32_t>(block_warps),
                           kLargest[static_cast<int>(rows.dtype)]};
  constexpr int64_t kMaxRows = 65535;  // of a launch
  for (int64_t first = 0; first < rows.rows; first += kMaxRows) {
    launch_args.first_row = first;
    const int64_t some = rows.rows - first < kMaxRows ? rows.rows - first : kMaxRows;
    const dim3 blocks(static_cast<unsigned>(warps / block_warps), static_cast<unsigned>(some), 1);
    if (const char* error = launch(kernels.best, blocks, dim3(block_warps * kWarp, 1, 1), stream, launch_args))
      return error;
  }
  return launch(kernels.choose, dim3(static_cast<unsigned>(rows.rows), 1, 1), dim3(kRowThreads, 1, 1), stream,
                launch_args);
}

const char* load_choose_cuda() {
  for (DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (bool vector : {false, true}) {
      const ChooseKernels kernels = kernels_of(dtype, vector);
      if (const char* error = load(kernels.best)) return error;
      if (const char* error = load(kernels.choose)) return error;
    }
  return nullptr;
}

}  // namespace iet
