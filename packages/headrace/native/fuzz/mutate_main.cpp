// Feeds a fuzz target with mutated JPEGs, without a fuzzing engine:
//
//     mutate_jpeg COUNT SEED FILE…
//
// The same arguments give the same inputs. Ends with 1 where an input takes too long; the target
// and the sanitizers end the process themselves. Either way the input is left in mutate-failed.jpg.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "outcome.h"

// Of the sanitizers' runtime, where there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<uint8_t>;

constexpr unsigned kSecondsPerInput = 20;
constexpr const char* kFailedInput = "mutate-failed.jpg";

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // 0 to limit - 1; 0 where the limit is 0.
  size_t below(size_t limit) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return limit == 0 ? 0 : (z ^ z >> 31) % limit;
  }
  uint8_t byte() { return static_cast<uint8_t>(below(256)); }
  bool one_in(size_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

// A marker segment of the header: marker, length and payload.
struct Segment {
  size_t at;
  size_t size;
  uint8_t marker;

  size_t payload() const { return at + 4; }
  size_t payload_size() const { return size - 4; }
};

// As far as they can be followed, the first SOS included.
std::vector<Segment> segments_of(const Bytes& file) {
  std::vector<Segment> found;
  size_t at = 2;
  while (at + 4 <= file.size() && file[at] == 0xFF) {
    const size_t size = 2 + (static_cast<size_t>(file[at + 2]) << 8 | file[at + 3]);
    if (size < 4 || size > file.size() - at) break;
    found.push_back({at, size, file[at + 1]});
    if (file[at + 1] == 0xDA) break;
    at += size;
  }
  return found;
}

Bytes::iterator place(Bytes* file, size_t at) {
  return file->begin() + static_cast<std::ptrdiff_t>(at);
}

bool is_frame(const Segment& s) { return s.marker >= 0xC0 && s.marker <= 0xC2; }
bool is_table(const Segment& s) { return s.marker == 0xDB || s.marker == 0xC4; }

// A byte of the header as often as one of the data behind it.
size_t any_place(const Bytes& file, Random* random) {
  return random->below(random->one_in(2) ? std::min<size_t>(file.size(), 700) : file.size());
}

void flip_bits(Bytes* file, const Bytes& /*other*/, Random* random) {
  for (size_t n = 1 + random->below(8); n > 0; --n)
    (*file)[any_place(*file, random)] ^= static_cast<uint8_t>(1u << random->below(8));
}

void set_bytes(Bytes* file, const Bytes& /*other*/, Random* random) {
  const uint8_t values[] = {0x00, 0xFF, 0x7F, 0x80, 0xD9, random->byte()};
  for (size_t n = 1 + random->below(4); n > 0; --n)
    (*file)[any_place(*file, random)] = values[random->below(std::size(values))];
}

void truncate(Bytes* file, const Bytes& /*other*/, Random* random) {
  file->resize(1 + random->below(file->size()));
  if (random->one_in(2)) file->insert(file->end(), {0xFF, 0xD9});
}

void erase_bytes(Bytes* file, const Bytes& /*other*/, Random* random) {
  const size_t at = any_place(*file, random);
  const size_t n = std::min(file->size() - at, 1 + random->below(random->one_in(4) ? 500 : 8));
  file->erase(place(file, at), place(file, at + n));
}

void insert_bytes(Bytes* file, const Bytes& /*other*/, Random* random) {
  const size_t at = any_place(*file, random);
  Bytes some(1 + random->below(5));
  for (uint8_t& each : some) each = random->one_in(3) ? 0xFF : random->byte();
  if (random->one_in(3)) some = {0xFF, static_cast<uint8_t>(0xC0 + random->below(64))};
  file->insert(place(file, at), some.begin(), some.end());
}

// Bytes of the other file over some of this one's.
void copy_bytes(Bytes* file, const Bytes& other, Random* random) {
  const size_t from = random->below(other.size()), to = any_place(*file, random);
  const size_t n = std::min(
      {other.size() - from, file->size() - to, 1 + random->below(random->one_in(4) ? 2000 : 40)});
  std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), n, place(file, to));
}

// The other file's header before this one's data.
void splice_header(Bytes* file, const Bytes& other, Random* /*random*/) {
  const std::vector<Segment> ours = segments_of(*file), theirs = segments_of(other);
  if (ours.empty() || theirs.empty()) return;
  Bytes spliced(other.begin(),
                other.begin() + static_cast<std::ptrdiff_t>(theirs.back().at + theirs.back().size));
  spliced.insert(spliced.end(), place(file, ours.back().at + ours.back().size), file->end());
  *file = spliced;
}

