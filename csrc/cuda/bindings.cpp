// iet._cuda: convert, release the GIL, call. Loaded on first use only.
#include <pybind11/pybind11.h>

#include <stdexcept>

#include "permute.h"

namespace py = pybind11;

PYBIND11_MODULE(_cuda, m) {
  m.attr("scheme_version") = iet::kSchemeVersion;
  m.def("device_count", &iet::device_count);
  m.def("permute", [](uint32_t vocab, uint32_t k_p, uintptr_t seeds, uintptr_t ids, int64_t count,
                      uintptr_t ranks, uintptr_t phis) {
    const iet::PermuteArgs args{reinterpret_cast<uint64_t*>(seeds), reinterpret_cast<uint32_t*>(ids), count,
                                reinterpret_cast<uint32_t*>(ranks)};
    py::gil_scoped_release release;
    if (const char* error = iet::permute_cuda(vocab, k_p, args, reinterpret_cast<float*>(phis)))
      throw std::runtime_error(error);
  });
}
