// Random inputs of the fuzzer: numbers, arrays whose end a sanitizer guards, and lines of a sample.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace fuzz {

struct Random {  // SplitMix64
  uint64_t state;

  uint64_t word() {
    uint64_t z = state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
  }
  // From `low` to `high`, both included.
  int64_t number(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(word() % (static_cast<uint64_t>(high - low) + 1));
  }
  bool one_in(int64_t chances) { return number(1, chances) == 1; }
  template <class T, size_t N>
  T of(const T (&choices)[N]) {
    return choices[number(0, N - 1)];
  }
};

// An array at the end of its own memory block, so that a sanitizer sees accesses beyond it. It starts at any
// address that the type allows.
template <class T>
class Array {
 public:
  Array(Random& random, int64_t count)
      : offset_(random.one_in(2) ? 0 : random.number(0, 15) * sizeof(T)),
        count_(count),
        block_(new uint8_t[offset_ + static_cast<size_t>(count) * sizeof(T)]) {}

  T* data() { return reinterpret_cast<T*>(block_.get() + offset_); }
  const T* data() const { return reinterpret_cast<const T*>(block_.get() + offset_); }
  int64_t size() const { return count_; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }

 private:
  size_t offset_;
  int64_t count_;
  std::unique_ptr<uint8_t[]> block_;
};

template <class T>
void copy(const Array<T>& from, Array<T>& to) {
  if (from.size() > 0) std::memcpy(to.data(), from.data(), static_cast<size_t>(from.size()) * sizeof(T));
}

// A call and its result as a line of JSON: numbers, and arrays as the hexadecimal digits of their bytes.
class Line {
 public:
  explicit Line(const char* op) : text_(std::string("{\"op\": \"") + op + "\"") {}

  Line& number(const char* name, int64_t value) {
    text_ += std::string(", \"") + name + "\": " + std::to_string(value);
    return *this;
  }
  Line& bytes(const char* name, const void* data, size_t size) {
    text_ += std::string(", \"") + name + "\": \"";
    constexpr char kDigits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; ++i) {
      const uint8_t byte = static_cast<const uint8_t*>(data)[i];
      text_ += kDigits[byte >> 4], text_ += kDigits[byte & 15];
    }
    text_ += "\"";
    return *this;
  }
  template <class T>
  Line& array(const char* name, const Array<T>& values) {
    return bytes(name, values.data(), static_cast<size_t>(values.size()) * sizeof(T));
  }
  void print() { std::printf("%s}\n", text_.c_str()); }

 private:
  std::string text_;
};

}  // namespace fuzz
