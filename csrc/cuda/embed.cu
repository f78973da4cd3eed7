// embed_ on CUDA: logits[v] += kappa * phi(P(v)), or the noise of family gumbel, over every marked row, in one
// pass.
//
// A block marks one or several chunks of consecutive ids of one row. It reads one record of the row, which
// rows_kernel writes, so a captured graph replays with new contexts, slots and temperatures.
//
// Threads first load their logits; until these arrive, they tabulate the values that the chunks share. Round 1
// depends on the grid row only, and a vector of 4 or 8 aligned ids is within one grid row, because b is a
// multiple of 8. Round 2 depends on the right digit after round 1, which is consecutive for consecutive ids. So
// its results are read from a table without a gather. The table repeats itself once, so that no index wraps.
//
// Each load reads four aligned entries. Therefore the table has four copies, each shifted by one entry, and a
// thread reads the copy in which its first entry is aligned. Shared memory serves eight threads at a time. They
// read 128 adjacent bytes if logits are floats, and every second 16 of 256 bytes if they are halves. So each
// bank is read once or twice, and once more at the end of a grid row. (Loads of single entries would read it
// four or eight times.)
//
// Instructions per logit: benchmarks/results/instructions.md.
#include "../ops.h"
#include "device.h"
#include "registers.h"

