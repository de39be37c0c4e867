// Runs a target on damaged copies of seed files, the same ones for the same seed, without a fuzzing
// engine:
//   mutate_X COUNT SEED FILE…
// Ends with 1 where an input takes longer than kSecondsPerInput; a sanitizer's report ends it by
// itself.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "outcome.h"

namespace {

constexpr unsigned kSecondsPerInput = 20;

using Bytes = std::vector<uint8_t>;

void on_alarm(int) {
  constexpr char kMessage[] = "an input takes too long\n";
  if (write(STDERR_FILENO, kMessage, sizeof kMessage - 1) < 0) _exit(2);
  _exit(1);
}

class Mutator {
 public:
  Mutator(std::vector<Bytes> seeds, unsigned seed) : seeds_(std::move(seeds)), random_(seed) {}

  Bytes next() {
    Bytes file = seeds_[below(seeds_.size())];
    const size_t changes = below(6);  // 0: as it is
    for (size_t i = 0; i < changes && file.size() > 4; ++i) change(&file);
    return file;
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  // A place among the markers and tables as often as one in the pixels' data.
  size_t place(const Bytes& file) {
    return below(below(2) == 0 ? std::min<size_t>(file.size(), 700) : file.size());
  }

  void change(Bytes* file) {
    const size_t at = place(*file);
    switch (below(9)) {
      case 0:
        (*file)[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 1:
        (*file)[at] = static_cast<uint8_t>(random_());
        break;
      case 2:
        file->resize(at + 1);
        break;
      case 3:
        file->erase(file->begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 4:
        file->insert(file->begin() + static_cast<std::ptrdiff_t>(at),
                     static_cast<uint8_t>(random_()));
        break;
      case 5:
        set_size(file);
        break;
      case 6:
        move_segment(file);
        break;
      case 7:
        splice(file, at);
        break;
      default:
        (*file)[at] = 0xFF;
        if (at + 1 < file->size()) (*file)[at + 1] = static_cast<uint8_t>(0xC0 + below(0x40));
        break;
    }
  }

  // Huge, tiny or odd dimensions in the frame header.
  void set_size(Bytes* file) {
    for (size_t i = 2; i + 9 < file->size(); ++i) {
      if ((*file)[i] != 0xFF || ((*file)[i + 1] & 0xF0) != 0xC0 || (*file)[i + 1] == 0xC4) continue;
      for (size_t k = 5; k < 9; ++k) {
        if (below(2) == 0) (*file)[i + k] = static_cast<uint8_t>(below(3) == 0 ? 0xFF : random_());
      }
      return;
    }
  }

  // A marker segment doubled, removed, or put elsewhere.
  void move_segment(Bytes* file) {
    for (size_t i = 2; i + 4 < file->size(); ++i) {
      if ((*file)[i] != 0xFF || (*file)[i + 1] < 0xC0 || below(3) != 0) continue;
      const size_t length = 2 + static_cast<size_t>((*file)[i + 2] << 8 | (*file)[i + 3]);
      if (length > file->size() - i) return;
      const auto begin = file->begin() + static_cast<std::ptrdiff_t>(i);
      const Bytes segment(begin, begin + static_cast<std::ptrdiff_t>(length));
      if (below(2) == 0) file->erase(begin, begin + static_cast<std::ptrdiff_t>(length));
      const size_t to = std::min(file->size(), 2 + below(600));
      if (below(3) != 0)
        file->insert(file->begin() + static_cast<std::ptrdiff_t>(to), segment.begin(),
                     segment.end());
      return;
    }
  }

  // The end of another file.
  void splice(Bytes* file, size_t at) {
    const Bytes& other = seeds_[below(seeds_.size())];
    const size_t from = below(other.size());
    file->resize(at);
    file->insert(file->end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
  }

  std::vector<Bytes> seeds_;
  std::mt19937 random_;
};

Bytes read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "can't read %s\n", path);
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s COUNT SEED FILE…\n", argv[0]);
    return 2;
  }
  const int count = std::atoi(argv[1]);
  std::vector<Bytes> seeds;
  for (int i = 3; i < argc; ++i) seeds.push_back(read_file(argv[i]));
  Mutator mutator(std::move(seeds), static_cast<unsigned>(std::atoi(argv[2])));
  std::signal(SIGALRM, on_alarm);
  for (int i = 0; i < count; ++i) {
    const Bytes input = mutator.next();
    alarm(kSecondsPerInput);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  alarm(0);
  std::printf("%d inputs, %zu gave pixels\n", count, inputs_decoded);
  return inputs_decoded > 0 ? 0 : 1;  // none at all: the target tests nothing
}
