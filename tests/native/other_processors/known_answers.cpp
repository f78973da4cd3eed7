// The loops of csrc/cpu without Python: requests as words on stdin, answers on stdout, one line each. Floats
// and 64-bit numbers are hexadecimal bits. test_other_processors.py says what is asked.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "../../../csrc/cpu/loops.h"

namespace {

using namespace iet;

template <class T>
std::vector<T> numbers(size_t count) {
  std::vector<T> made(count);
  for (T& value : made) std::cin >> value;
  return made;
}

template <class T>
std::vector<T> hexadecimal(size_t count) {
  std::vector<T> made(count);
  for (T& value : made) {
    std::string word;
    std::cin >> word;
    value = static_cast<T>(std::stoull(word, nullptr, 16));
  }
  return made;
}

template <class T>
void print(const char* format, const std::vector<T>& values) {
  for (const T& value : values) std::printf(format, value);
  std::puts("");
}

size_t number() { return numbers<size_t>(1)[0]; }

struct Profile {
  uint32_t vocab = static_cast<uint32_t>(number()), n_gram = static_cast<uint32_t>(number());
  uint32_t family = static_cast<uint32_t>(number());
  std::vector<int32_t> unmarked = numbers<int32_t>(number());
  size_t n_keys = number();
  std::vector<uint64_t> subkeys = hexadecimal<uint64_t>(2 * n_keys);
  std::vector<uint32_t> k_p = numbers<uint32_t>(n_keys);

  KernelParams params() const {
    return {vocab,
            n_gram,
            static_cast<Family>(family),
            unmarked.data(),
            static_cast<int64_t>(unmarked.size()),
            subkeys.data(),
            k_p.data(),
            static_cast<int64_t>(n_keys),
            make_grid(vocab)};
  }
};

void permute() {
  const uint32_t vocab = static_cast<uint32_t>(number());
  const std::vector<uint64_t> seed = hexadecimal<uint64_t>(1);
  const std::vector<uint32_t> ids = numbers<uint32_t>(number());
  const std::vector<uint64_t> seeds(ids.size(), seed[0]);
  std::vector<uint32_t> ranks(ids.size());
  permute_cpu(vocab, {seeds.data(), ids.data(), static_cast<int64_t>(ids.size()), ranks.data()});
  print("%u ", ranks);
}

void score() {
  const Profile profile;
  const std::vector<int64_t> ids = numbers<int64_t>(number());
  const std::vector<int32_t> counts = numbers<int32_t>(ids.size());
  std::vector<float> scores(ids.size() * profile.n_keys);
  score_cpu(profile.params(), {ids.data(), static_cast<int64_t>(ids.size()), scores.data(), counts.data()}, 2);
  std::vector<uint32_t> bits;
  for (float value : scores) bits.push_back(float_to_bits(value));
  print("%08x ", bits);
}

template <class Storage>
void embed(const Profile& profile, DType dtype, const char* format) {
  const size_t rows = number(), columns = number();
  const std::vector<int64_t> contexts = numbers<int64_t>(rows * (profile.n_gram - 1));
  const std::vector<int32_t> slots = numbers<int32_t>(rows), counts = numbers<int32_t>(rows);
  std::vector<float> kappas;
  for (uint32_t bits : hexadecimal<uint32_t>(rows)) kappas.push_back(bits_to_float(bits));
  std::vector<Storage> logits = hexadecimal<Storage>(rows * columns);
  const EmbedArgs args{logits.data(),
                       dtype,
                       static_cast<int64_t>(rows),
                       static_cast<int64_t>(columns),
                       static_cast<int64_t>(columns * sizeof(Storage)),
                       sizeof(Storage),
                       contexts.data(),
                       slots.data(),
                       kappas.data(),
                       counts.data()};
  if (embed_cpu(profile.params(), args, 2)) print(format, logits);
  else std::puts("refused");
}

}  // namespace

int main() {
  for (std::string op; std::cin >> op;) {
    if (op == "permute") permute();
    else if (op == "score") score();
    else if (op == "embed") {
      const Profile profile;
      const DType dtype = static_cast<DType>(number());
      if (dtype == DType::float32) embed<uint32_t>(profile, dtype, "%08x ");
      else embed<uint16_t>(profile, dtype, "%04x ");
    } else {
      std::fprintf(stderr, "unknown request %s\n", op.c_str());
      return 1;
    }
  }
}