namespace iet {
namespace {

constexpr int kThreads = 256, kFewThreads = 64;  // of a block; the second in a batch that occupies no device
constexpr int kPerThread = kChunk / kThreads;    // ids
constexpr int kMaxChunks = 8;  // of a block: a power of two, so that their flags are in one word
// Grid rows that a block can touch: at most a, and at most kMaxChunks * kChunk / b + 2, where b >= 0.8 sqrt(V)
// and a <= V / b + 1.
constexpr int kMaxGridRows = 256;
constexpr int kMaxTable = 640;  // columns of the grid; if it has more, rounds 1 and 2 are computed for each id
constexpr uint32_t kCopies = 4, kCopySize = 2 * kMaxTable * sizeof(uint32_t);  // in bytes
// Number of blocks that occupy a device. If there are more chunks, each block takes several; if there are far
// fewer, blocks are smaller.
constexpr int64_t kManyBlocks = 1024, kFewBlocks = 600;

struct EmbedLaunch {
  CudaKernelParams params;
  CudaEmbedArgs args;
  LaneGrid grid;
  int64_t first_row;
  uint32_t chunks;  // of a block
};

// Values that all logits of a row share.
struct RowState {
  uint64_t seed;
  LaneKeys keys;
  uint32_t step;
  float kappa;
};

IET_HD uint32_t smaller(uint32_t x, uint32_t y) { return x < y ? x : y; }

// `start` is the right digit of id `first` after round 1, or a pointer to its entry in the table.
template <Family kFamily, bool kWalks, class Start, int kWidth>
IET_HD void mark_lanes(uint32_t left, uint32_t first, Start start, const EmbedLaunch& launch,
                       const RowState& row, float (&values)[kWidth]) {
  if constexpr (kFamily == Family::gumbel) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = marked_logit(values[i], row.kappa, gumbel_noise(lane_uniform(row.seed, first + i)));
  } else {
    uint32_t ranks[kWidth];
    permute_lanes<kWalks>(left, start, launch.grid, row.keys, ranks);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      values[i] = marked_logit(values[i], row.kappa, phi_fourier(ranks[i], row.step));
  }
}

// Bits of the ids from v on that are unmarked.
IET_HD uint32_t unmarked_from(const uint32_t* bits, uint32_t v) { return bits[v >> 5] >> (v & 31); }

template <class Words, Family kFamily, bool kWalks, class Start>
IET_HD uint4 mark_vector(uint4 before, uint32_t left, uint32_t first, Start start, const EmbedLaunch& launch,
                         const RowState& row) {
  constexpr int kLanes = Words::kLanes;
  float values[4 * kLanes];
  Words::load(before.x, values);
  Words::load(before.y, values + kLanes);
  Words::load(before.z, values + 2 * kLanes);
  Words::load(before.w, values + 3 * kLanes);
  mark_lanes<kFamily, kWalks>(left, first, start, launch, row, values);
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

template <class Words, Family kFamily, bool kWalks, class Start>
IET_HD typename Words::Storage mark_one(typename Words::Storage before, uint32_t left, uint32_t first,
                                        Start start, const EmbedLaunch& launch, const RowState& row) {
  float values[2] = {}, lane[1];
  Words::load(before, values);
  lane[0] = values[0];
  mark_lanes<kFamily, kWalks>(left, first, start, launch, row, lane);
  values[0] = lane[0];
  return static_cast<typename Words::Storage>(Words::store(values));
}

// Columns that are changed: every one by family gumbel, else those of the vocabulary.
template <Family kFamily>
IET_HD uint32_t marked_columns(const EmbedLaunch& launch) {
  return kFamily == Family::gumbel ? static_cast<uint32_t>(launch.args.columns) : launch.params.vocab;
}

// Write columns [begin, end) of a row as they are, by all threads of the block.
template <class Storage, bool kVector, int kThreads>
IET_HD void copy_columns(const char* from, char* to, int64_t stride, uint32_t begin, uint32_t end) {
  constexpr uint32_t kWidth = kVector ? 16 / sizeof(Storage) : 1;
  const uint32_t first = (begin + kWidth - 1) / kWidth, last = end / kWidth;  // whole accesses
  if constexpr (kVector) {
    for (uint32_t access = first + threadIdx.x; access < last; access += kThreads)
      reinterpret_cast<uint4*>(to)[access] = reinterpret_cast<const uint4*>(from)[access];
  }
  const auto copy = [&](uint32_t v) {
    *reinterpret_cast<Storage*>(to + v * stride) = *reinterpret_cast<const Storage*>(from + v * stride);
  };
  if (!kVector || first > last) {
    for (uint32_t v = begin + threadIdx.x; v < end; v += kThreads) copy(v);
    return;
  }
  if (begin + threadIdx.x < first * kWidth) copy(begin + threadIdx.x);
  if (last * kWidth + threadIdx.x < end) copy(last * kWidth + threadIdx.x);
}

// kVector: rows are aligned and packed, so that 16 bytes move at once; else one logit at a time.
template <class Words, Family kFamily, bool kVector, bool kWalks, bool kTable, int kThreads>
__global__ void __launch_bounds__(kThreads) embed_kernel(const EmbedLaunch launch) {
  constexpr uint32_t kIds = kThreads * kPerThread;  // of a chunk of this block
  using Storage = typename Words::Storage;
  constexpr int kWidth = kVector ? 4 * Words::kLanes : 1;
  constexpr int kAccesses = kPerThread / kWidth;
  constexpr uint32_t kChunkAccesses = kIds / kWidth;
  constexpr bool kPermutes = kFamily != Family::gumbel;
  // Bytes of a table entry; 1 without a table.
  constexpr uint32_t kEntrySize = kTable ? sizeof(uint32_t) : 1;
  // Grid row -> the number that round 1 adds minus the row's first id. With a table: the same in bytes, plus
  // the offset of the copy to read.
  __shared__ uint32_t starts[kPermutes ? kMaxGridRows : 1];
  // Right digit after round 1, below 2b -> its entry. Copy c begins with the entry of digit c.
  alignas(16) __shared__ uint32_t table[kTable ? kCopies * kCopySize / kEntrySize : 1];

  const CudaKernelParams& params = launch.params;
  const CudaEmbedArgs& args = launch.args;
  const LaneGrid& grid = launch.grid;
  const uint32_t vocab = params.vocab, thread = threadIdx.x;
  const uint32_t begin = blockIdx.x * launch.chunks * kIds, ids = launch.chunks * kIds;

  // The row: the same for all threads of the block, which return together if there is no work.
  const int64_t i = launch.first_row + blockIdx.y;
  const RowRecord record = args.records[i];
  const int64_t target = args.row_index.data == nullptr ? i : element(args.row_index, i);
  char* const logits = static_cast<char*>(args.logits) + target * args.row_stride;
  const char* const source = static_cast<const char*>(args.source) + target * args.row_stride;
  const uint32_t columns = marked_columns<kFamily>(launch), accesses = columns / kWidth;
  const bool is_unmarked_row = record.step == kUnmarkedRow;
  if (args.source != args.logits) {  // copy the columns that are not marked
    const uint32_t end = smaller(begin + ids, static_cast<uint32_t>(args.columns));
    const uint32_t unmarked = is_unmarked_row ? begin : begin < columns ? columns : begin;
    if (unmarked < end)
      copy_columns<Storage, kVector, kThreads>(source, logits, args.element_stride, unmarked, end);
  }
  if (is_unmarked_row || begin >= columns) return;

  // Start the slow loads before any barrier. In a row's last chunk, a thread whose access is after the row's
  // last whole access repeats that access and stores nothing.
  uint32_t block_access = begin / kWidth;
  uint4 vectors[kVector ? kAccesses : 1];
  Storage singles[kVector ? 1 : kAccesses];
  const auto is_whole = [&] { return kVector && block_access + kChunkAccesses <= accesses; };
  const auto load = [&] {
    if (is_whole()) {
      const uint4* const from = reinterpret_cast<const uint4*>(source) + block_access + thread;
#pragma unroll
      for (int j = 0; j < (kVector ? kAccesses : 0); ++j) vectors[j] = from[j * kThreads];
      return;
    }
#pragma unroll
    for (int j = 0; j < kAccesses; ++j) {
      if (block_access + j * kThreads >= accesses) break;
      const uint32_t access = smaller(block_access + j * kThreads + thread, accesses - 1);
      if constexpr (kVector) vectors[j] = reinterpret_cast<const uint4*>(source)[access];
      else singles[j] = *reinterpret_cast<const Storage*>(source + access * args.element_stride);
    }
  };
  load();
  // One bit for each chunk: whether it has unmarked ids. (A block of kFewThreads takes a part of one.)
  uint32_t unmarked_flags = 0;
  if (kPermutes && params.unmarked_chunks != nullptr)
    unmarked_flags = params.unmarked_chunks[begin / kChunk / 32] >> (begin / kChunk & 31);

  const RowState row{record.seed, LaneKeys(RoundKeys(record.seed)), record.step, record.kappa};
  const uint32_t first_grid_row = kPermutes ? grid_row(begin, grid) : 0;
  if constexpr (kPermutes) {
    const uint32_t grid_rows = grid_row(smaller(begin + ids, vocab) - 1, grid) - first_grid_row + 1;
    const uint32_t left = first_grid_row + thread;
    if (thread < grid_rows) {
      const uint32_t start = add_bmix(0, left, row.keys.k1, grid.b) - left * grid.b;
      // The first id of a vector is a multiple of 4, so only `start` determines the copy.
      const uint32_t shift = kTable ? start % kCopies * (kCopySize - kEntrySize) : 0;
      starts[thread] = start * kEntrySize + shift;
    }
    if constexpr (kTable) {
      for (uint32_t right = thread; right < grid.b; right += kThreads) {
        const uint32_t entry = rounds_entry(right, grid, row.keys);
#pragma unroll
        for (uint32_t c = 0; c < kCopies; ++c) {
          uint32_t* const copy = table + c * (kCopySize / kEntrySize);
          if (right >= c) copy[right - c] = entry;
          copy[right + grid.b - c] = entry;
        }
      }
    }
    __syncthreads();
  }
  // The grid row of v, and the start of its vector in mark_lanes; for family gumbel v itself.
  const auto start_of = [&](uint32_t v, uint32_t& left) {
    if constexpr (!kPermutes) {
      left = 0;
      return v;
    } else {
      left = grid_row(v, grid);
      const uint32_t right = v * kEntrySize + starts[left - first_grid_row];
      if constexpr (kTable)
        return reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(table) + right);
      else return right;
    }
  };

  const auto mark_whole = [&] {
    uint4* const to = reinterpret_cast<uint4*>(logits) + block_access + thread;
#pragma unroll
    for (int j = 0; j < (kVector ? kAccesses : 0); ++j) {
      const uint32_t v = (block_access + j * kThreads + thread) * kWidth;
      uint32_t left;
      const auto from = start_of(v, left);
      to[j * kThreads] = mark_vector<Words, kFamily, kWalks>(vectors[j], left, v, from, launch, row);
    }
  };
  // For chunks with unmarked ids, and the last chunk of the row.
  const auto mark = [&](bool has_unmarked) {
#pragma unroll
    for (int j = 0; j < kAccesses; ++j) {
      if (block_access + j * kThreads >= accesses) break;
      const uint32_t requested = block_access + j * kThreads + thread,
                     access = smaller(requested, accesses - 1);
      const uint32_t v = access * kWidth;
      uint32_t left;
      const auto from = start_of(v, left);
      const uint32_t stay = kPermutes && has_unmarked ? unmarked_from(params.unmarked_bits, v) : 0;
      if constexpr (kVector) {
        constexpr int kLanes = Words::kLanes;
        uint4 after = mark_vector<Words, kFamily, kWalks>(vectors[j], left, v, from, launch, row);
        if (kPermutes) {
          after.x = keep<kLanes>(vectors[j].x, after.x, stay);
          after.y = keep<kLanes>(vectors[j].y, after.y, stay >> kLanes);
          after.z = keep<kLanes>(vectors[j].z, after.z, stay >> 2 * kLanes);
          after.w = keep<kLanes>(vectors[j].w, after.w, stay >> 3 * kLanes);
        }
        if (requested == access) reinterpret_cast<uint4*>(logits)[access] = after;
      } else {
        Storage after = mark_one<Words, kFamily, kWalks>(singles[j], left, v, from, launch, row);
        if (stay & 1) after = singles[j];
        if (requested == access) *reinterpret_cast<Storage*>(logits + access * args.element_stride) = after;
      }
    }
  };
  for (uint32_t chunk = 0;; unmarked_flags >>= 1) {
    if (is_whole() && !(unmarked_flags & 1)) mark_whole();
    else mark(unmarked_flags & 1);
    block_access += kChunkAccesses;
    if (++chunk == launch.chunks || block_access >= accesses) break;
    load();
  }

  // Ids after the last whole vector.
  if constexpr (kVector) {
    const uint32_t v = accesses * kWidth + thread;
    if (thread < kWidth && v < columns && v >= begin && v - begin < ids) {
      const Storage before = reinterpret_cast<const Storage*>(source)[v];
      uint32_t left;
      const auto from = start_of(v, left);
      Storage after = mark_one<Words, kFamily, kWalks>(before, left, v, from, launch, row);
      if (kPermutes && params.unmarked_bits != nullptr && (unmarked_from(params.unmarked_bits, v) & 1))
        after = before;
      reinterpret_cast<Storage*>(logits)[v] = after;
    }
  }
}

using EmbedKernel = void (*)(EmbedLaunch);

// Properties of a launch that select the kernel. Only the kernel of family fourier for aligned rows and a table
// has a version without walks; the others check if a rank is outside [0, V).
struct Shape {
  bool vector, walks, table, few;
};

template <class Words>
EmbedKernel kernel_of(Family family, Shape shape) {
  constexpr Family kFourier = Family::fourier, kGumbel = Family::gumbel;
  if (family == kGumbel)
    return shape.vector ? embed_kernel<Words, kGumbel, true, false, false, kThreads>
                        : embed_kernel<Words, kGumbel, false, false, false, kThreads>;
  if (!shape.vector) return embed_kernel<Words, kFourier, false, true, false, kThreads>;
  if (!shape.table) return embed_kernel<Words, kFourier, true, true, false, kThreads>;
  if (shape.few)
    return shape.walks ? embed_kernel<Words, kFourier, true, true, true, kFewThreads>
                       : embed_kernel<Words, kFourier, true, false, true, kFewThreads>;
  return shape.walks ? embed_kernel<Words, kFourier, true, true, true, kThreads>
                     : embed_kernel<Words, kFourier, true, false, true, kThreads>;
}

EmbedKernel kernel_of(DType dtype, Family family, Shape shape) {
  switch (dtype) {
    case DType::float32:
      return kernel_of<Float32Words>(family, shape);
    case DType::float16:
      return kernel_of<Float16Words>(family, shape);
    case DType::bfloat16:
      return kernel_of<BFloat16Words>(family, shape);
  }
  return nullptr;
}

}  // namespace

