// embed_ on CUDA: logits[v] += kappa * phi(P(v)), or the noise of family gumbel, over every marked row, in one
// pass.
//
// A block owns kChunk consecutive ids of one row. Its threads ask for their logits first; while those are on
// the way, one warp hashes the context and tabulates round 1, which depends on the grid row alone: b is a
// multiple of 8, so that a vector of 4 or 8 aligned ids never leaves its grid row. Everything about a row is
// read from device memory, so that a captured graph replays with new contexts, slots and temperatures.
//
// On aligned rows a logit costs 43 instructions on sm_90 and 48 on sm_80, overheads included (cuobjdump -sass):
// about 25 for the permutation, 14 for phi and the logit. Rounds 2 to 4 could be looked up in tables of b and a
// entries in shared memory; by estimate the bank conflicts of half logits, 8 to a thread, cost what that saves.
#include <type_traits>

#include "../ops.h"
#include "device.h"
#include "registers.h"

namespace iet {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;
constexpr int kChunk = kThreads * kPerThread;
constexpr int kChunkWords = kChunk / 32;
constexpr int kWarp = 32;
constexpr int kMaxContext = 15;
// Grid rows that a chunk can touch: at most a, and at most kChunk / b + 2, with b >= 0.8 sqrt(V) > 0.6 a.
constexpr int kMaxGridRows = 128;

struct EmbedLaunch {
  CudaMarking marking;
  CudaEmbedArgs args;
  LaneGrid grid;
  int64_t first_row;
};

// What a row of logits has in common.
struct RowState {
  LaneKeys keys;
  LanePhi phi;
  float kappa;
};

IET_HD uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }

IET_HD void refuse(const EmbedLaunch& launch, Refused reason, int64_t row) {
  launch.args.refused[reason] = static_cast<int32_t>(row + 1);
}

template <Family kFamily, bool kWalks, int kWidth>
IET_HD void mark_lanes(uint32_t left, uint32_t first, const EmbedLaunch& launch, const RowState& row,
                       float (&values)[kWidth]) {
  if constexpr (kFamily == Family::gumbel) {  // `first` is the id, whose grid row does not matter
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = marked_logit(values[i], row.kappa, gumbel_noise(lane_uniform(row.keys.seed, first + i)));
  } else {
    uint32_t ranks[kWidth];
    permute_lanes<kWalks>(left, first, launch.grid, row.keys, ranks);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = marked_logit(values[i], row.kappa, lane_phi<kFamily>(ranks[i], launch.grid, row.phi));
  }
}

// Bits of the ids from v on that are unmarked.
IET_HD uint32_t unmarked_from(const uint32_t* bits, uint32_t v) { return bits[v >> 5] >> (v & 31); }

template <class Words, Family kFamily, bool kWalks>
IET_HD uint4 mark_vector(uint4 before, uint32_t left, uint32_t first, const EmbedLaunch& launch,
                         const RowState& row) {
  constexpr int kLanes = Words::kLanes;
  float values[4 * kLanes];
  Words::load(before.x, values);
  Words::load(before.y, values + kLanes);
  Words::load(before.z, values + 2 * kLanes);
  Words::load(before.w, values + 3 * kLanes);
  mark_lanes<kFamily, kWalks>(left, first, launch, row, values);
  uint4 after;
  after.x = Words::store(values);
  after.y = Words::store(values + kLanes);
  after.z = Words::store(values + 2 * kLanes);
  after.w = Words::store(values + 3 * kLanes);
  return after;
}

// Take the lanes of `before` whose bits are set.
template <int kLanes>
IET_HD uint32_t keep(uint32_t before, uint32_t after, uint32_t bits) {
  const uint32_t low = bits & 1 ? 0xFFFFu : 0, high = bits >> (kLanes - 1) & 1 ? 0xFFFF0000u : 0;
  return (before & (low | high)) | (after & ~(low | high));
}

template <class Words, Family kFamily, bool kWalks>
IET_HD typename Words::Storage mark_one(typename Words::Storage before, uint32_t left, uint32_t first,
                                        const EmbedLaunch& launch, const RowState& row) {
  float values[2] = {}, lane[1];
  Words::load(before, values);
  lane[0] = values[0];
  mark_lanes<kFamily, kWalks>(left, first, launch, row, lane);
  values[0] = lane[0];
  return static_cast<typename Words::Storage>(Words::store(values));
}

// Columns that are changed: every one by family gumbel, else those of the vocabulary.
template <Family kFamily>
IET_HD uint32_t marked_columns(const EmbedLaunch& launch) {
  return kFamily == Family::gumbel ? static_cast<uint32_t>(launch.args.columns) : launch.marking.vocab;
}