// Height and width, precision and components, sampling factors.
void change_frame(Bytes* file, const Bytes& /*other*/, Random* random) {
  for (const Segment& s : segments_of(*file)) {
    if (!is_frame(s) || s.payload_size() < 9) continue;
    uint8_t* frame = file->data() + s.payload();
    const size_t kind = random->below(4);
    if (kind == 0) frame[random->below(6)] = random->byte();
    if (kind == 1) frame[7 + 3 * random->below(s.payload_size() / 3 - 2)] = random->byte();
    if (kind == 2) (*file)[s.at + 1] = static_cast<uint8_t>(0xC0 + random->below(16));
    if (kind < 3) continue;
    const size_t at = 1 + 2 * random->below(2);
    const size_t now = static_cast<size_t>(frame[at]) << 8 | frame[at + 1];
    const size_t sizes[] = {0, 1, 65535, 65500, now + 1, now - 1, 2 * now, random->below(65536)};
    const size_t size = sizes[random->below(std::size(sizes))];
    frame[at] = static_cast<uint8_t>(size >> 8);
    frame[at + 1] = static_cast<uint8_t>(size);
  }
}

// Removed, written twice, or moved to another place of the header.
void move_segment(Bytes* file, const Bytes& /*other*/, Random* random) {
  const std::vector<Segment> all = segments_of(*file);
  if (all.empty()) return;
  const Segment& s = all[random->below(all.size())];
  const Bytes copy(place(file, s.at), place(file, s.at + s.size));
  const size_t to = all[random->below(all.size())].at;
  if (random->one_in(3)) {
    file->insert(place(file, to), copy.begin(), copy.end());
    return;
  }
  file->erase(place(file, s.at), place(file, s.at + s.size));
  if (random->one_in(2)) return;
  file->insert(place(file, to > s.at ? to - s.size : to), copy.begin(), copy.end());
}

// Tables under another's number, or components that ask for another's.
void swap_tables(Bytes* file, const Bytes& /*other*/, Random* random) {
  for (const Segment& s : segments_of(*file)) {
    if (s.payload_size() < 3 || !random->one_in(2)) continue;
    uint8_t* payload = file->data() + s.payload();
    if (is_table(s)) payload[0] ^= static_cast<uint8_t>(random->one_in(3) ? 0x10 : 0x01);
    if (is_frame(s)) payload[s.payload_size() - 1 - 3 * random->below(2)] ^= 1;
    if (s.marker == 0xDA) payload[2] = static_cast<uint8_t>(random->below(4) * 17);
  }
}

// The interval, or a marker's number, or a marker that is missing.
void change_restarts(Bytes* file, const Bytes& /*other*/, Random* random) {
  for (const Segment& s : segments_of(*file)) {
    if (s.marker == 0xDD && random->one_in(2))
      (*file)[s.payload() + 1] = static_cast<uint8_t>(random->below(20));
  }
  for (size_t at = 2; at + 2 < file->size(); ++at) {
    const bool restart = (*file)[at] == 0xFF && ((*file)[at + 1] & 0xF8) == 0xD0;
    if (!restart || !random->one_in(20)) continue;
    if (random->one_in(2)) {
      (*file)[at + 1] = static_cast<uint8_t>(0xD0 + random->below(8));
    } else {
      file->erase(place(file, at), place(file, at + 2));
    }
  }
}

using Mutation = void (*)(Bytes* file, const Bytes& other, Random* random);
constexpr Mutation kMutations[] = {flip_bits,    set_bytes,   truncate,       erase_bytes,
                                   insert_bytes, copy_bytes,  splice_header,  change_frame,
                                   move_segment, swap_tables, change_restarts};

// As it is in one case of eight; else one change, or up to four.
Bytes mutated(const std::vector<Bytes>& seeds, Random* random) {
  Bytes file = seeds[random->below(seeds.size())];
  if (random->one_in(8)) return file;
  for (size_t n = random->one_in(2) ? 1 : 1 + random->below(4); n > 0 && !file.empty(); --n) {
    const Bytes& other = seeds[random->below(seeds.size())];
    kMutations[random->below(std::size(kMutations))](&file, other, random);
  }
  return file;
}

Bytes current;  // the input at hand: what a signal handler can reach

void save_current() {
  const int file = open(kFailedInput, O_CREAT | O_WRONLY | O_TRUNC, 0644);
  if (file < 0) return;
  const ssize_t written = write(file, current.data(), current.size());
  (void)written;
  close(file);
}

void on_alarm(int /*signal*/) {
  save_current();
  constexpr char kText[] = "BROKEN: an input takes too long\n";
  const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  (void)written;
  _exit(1);
}

void on_abort(int /*signal*/) {
  save_current();
  _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> seeds;
  for (int i = 3; i < argc; ++i) {
    std::ifstream stream(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    if (seeds.back().empty()) {
      std::fprintf(stderr, "%s is empty or can't be read\n", argv[i]);
      return 2;
    }
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "usage: %s COUNT SEED FILE…\n", argv[0]);
    return 2;
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(save_current);
  std::signal(SIGABRT, on_abort);
  std::signal(SIGALRM, on_alarm);
  Random random(std::strtoull(argv[2], nullptr, 10));
  const long count = std::strtol(argv[1], nullptr, 10);
  for (long i = 0; i < count; ++i) {
    current = mutated(seeds, &random);
    alarm(kSecondsPerInput);
    LLVMFuzzerTestOneInput(current.data(), current.size());
  }
  alarm(0);
  std::printf("%ld inputs, %zu gave pixels\n", count, inputs_decoded);
  return inputs_decoded > 0 ? 0 : 1;  // none at all: the target tests nothing
}