const char* embed_cuda(const CudaKernelParams& params, const CudaEmbedArgs& args, void* stream) {
  EmbedLaunch launch_args{params, args, make_lane_grid(params.vocab), 0, 1};
  const LaneGrid& grid = launch_args.grid;
  const int64_t size = args.dtype == DType::float32 ? 4 : 2;
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; };
  const bool vector = args.element_stride == size && (args.row_stride % 16 == 0 || args.logits_rows == 1) &&
                      aligned(args.logits) && aligned(args.source);
  const bool writes_all = params.family == Family::gumbel || args.source != args.logits;
  const int64_t columns = writes_all ? args.columns : params.vocab;
  if (columns > 0x7FFFFFFF) return "embed_cuda: more columns than 2^31 - 1";
  Shape shape{vector, grid.a * grid.b != params.vocab, grid.b <= kMaxTable, false};
  shape.few = vector && shape.table && params.family == Family::fourier &&
              args.rows * ((columns + kChunk - 1) / kChunk) < kFewBlocks;
  const EmbedKernel kernel = kernel_of(args.dtype, params.family, shape);
  const int threads = shape.few ? kFewThreads : kThreads;
  // As many chunks per block as leave at least kManyBlocks blocks.
  const int64_t chunks = (columns + threads * kPerThread - 1) / (threads * kPerThread);
  const auto blocks_of = [&](int64_t of) { return (chunks + of - 1) / of; };
  while (!shape.few && launch_args.chunks < kMaxChunks &&
         blocks_of(2 * launch_args.chunks) * args.rows >= kManyBlocks)
    launch_args.chunks *= 2;
  const int64_t grid_rows = launch_args.chunks * kChunk / grid.b + 2;
  if ((grid_rows < grid.a ? grid_rows : grid.a) > kMaxGridRows)
    return "embed_cuda: a block would touch more grid rows than kMaxGridRows";
  constexpr int64_t kMaxRows = 65535;  // of a launch
  for (int64_t first = 0; first < args.rows; first += kMaxRows) {
    launch_args.first_row = first;
    const int64_t rows = args.rows - first < kMaxRows ? args.rows - first : kMaxRows;
    const dim3 blocks(static_cast<unsigned>(blocks_of(launch_args.chunks)), static_cast<unsigned>(rows), 1);
    if (const char* error = launch(kernel, blocks, dim3(threads, 1, 1), stream, launch_args)) return error;
  }
  return nullptr;
}

const char* load_embed_cuda() {
  for (DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (Family family : kFamilies)
      for (bool vector : {false, true})
        for (bool walks : {false, true})
          for (bool table : {false, true})
            for (bool few : {false, true})
              if (const char* error = load(kernel_of(dtype, family, {vector, walks, table, few}))) return error;
  return nullptr;
}

}  // namespace iet