// kVector: rows are aligned and packed, so that 16 bytes move at once; else one logit at a time.
template <class Words, Family kFamily, bool kVector, bool kWalks>
__global__ void __launch_bounds__(kThreads) embed_kernel(const EmbedLaunch launch) {
  using Storage = typename Words::Storage;
  constexpr int kWidth = kVector ? 4 * Words::kLanes : 1;
  constexpr int kAccesses = kPerThread / kWidth;
  __shared__ uint32_t context[kMaxContext];
  __shared__ uint32_t starts[kMaxGridRows];  // grid row -> what round 1 adds to the right digit, less its start
  __shared__ uint64_t shared_seed;

  const CudaMarking& marking = launch.marking;
  const CudaEmbedArgs& args = launch.args;
  const uint32_t vocab = marking.vocab, thread = threadIdx.x;
  const uint32_t chunk = blockIdx.x * kChunk;
  const int64_t i = launch.first_row + blockIdx.y;

  // The row: the same for all threads of the block, which leave together where there is nothing to do.
  const int64_t slot = element(args.slots.data, args.slots.wide, i * args.slots.stride);
  if (slot == -1) return;
  const int64_t target = args.row_index.data == nullptr
                             ? i
                             : element(args.row_index.data, args.row_index.wide, i * args.row_index.stride);
  RowState row;
  row.kappa = args.temperatures == nullptr ? args.kappa
                                           : fmul(args.kappa, args.temperatures[i * args.temperature_stride]);
  const bool slot_is_wrong = slot < 0 || slot >= marking.n_keys;
  const bool row_is_wrong = target < 0 || target >= args.logits_rows;
  const bool kappa_is_wrong = !(row.kappa >= 0 && row.kappa <= 0x1.fffffep+127f);
  if (slot_is_wrong || row_is_wrong || kappa_is_wrong) {
    if (thread == 0 && chunk == 0)
      refuse(launch, slot_is_wrong ? kRefusedSlot : row_is_wrong ? kRefusedRow : kRefusedTemperature, i);
    return;
  }

  // The loads that take longest start before anything waits. Where a thread's share ends after the row's last
  // whole access, it reads and computes that one again and stores nothing.
  char* const logits = static_cast<char*>(args.logits) + target * args.row_stride;
  const uint32_t columns = marked_columns<kFamily>(launch), accesses = columns / kWidth;
  const uint32_t block_access = chunk / kWidth;
  uint4 vectors[kVector ? kAccesses : 1];
  Storage singles[kVector ? 1 : kAccesses];
#pragma unroll
  for (int j = 0; j < kAccesses; ++j) {
    if (block_access + j * kThreads >= accesses) break;
    const uint32_t access = smaller(block_access + j * kThreads + thread, accesses - 1);
    if constexpr (kVector) vectors[j] = reinterpret_cast<const uint4*>(logits)[access];
    else singles[j] = *reinterpret_cast<const Storage*>(logits + access * args.element_stride);
  }
  row.phi = {marking.k_p[slot], marking.steps[slot]};

  const uint32_t words = marking.n_gram - 1;
  bool unmarked = false;
  if (thread < words) {
    const int64_t id = element(args.contexts.data, args.contexts.wide,
                               i * args.contexts.stride + thread * args.context_element_stride);
    if (id < 0 && chunk == 0) refuse(launch, kRefusedContext, i);
    unmarked = !is_marked_id(id, vocab, marking.unmarked_bits);
    context[thread] = static_cast<uint32_t>(id);
  }
  if (__syncthreads_or(unmarked)) return;

  const uint32_t first_grid_row = kFamily == Family::gumbel ? 0 : grid_row(chunk, launch.grid);
  // What v of this vector is permuted from: its grid row and its right digit after round 1; or v itself.
  const auto place = [&](uint32_t v, uint32_t& left) {
    if constexpr (kFamily == Family::gumbel) {
      left = 0;
      return v;
    } else {
      left = grid_row(v, launch.grid);
      return v + starts[left - first_grid_row];
    }
  };
  if (kFamily == Family::gumbel) {
    if (thread == 0) shared_seed = context_seed(marking.subkeys + 2 * slot, context, words);
  } else if (thread < kWarp) {  // all its lanes hash alike, then share out the grid rows
    const uint64_t seed = context_seed(marking.subkeys + 2 * slot, context, words);
    const uint32_t last = chunk + kChunk < vocab ? chunk + kChunk - 1 : vocab - 1;
    const uint32_t grid_rows = grid_row(last, launch.grid) - first_grid_row + 1;
    for (uint32_t r = thread; r < grid_rows; r += kWarp)
      starts[r] = add_bmix(0, first_grid_row + r, RoundKeys(seed).k1, launch.grid.b) -
                  (first_grid_row + r) * launch.grid.b;
    if (thread == 0) shared_seed = seed;
  }
  bool some_stay = false;
  if (kFamily != Family::gumbel && marking.unmarked_bits != nullptr && thread < kChunkWords &&
      chunk / 32 + thread < (vocab + 31) / 32)
    some_stay = marking.unmarked_bits[chunk / 32 + thread] != 0;
  some_stay = __syncthreads_or(some_stay);
  row.keys = LaneKeys(shared_seed);

  const auto mark = [&](auto mode) {
    constexpr bool keeps = decltype(mode)::value;
#pragma unroll
    for (int j = 0; j < kAccesses; ++j) {
      if (block_access + j * kThreads >= accesses) break;
      const uint32_t asked = block_access + j * kThreads + thread, access = smaller(asked, accesses - 1);
      const uint32_t v = access * kWidth;
      uint32_t left;
      const uint32_t first = place(v, left);
      const uint32_t stay = keeps ? unmarked_from(marking.unmarked_bits, v) : 0;
      if constexpr (kVector) {
        constexpr int kLanes = Words::kLanes;
        uint4 after = mark_vector<Words, kFamily, kWalks>(vectors[j], left, first, launch, row);
        if (keeps) {
          after.x = keep<kLanes>(vectors[j].x, after.x, stay);
          after.y = keep<kLanes>(vectors[j].y, after.y, stay >> kLanes);
          after.z = keep<kLanes>(vectors[j].z, after.z, stay >> 2 * kLanes);
          after.w = keep<kLanes>(vectors[j].w, after.w, stay >> 3 * kLanes);
        }
        if (asked == access) reinterpret_cast<uint4*>(logits)[access] = after;
      } else {
        const Storage after = mark_one<Words, kFamily, kWalks>(singles[j], left, first, launch, row);
        if (asked == access && !(keeps && (stay & 1)))
          *reinterpret_cast<Storage*>(logits + access * args.element_stride) = after;
      }
    }
  };
  if (some_stay) mark(std::true_type{});
  else mark(std::false_type{});

  // Ids after the last whole vector.
  if constexpr (kVector) {
    const uint32_t v = accesses * kWidth + thread;
    if (thread < kWidth && v < columns && v / kChunk == blockIdx.x) {
      if (some_stay && (unmarked_from(marking.unmarked_bits, v) & 1)) return;
      uint32_t left;
      const uint32_t first = place(v, left);
      Storage* const logit = reinterpret_cast<Storage*>(logits) + v;
      *logit = mark_one<Words, kFamily, kWalks>(*logit, left, first, launch, row);
    }
  }
}

