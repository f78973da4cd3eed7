// iet.native._cpu: convert, check, release the GIL, call. No arithmetic.
#include "../bindings.h"

#include <string>

#include "../foreign/schemes.h"

namespace py = pybind11;

namespace iet {

void bind_foreign(py::module_& m);  // csrc/foreign/bindings.cpp
void bind_evidence_loops(py::module_& loops);
void bind_text_loops(py::module_& loops);
void bind_chain_loops(py::module_& loops);
void bind_span_loops(py::module_& loops);

namespace {

struct PyKernelParams {
  KernelParams params;

  PyKernelParams(uint32_t vocab, uint32_t n_gram, uint32_t family, uintptr_t unmarked, int64_t n_unmarked,
                 uintptr_t subkeys, uintptr_t k_p, int64_t n_keys)
      : params{vocab,
               n_gram,
               static_cast<Family>(family),
               at<int32_t>(unmarked),
               n_unmarked,
               at<uint64_t>(subkeys),
               at<uint32_t>(k_p),
               n_keys,
               {}} {
    check_params(vocab, n_gram, params.family);
    params.grid = make_grid(vocab);
  }
};

// What embed and choose take first.
EmbedArgs embed_args(uintptr_t logits, int32_t dtype, int64_t rows, int64_t columns, int64_t row_stride,
                     int64_t element_stride, uintptr_t contexts, uintptr_t slots, uintptr_t kappas,
                     uintptr_t counts) {
  check(dtype >= 0 && dtype <= 2, "unknown dtype");
  return {at<void>(logits),
          static_cast<DType>(dtype),
          rows,
          columns,
          row_stride,
          element_stride,
          at<int64_t>(contexts),
          at<int32_t>(slots),
          at<float>(kappas),
          at<int32_t>(counts)};
}

bool embed_logits(const PyKernelParams& self, uintptr_t logits, int32_t dtype, int64_t rows, int64_t columns,
                  int64_t row_stride, int64_t element_stride, uintptr_t contexts, uintptr_t slots,
                  uintptr_t kappas, uintptr_t counts, int num_threads) {
  const EmbedArgs args =
      embed_args(logits, dtype, rows, columns, row_stride, element_stride, contexts, slots, kappas, counts);
  py::gil_scoped_release release;
  return embed_cpu(self.params, args, num_threads);
}

bool choose_tokens(const PyKernelParams& self, uintptr_t logits, int32_t dtype, int64_t rows, int64_t columns,
                   int64_t row_stride, int64_t element_stride, uintptr_t contexts, uintptr_t slots,
                   uintptr_t kappas, uintptr_t counts, uintptr_t filters, bool force, uintptr_t chosen,
                   int num_threads) {
  check(self.params.family == Family::gumbel, "the family chooses no token");
  const EmbedArgs args =
      embed_args(logits, dtype, rows, columns, row_stride, element_stride, contexts, slots, kappas, counts);
  py::gil_scoped_release release;
  return choose_cpu(self.params, {args, at<Filter>(filters), force, at<int64_t>(chosen)}, num_threads);
}

bool read_rows(const PyKernelParams& self, const PyRows& rows, uintptr_t contexts, uintptr_t slots,
               uintptr_t kappas, uintptr_t counts) {
  const ReadRowsArgs args{rows_args(rows), at<int64_t>(contexts), at<int32_t>(slots), at<float>(kappas),
                          at<int32_t>(counts)};
  py::gil_scoped_release release;
  return read_rows_cpu(self.params, args);
}

void score_ids(const PyKernelParams& self, uintptr_t token_ids, uintptr_t counts, int64_t tokens,
               uintptr_t scores, int num_threads) {
  py::gil_scoped_release release;
  score_cpu(self.params, {at<int64_t>(token_ids), tokens, at<float>(scores), at<int32_t>(counts)}, num_threads);
}

void score_spans(const PyKernelParams& self, uintptr_t token_ids, uintptr_t counts, uintptr_t counted,
                 uintptr_t boundaries, int64_t spans, uintptr_t sums, int num_threads) {
  py::gil_scoped_release release;
  score_spans_cpu(self.params,
                  {at<int64_t>(token_ids), at<uint8_t>(counted), at<int64_t>(boundaries), spans,
                   at<int64_t>(sums), at<int32_t>(counts)},
                  num_threads);
}

void permute_known(uint32_t vocab, uintptr_t seeds, uintptr_t ids, int64_t count, uintptr_t ranks) {
  py::gil_scoped_release release;
  permute_cpu(vocab, {at<uint64_t>(seeds), at<uint32_t>(ids), count, at<uint32_t>(ranks)});
}

std::string isas() {  // supported instruction sets, the best one last
  std::string names = cpu_isa_name(0);
  for (int isa = 1; isa < cpu_isas(); ++isa) names += std::string(" ") + cpu_isa_name(isa);
  return names;
}

int isa_number(const std::string& name) {  // -1: not supported here
  for (int isa = 0; isa < cpu_isas(); ++isa)
    if (name == cpu_isa_name(isa)) return isa;
  return -1;
}

bool select_isa(const std::string& name) {
  const int isa = isa_number(name);
  if (isa >= 0) select_cpu_isa(isa);
  return isa >= 0;
}

// Addresses of an instruction set's loops, for the test that none is null.
py::list loop_addresses(const std::string& name) {
  const int isa = isa_number(name);
  check(isa >= 0, "unknown instruction set");
  const OwnLoops& own = own_loops(isa);
  const ForeignLoops& foreign = foreign_loops(isa);
  py::list addresses;
#define IET_APPEND_OWN(name, ...) addresses.append(reinterpret_cast<uintptr_t>(own.name));
#define IET_APPEND_FOREIGN(name, ...) addresses.append(reinterpret_cast<uintptr_t>(foreign.name));
  IET_OWN_LOOPS(IET_APPEND_OWN)
  IET_FOREIGN_LOOPS(IET_APPEND_FOREIGN)
  return addresses;
}

}  // namespace
}  // namespace iet

PYBIND11_MODULE(_cpu, m) {
  using namespace iet;
  m.attr("scheme_version") = kSchemeVersion;
  py::class_<PyKernelParams>(m, "KernelParams")
      .def(py::init<uint32_t, uint32_t, uint32_t, uintptr_t, int64_t, uintptr_t, uintptr_t, int64_t>())
      .def("embed", &embed_logits)
      .def("choose", &choose_tokens)
      .def("read_rows", &read_rows)
      .def("score", &score_ids)
      .def("score_spans", &score_spans);
  m.def("permute", &permute_known);
  m.def("num_threads", &default_num_threads);
  m.def("isa", [] { return cpu_isa_name(cpu_isa()); });
  m.def("isas", &isas);
  m.def("select_isa", &select_isa);
  m.def("loop_addresses", &loop_addresses);
  bind_foreign(m);
  py::module_ loops = m.def_submodule("loops");
  bind_evidence_loops(loops);
  bind_text_loops(loops);
  bind_chain_loops(loops);
  bind_span_loops(loops);
}
