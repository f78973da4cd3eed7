// iet.native._cpu: convert, check, release the GIL, call. No arithmetic; addresses come as integers, and Python
// keeps the arrays behind them alive and of the right shape.
#include <pybind11/pybind11.h>

#include <string>

#include "cpu/threads.h"
#include "ops.h"

namespace py = pybind11;
using namespace iet;

namespace {

template <class T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

struct PyMarking {
  Marking marking;

  PyMarking(uint32_t vocab, uint32_t n_gram, uint32_t family, uintptr_t unmarked, int64_t n_unmarked,
            uintptr_t subkeys, uintptr_t k_p, int64_t n_keys)
      : marking{vocab,
                n_gram,
                static_cast<Family>(family),
                at<int32_t>(unmarked),
                n_unmarked,
                at<uint64_t>(subkeys),
                at<uint32_t>(k_p),
                n_keys,
                {}} {
    if (vocab < 1 || vocab > (1u << 24)) throw py::value_error("vocab_size out of range");
    if (n_gram < 2 || n_gram > 16) throw py::value_error("n_gram out of range");
    if (family >= kFamilies) throw py::value_error("unknown family");
    marking.grid = make_grid(vocab);
  }
};

bool embed_logits(const PyMarking& self, uintptr_t logits, int32_t dtype, int64_t rows, int64_t columns,
                  int64_t row_stride, int64_t element_stride, uintptr_t contexts, uintptr_t slots,
                  uintptr_t kappas, int num_threads) {
  if (dtype < 0 || dtype > 2) throw py::value_error("unknown dtype");
  py::gil_scoped_release release;
  const EmbedArgs args = {at<void>(logits),
                          static_cast<DType>(dtype),
                          rows,
                          columns,
                          row_stride,
                          element_stride,
                          at<int64_t>(contexts),
                          at<int32_t>(slots),
                          at<float>(kappas)};
  return embed_cpu(self.marking, args, num_threads);
}

void score_ids(const PyMarking& self, uintptr_t token_ids, int64_t tokens, uintptr_t scores, int num_threads) {
  py::gil_scoped_release release;
  score_cpu(self.marking, {at<int64_t>(token_ids), tokens, at<float>(scores)}, num_threads);
}

void score_spans(const PyMarking& self, uintptr_t token_ids, uintptr_t counted, uintptr_t boundaries,
                 int64_t spans, uintptr_t sums, int num_threads) {
  py::gil_scoped_release release;
  score_spans_cpu(
      self.marking,
      {at<int64_t>(token_ids), at<bool>(counted), at<int64_t>(boundaries), spans, at<int64_t>(sums)},
      num_threads);
}

void permute_known(uint32_t vocab, uintptr_t seeds, uintptr_t ids, int64_t count, uintptr_t ranks) {
  py::gil_scoped_release release;
  permute_cpu(vocab, {at<uint64_t>(seeds), at<uint32_t>(ids), count, at<uint32_t>(ranks)});
}

void waterfall_ranks(uint32_t vocab, uint32_t n_gram, uintptr_t keys, int64_t n_keys, uintptr_t contexts,
                     int64_t n_contexts, uintptr_t offsets, uintptr_t tokens, uintptr_t ranks,
                     int num_threads) {
  if (vocab < 1 || vocab > (1u << 24)) throw py::value_error("vocab_size out of range");
  if (n_gram < 2 || n_gram > 16) throw py::value_error("n_gram out of range");
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
  if (vocab < 1 || vocab > (1u << 24)) throw py::value_error("vocab_size out of range");
  if (length < 1 || length > 16) throw py::value_error("length out of range");
  py::gil_scoped_release release;
  waterfall_permute_cpu(vocab, at<uint32_t>(seed), length, at<uint32_t>(ranks));
}

void engine_gumbel(uint32_t prf, uintptr_t words, uint32_t width, uintptr_t scored, int64_t tokens,
                   uintptr_t keys, int64_t n_keys, uintptr_t scores, int num_threads) {
  if (prf > 1) throw py::value_error("unknown prf");
  if (width < 1 || width > 64) throw py::value_error("width out of range");
  py::gil_scoped_release release;
  const EngineGumbelArgs args{static_cast<EnginePrf>(prf),
                              at<uint32_t>(words),
                              width,
                              at<bool>(scored),
                              tokens,
                              at<uint64_t>(keys),
                              n_keys,
                              at<float>(scores)};
  engine_gumbel_cpu(args, num_threads);
}

void kgw_green(uint32_t vocab, uint32_t green, uintptr_t seeds, int64_t n_seeds, uintptr_t offsets,
               uintptr_t tokens, uintptr_t is_green, int num_threads) {
  if (vocab < 2 || vocab > (1u << 24) || green > vocab) throw py::value_error("vocab_size out of range");
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
  if (bits > 16) throw py::value_error("bits out of range");
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
  if (bits > 16) throw py::value_error("bits out of range");
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

PYBIND11_MODULE(_cpu, m) {
  m.attr("scheme_version") = kSchemeVersion;
  py::class_<PyMarking>(m, "Marking")
      .def(py::init<uint32_t, uint32_t, uint32_t, uintptr_t, int64_t, uintptr_t, uintptr_t, int64_t>())
      .def("embed", &embed_logits)
      .def("score", &score_ids)
      .def("score_spans", &score_spans);
  m.def("permute", &permute_known);
  m.def("waterfall_ranks", &waterfall_ranks);
  m.def("waterfall_permute", &waterfall_permute);
  m.def("engine_gumbel", &engine_gumbel);
  m.def("kgw_green", &kgw_green);
  m.def("synthid_tables", &synthid_tables);
  m.def("synthid_scores", &synthid_scores);
  m.def("torch_permute", &torch_permute);
  m.def("num_threads", &default_num_threads);
  m.def("isa", [] { return cpu_loops().isa; });
  m.def("isas", [] { return std::string(cpu_isas()); });
  m.def("slots", [](const std::string& isa) {  // addresses of its loops, for the test that none is empty
    const CpuLoops* loops = find_cpu_loops(isa.c_str());
    if (loops == nullptr) throw py::value_error("unknown instruction set");
    const auto address = [](auto* function) { return reinterpret_cast<uintptr_t>(function); };
    return py::make_tuple(
        address(loops->embed_rows), address(loops->score_tile), address(loops->score_spans_tile),
        address(loops->permute_ids), address(loops->waterfall_ranks), address(loops->waterfall_permute),
        address(loops->engine_gumbel_tile), address(loops->kgw_green), address(loops->synthid_tables),
        address(loops->synthid_tile), address(loops->torch_permute));
  });
  m.def("select_isa", [](const std::string& isa) { return select_cpu_isa(isa.c_str()); });
}