using EmbedKernel = void (*)(EmbedLaunch);

// Where nothing walks, one kernel is spared the question: that of the default family on aligned rows.
template <class Words>
EmbedKernel kernel_of(Family family, bool vector, bool walks) {
  constexpr Family kFourier = Family::fourier, kSquare = Family::square, kGumbel = Family::gumbel;
  if (family == kGumbel)
    return vector ? embed_kernel<Words, kGumbel, true, false> : embed_kernel<Words, kGumbel, false, false>;
  if (family == kSquare)
    return vector ? embed_kernel<Words, kSquare, true, true> : embed_kernel<Words, kSquare, false, true>;
  if (!vector) return embed_kernel<Words, kFourier, false, true>;
  return walks ? embed_kernel<Words, kFourier, true, true> : embed_kernel<Words, kFourier, true, false>;
}

EmbedKernel kernel_of(DType dtype, Family family, bool vector, bool walks) {
  switch (dtype) {
    case DType::float32:
      return kernel_of<Float32Words>(family, vector, walks);
    case DType::float16:
      return kernel_of<Float16Words>(family, vector, walks);
    case DType::bfloat16:
      return kernel_of<BFloat16Words>(family, vector, walks);
  }
  return nullptr;
}

}  // namespace

const char* embed_cuda(const CudaMarking& marking, const CudaEmbedArgs& args, void* stream) {
  EmbedLaunch launch_args{marking, args, make_lane_grid(marking.vocab), 0};
  if (kChunk / launch_args.grid.b + 2 > kMaxGridRows && launch_args.grid.a > kMaxGridRows)
    return "embed_cuda: a block would touch more grid rows than it has room for";

  const int64_t size = args.dtype == DType::float32 ? 4 : 2;
  const bool vector = args.element_stride == size && (args.row_stride % 16 == 0 || args.logits_rows == 1) &&
                      reinterpret_cast<uintptr_t>(args.logits) % 16 == 0;
  const bool walks = launch_args.grid.a * launch_args.grid.b != marking.vocab;
  const EmbedKernel kernel = kernel_of(args.dtype, marking.family, vector, walks);
  const int64_t columns = marking.family == Family::gumbel ? args.columns : marking.vocab;
  if (columns > 0x7FFFFFFF) return "embed_cuda: more columns than 2^31 - 1";
  const unsigned chunks = static_cast<unsigned>((columns + kChunk - 1) / kChunk);
  constexpr int64_t kMaxRows = 65535;  // of a launch
  for (int64_t first = 0; first < args.rows; first += kMaxRows) {
    launch_args.first_row = first;
    const int64_t rows = args.rows - first < kMaxRows ? args.rows - first : kMaxRows;
    const dim3 blocks(chunks, static_cast<unsigned>(rows), 1), threads(kThreads, 1, 1);
    if (const char* error = launch(kernel, blocks, threads, stream, launch_args)) return error;
  }
  return nullptr;
}

const char* load_embed_cuda() {
  for (DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (Family family : {Family::fourier, Family::square, Family::gumbel})
      for (bool vector : {false, true})
        for (bool walks : {false, true})
          if (const char* error = load(kernel_of(dtype, family, vector, walks))) return error;
  return nullptr;
}

}  // namespace iet
