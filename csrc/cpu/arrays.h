// NumPy arrays as arguments of loops over texts: of one type, with any strides, never copied.
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <type_traits>

namespace iet {

// T[size]; const if it is only read.
template <class T>
struct Row {
  T* data = nullptr;
  int64_t stride = 0, size = 0;
  T& operator[](int64_t i) const { return data[i * stride]; }
  Row from(int64_t begin, int64_t end) const { return {data + begin * stride, stride, end - begin}; }
};

// T[rows, columns]
template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t row_stride = 0, stride = 0, rows = 0, columns = 0;
  T& operator()(int64_t i, int64_t j) const { return data[i * row_stride + j * stride]; }
  Row<T> operator[](int64_t i) const { return {data + i * row_stride, stride, columns}; }
};

// Packed, with `Dimensions` dimensions.
template <class T, int Dimensions>
struct Packed {
  T* data = nullptr;
};

}  // namespace iet

namespace pybind11::detail {

// Arrays of another type or number of dimensions, and read-only arrays for outputs, raise TypeError.
template <class T>
inline bool fits(handle source, ssize_t dimensions, array& values) {
  using Value = std::remove_const_t<T>;
  if (!array_t<Value, 0>::check_(source)) return false;
  values = reinterpret_borrow<array>(source);
  if (values.ndim() != dimensions || !(std::is_const_v<T> || values.writeable())) return false;
  for (ssize_t i = 0; i < dimensions; ++i)
    if (values.strides(i) % static_cast<ssize_t>(sizeof(Value)) != 0) return false;
  return true;
}

template <class T>
inline T* data_of(const array& values) {
  return static_cast<T*>(const_cast<void*>(values.data()));
}

template <class T>
struct type_caster<iet::Row<T>> {
  PYBIND11_TYPE_CASTER(iet::Row<T>, const_name("ndarray"));
  bool load(handle source, bool) {
    array values;
    if (!fits<T>(source, 1, values)) return false;
    value = {data_of<T>(values), values.strides(0) / static_cast<ssize_t>(sizeof(T)), values.shape(0)};
    return true;
  }
};

template <class T>
struct type_caster<iet::Matrix<T>> {
  PYBIND11_TYPE_CASTER(iet::Matrix<T>, const_name("ndarray"));
  bool load(handle source, bool) {
    array values;
    if (!fits<T>(source, 2, values)) return false;
    constexpr ssize_t size = sizeof(T);
    value = {data_of<T>(values), values.strides(0) / size, values.strides(1) / size, values.shape(0),
             values.shape(1)};
    return true;
  }
};

template <class T, int Dimensions>
struct type_caster<iet::Packed<T, Dimensions>> {
  using Result = iet::Packed<T, Dimensions>;
  PYBIND11_TYPE_CASTER(Result, const_name("ndarray"));
  bool load(handle source, bool) {
    array values;
    if (!array_t<T, array::c_style>::check_(source) || !fits<T>(source, Dimensions, values)) return false;
    value = {data_of<T>(values)};
    return true;
  }
};

}  // namespace pybind11::detail
