// iet.native._cuda: convert, check, release the GIL, call. Loaded on first use only. Calls use the current
// device, which iet/native/cuda.py sets with torch's device guard.
#include "../bindings.h"

#include <string>

#include "../ops.h"

namespace py = pybind11;
using namespace iet;

namespace {

// Call a function without the GIL, and raise BackendUnavailable with the message that it returns. Engines
// handle errors of this package.
template <class Function>
void call(Function&& function) {
  const char* error;
  {
    py::gil_scoped_release release;
    error = function();
  }
  if (error == nullptr) return;
  const py::object raised = py::module_::import("iet.errors").attr("BackendUnavailable");
  PyErr_SetString(raised.ptr(), (std::string("CUDA: ") + error).c_str());
  throw py::error_already_set();
}

struct PyKernelParams {
  CudaKernelParams params;

  PyKernelParams(uint32_t vocab, uint32_t n_gram, uint32_t family, uintptr_t unmarked_bits,
                 uintptr_t unmarked_chunks, uintptr_t subkeys, uintptr_t steps, int64_t n_keys)
      : params{vocab,
               n_gram,
               static_cast<Family>(family),
               at<uint32_t>(unmarked_bits),
               at<uint32_t>(unmarked_chunks),
               at<uint64_t>(subkeys),
               at<uint32_t>(steps),
               n_keys} {
    check_params(vocab, n_gram, params.family);
  }
};

void read_rows(const PyKernelParams& self, uintptr_t stream, const PyRows& rows, Address row_index,
               int64_t logits_rows, Address caller_counts, uintptr_t refused, uintptr_t records) {
  const CudaRowsArgs args{rows_args(rows),         integers(row_index),  logits_rows,
                          integers(caller_counts), at<int32_t>(refused), at<RowRecord>(records)};
  call([&] { return rows_cuda(self.params, args, at<void>(stream)); });
}

void embed_logits(const PyKernelParams& self, uintptr_t stream, uintptr_t logits, int32_t dtype,
                  int64_t logits_rows, int64_t columns, int64_t row_stride, int64_t element_stride,
                  uintptr_t source, int64_t rows, Address row_index, uintptr_t records) {
  check(dtype >= 0 && dtype <= 2, "unknown dtype");
  const CudaEmbedArgs args{at<void>(logits),    static_cast<DType>(dtype),
                           logits_rows,         columns,
                           row_stride,          element_stride,
                           at<void>(source),    rows,
                           integers(row_index), at<RowRecord>(records)};
  call([&] { return embed_cuda(self.params, args, at<void>(stream)); });
}

void choose_tokens(const PyKernelParams& self, uintptr_t stream, uintptr_t logits, int32_t dtype,
                   int64_t logits_rows, int64_t columns, int64_t row_stride, int64_t element_stride,
                   uintptr_t source, int64_t rows, Address row_index, uintptr_t records, Address sequences,
                   uintptr_t filters, uintptr_t scratch, uintptr_t chosen) {
  check(dtype >= 0 && dtype <= 2, "unknown dtype");
  check(self.params.family == Family::gumbel, "the family chooses no token");
  const CudaChooseArgs args{
      {at<void>(logits), static_cast<DType>(dtype), logits_rows, columns, row_stride, element_stride,
       at<void>(source), rows, integers(row_index), at<RowRecord>(records)},
      integers(sequences),
      at<Filter>(filters),
      at<void>(scratch),
      at<int64_t>(chosen)};
  call([&] { return choose_cuda(self.params, args, at<void>(stream)); });
}

void score_ids(const PyKernelParams& self, uintptr_t stream, Address token_ids, uintptr_t counts,
               int64_t tokens, uintptr_t scores) {
  const CudaScoreArgs args{integers(token_ids), tokens, at<float>(scores), at<int32_t>(counts)};
  call([&] { return score_cuda(self.params, args, at<void>(stream)); });
}

void score_id_spans(const PyKernelParams& self, uintptr_t stream, Address token_ids, uintptr_t counts,
                    int64_t tokens, uintptr_t boundaries, int64_t spans, uintptr_t counted, uintptr_t sums) {
  const CudaScoreSpansArgs args{integers(token_ids),  tokens,           at<int64_t>(boundaries), spans,
                                at<uint8_t>(counted), at<double>(sums), at<int32_t>(counts)};
  call([&] { return score_spans_cuda(self.params, args, at<void>(stream)); });
}

void load_kernels() {
  call([] { return load_rows_cuda(); });
  call([] { return load_embed_cuda(); });
  call([] { return load_choose_cuda(); });
  call([] { return load_score_cuda(); });
}

uintptr_t zeroed_host_memory(int64_t bytes) {
  void* memory = nullptr;
  call([&] {
    const char* error;
    memory = host_memory(bytes, &error);
    return error;
  });
  return reinterpret_cast<uintptr_t>(memory);
}

void permute_ids(uint32_t vocab, uint32_t k_p, uintptr_t seeds, uintptr_t ids, int64_t count, uintptr_t ranks,
                 uintptr_t phis) {
  const PermuteArgs args{at<uint64_t>(seeds), at<uint32_t>(ids), count, at<uint32_t>(ranks)};
  call([&] { return permute_cuda(vocab, k_p, args, at<float>(phis)); });
}

}  // namespace

PYBIND11_MODULE(_cuda, m) {
  m.attr("scheme_version") = kSchemeVersion;
#if defined(IET_CUDA_BUILD)  // version of nvcc and architectures, from CMake
  m.attr("build") = IET_CUDA_BUILD;
#endif
  m.attr("refusals") = static_cast<int>(kRefusals);
  m.def("device_count", &device_count);
  m.def("device_error", &device_error);
  m.def("load_kernels", &load_kernels);
  m.def("host_memory", &zeroed_host_memory);
  m.def("permute", &permute_ids);
  m.attr("chunk") = kChunk;
  m.def("choose_scratch", &choose_scratch);
  py::class_<PyKernelParams>(m, "KernelParams")
      .def(py::init<uint32_t, uint32_t, uint32_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, int64_t>())
      .def("rows", &read_rows)
      .def("embed", &embed_logits)
      .def("choose", &choose_tokens)
      .def("score", &score_ids)
      .def("score_spans", &score_id_spans);
}
