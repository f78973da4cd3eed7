// Foreign marks in iet.native._cpu: convert, check, release the GIL, call. No arithmetic.
#include "../bindings.h"

#include "schemes.h"

namespace py = pybind11;

namespace iet {
namespace {

void waterfall_ranks(uint32_t vocab, uint32_t n_gram, uintptr_t keys, int64_t n_keys, uintptr_t contexts,
                     int64_t n_contexts, uintptr_t offsets, uintptr_t tokens, uintptr_t ranks,
                     int num_threads) {
  check_vocab(vocab);
  check(n_gram >= 2 && n_gram <= 16, "n_gram out of range");
  py::gil_scoped_release release;
  const WaterfallArgs args{vocab,
                           n_gram,
                           at<uint32_t>(keys),
                           n_keys,
                           at<uint32_t>(contexts),
                           n_contexts,
                           at<int64_t>(offsets),
                           at<uint32_t>(tokens),
                           at<uint32_t>(ranks)};
  waterfall_ranks_cpu(args, num_threads);
}

void waterfall_permute(uint32_t vocab, uintptr_t seed, uint32_t length, uintptr_t ranks) {
  check_vocab(vocab);
  check(length >= 1 && length <= 16, "length out of range");
  py::gil_scoped_release release;
  waterfall_permute_cpu(vocab, at<uint32_t>(seed), length, at<uint32_t>(ranks));
}

void engine_scores(uint32_t prf, uint32_t rule, uint32_t limit, float scale, float offset, uintptr_t words,
                   uint32_t width, uintptr_t scored, int64_t tokens, uintptr_t keys, int64_t n_keys,
                   uintptr_t scores, int num_threads) {
  check(prf <= 4 && rule <= 3, "unknown prf or rule");
  check(width >= (prf == 3 ? 0 : 1) && width <= (prf <= 1 ? 64 : 16), "width out of range");
  py::gil_scoped_release release;
  const EngineArgs args{static_cast<EnginePrf>(prf),
                        static_cast<EngineRule>(rule),
                        limit,
                        scale,
                        offset,
                        at<uint32_t>(words),
                        width,
                        at<bool>(scored),
                        tokens,
                        at<uint64_t>(keys),
                        n_keys,
                        at<float>(scores)};
  engine_scores_cpu(args, num_threads);
}

void kgw_green(uint32_t vocab, uint32_t green, uintptr_t seeds, int64_t n_seeds, uintptr_t offsets,
               uintptr_t tokens, uintptr_t is_green, int num_threads) {
  check(vocab >= 2 && vocab <= 1u << 24 && green <= vocab, "vocab_size out of range");
  py::gil_scoped_release release;
  const GreenArgs args{vocab,
                       green,
                       at<uint32_t>(seeds),
                       n_seeds,
                       at<int64_t>(offsets),
                       at<uint32_t>(tokens),
                       at<uint8_t>(is_green),
                       nullptr};
  kgw_green_cpu(args, num_threads);
}

void synthid_tables(uint32_t bits, uintptr_t g_values, uintptr_t keys, int64_t n_keys, uintptr_t weights,
                    uint32_t depth, bool wide, uintptr_t tables, int num_threads) {
  check(bits <= 16, "bits out of range");
  py::gil_scoped_release release;
  SynthidArgs args{};
  args.bits = bits;
  args.g_values = at<uint8_t>(g_values);
  args.keys = at<uint32_t>(keys);
  args.weights = at<uint32_t>(weights);
  args.depth = depth;
  args.n_keys = n_keys;
  args.wide = wide;
  args.tables = at<uint8_t>(tables);
  args.stride = n_keys;
  synthid_tables_cpu(args, num_threads);
}

void synthid_scores(uint32_t bits, bool wide, uintptr_t tables, int64_t stride, int64_t n_keys, uint32_t n_gram,
                    uintptr_t words, uintptr_t scored, int64_t tokens, float scale, float offset,
                    uintptr_t scores, int num_threads) {
  check(bits <= 16, "bits out of range");
  py::gil_scoped_release release;
  SynthidArgs args{};
  args.bits = bits;
  args.n_keys = n_keys;
  args.wide = wide;
  args.tables = at<uint8_t>(tables);
  args.stride = stride;
  args.n_gram = n_gram;
  args.words = at<uint32_t>(words);
  args.scored = at<bool>(scored);
  args.tokens = tokens;
  args.scale = scale;
  args.offset = offset;
  args.scores = at<float>(scores);
  synthid_scores_cpu(args, num_threads);
}

void torch_permute(uint32_t count, uint32_t seed, uintptr_t permutation) {
  py::gil_scoped_release release;
  torch_permute_cpu(count, seed, at<uint32_t>(permutation));
}

}  // namespace

void bind_foreign(py::module_& m) {
  m.def("waterfall_ranks", &waterfall_ranks);
  m.def("waterfall_permute", &waterfall_permute);
  m.def("engine_scores", &engine_scores);
  m.def("kgw_green", &kgw_green);
  m.def("synthid_tables", &synthid_tables);
  m.def("synthid_scores", &synthid_scores);
  m.def("torch_permute", &torch_permute);
}

}  // namespace iet
