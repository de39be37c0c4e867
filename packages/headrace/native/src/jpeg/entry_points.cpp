#include "entry_points.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "own_entropy.h"
#include "own_frame.h"
#include "own_scan.h"

namespace headrace::jpeg {
namespace {

constexpr size_t kChecksumOffset = 16;
constexpr size_t kHeaderSize = 20;
constexpr int kMaxDistance = 65535;
constexpr int kMinDistance = 4;   // of those chosen here: closer ones were measured to gain nothing
constexpr size_t kMaxShare = 50;  // the index is at most 1/50 of the file
constexpr uint8_t kVersion = 1;

uint32_t load32(const uint8_t* at) {
  return static_cast<uint32_t>(at[0]) | static_cast<uint32_t>(at[1]) << 8 |
         static_cast<uint32_t>(at[2]) << 16 | static_cast<uint32_t>(at[3]) << 24;
}

void store32(uint32_t value, uint8_t* at) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

// Eight bytes at a time. It has to notice another file, or a damaged index, not an attacker.
uint32_t checksum(const uint8_t* data, size_t size, uint32_t seed = 0) {
  uint64_t hash = size ^ seed;
  for (size_t i = 0; i < size; i += 8) {
    uint64_t word = 0;
    if (size - i >= 8) {
      word = load32(data + i) | static_cast<uint64_t>(load32(data + i + 4)) << 32;
    } else {
      for (size_t j = i; j < size; ++j) word |= static_cast<uint64_t>(data[j]) << (8 * (j - i));
    }
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash);
}

// Of an index: all of it but the checksum itself.
uint32_t index_checksum(const uint8_t* index, size_t size) {
  return checksum(index + kHeaderSize, size - kHeaderSize, checksum(index, kChecksumOffset));
}

// The distance that build_entry_points() chooses; 0: none is short enough.
int choose_distance(const own::Frame& frame, size_t entry_size, size_t file_size) {
  const size_t row = entry_size * static_cast<size_t>(frame.mcu_rows);
  if (file_size / kMaxShare < kHeaderSize + row) return 0;
  const int most = frame.mcus_per_row / kMinDistance + 1;
  const size_t fit = (file_size / kMaxShare - kHeaderSize) / row;
  const int per_row = static_cast<int>(std::min(fit, static_cast<size_t>(most)));
  return std::max((frame.mcus_per_row + per_row - 1) / per_row, kMinDistance);
}

// Where the n-th byte of the data without stuffing lies in the data with it. To be asked in
// ascending order.
class StuffedPosition {
 public:
  explicit StuffedPosition(const uint8_t* data) : data_(data) {}

  size_t of(size_t n) {
    while (plain_ < n) {
      const size_t left = n - plain_;
      const void* found = std::memchr(data_ + stuffed_, 0xFF, left);
      if (found == nullptr) {
        stuffed_ += left;
        plain_ = n;
      } else {
        const auto next = static_cast<size_t>(static_cast<const uint8_t*>(found) - data_);
        plain_ += next - stuffed_ + 1;
        stuffed_ = next + 2;
      }
    }
    return stuffed_;
  }

 private:
  const uint8_t* data_;
  size_t plain_ = 0;
  size_t stuffed_ = 0;
};

// The entropy-coded data of a whole file, ready to be stepped through.
struct WholeScan {
  own::Frame frame;
  own::Tables tables;
  own::McuLayout layout;
  Buffer bytes;
  own::Stream stream;

  Code open(const File& file);
};

Code WholeScan::open(const File& file) {
  if (!own::make_frame(file.header, &frame) || file.header.restart_interval != 0)
    return Code::kUnsupported;
  const Code code = tables.read(file.data, file.header);
  if (code != Code::kOk) return code;
  own::make_layout(file.header, frame, tables, &layout);
  if (file.size >= 1U << 29) return Code::kUnsupported;  // positions have 32 bits
  return own::open_whole(file, &bytes, &stream);
}

void append_entry(size_t position, const own::Stream& stream, int components,
                  std::vector<uint8_t>* out) {
  uint8_t entry[10];
  store32(static_cast<uint32_t>(position), entry);
  for (size_t c = 0; c < static_cast<size_t>(components); ++c) {
    entry[4 + 2 * c] = static_cast<uint8_t>(stream.dc[c]);
    entry[5 + 2 * c] = static_cast<uint8_t>(stream.dc[c] >> 8);
  }
  out->insert(out->end(), entry, entry + 4 + 2 * components);
}

Code append_entries(const File& file, int distance, WholeScan* scan, std::vector<uint8_t>* out) {
  const own::EntropyKernels& kernels = own::entropy_kernels();
  const uint8_t* begin = scan->bytes.reserve(0);
  StuffedPosition stuffed(file.data + file.header.scan_offset);
  for (int row = 0; row < scan->frame.mcu_rows; ++row) {
    for (int column = 0; column < scan->frame.mcus_per_row; column += distance) {
      const auto position = static_cast<size_t>(scan->stream.position(begin));
      append_entry(8 * stuffed.of(position / 8) + position % 8, scan->stream,
                   file.header.components, out);
      const int mcus = std::min(distance, scan->frame.mcus_per_row - column);
      if (!kernels.skip(scan->layout, &scan->stream, mcus)) return Code::kCorrupt;
    }
  }
  // Anything but the padding of the last byte means that the data is not what it seems.
  const int64_t left = 8 * (scan->stream.end - begin) - scan->stream.position(begin);
  return left >= 0 && left < 8 ? Code::kOk : Code::kCorrupt;
}

}  // namespace

bool EntryIndex::open(const File& file, int mcus_per_row, int mcu_rows) {
  const EntryPoints& points = file.entries;
  if (points.data == nullptr || points.size < kHeaderSize) return false;
  const uint8_t* data = points.data;
  const Header& header = file.header;
  if (data[0] != 'H' || data[1] != 'J' || data[2] != kVersion) return false;
  if (data[3] != header.components || load32(data + 4) != file.size) return false;
  const uint32_t distance = load32(data + 12);
  if (distance < 1 || distance > kMaxDistance) return false;
  distance_ = static_cast<int>(distance);
  per_row_ = (mcus_per_row + distance_ - 1) / distance_;
  rows_ = mcu_rows;
  components_ = header.components;
  entry_size_ = 4 + 2 * static_cast<size_t>(components_);
  const size_t count = static_cast<size_t>(per_row_) * static_cast<size_t>(rows_);
  if (points.size != kHeaderSize + count * entry_size_) return false;
  if (load32(data + 8) != checksum(file.data, header.scan_offset)) return false;
  if (load32(data + kChecksumOffset) != index_checksum(data, points.size)) return false;
  entries_ = data + kHeaderSize;
  scan_offset_ = header.scan_offset;
  scan_size_ = file.size - header.scan_offset;
  return true;
}

EntryIndex::Entry EntryIndex::entry(int row, int i) const {
  row += i / per_row_;
  i %= per_row_;
  Entry entry;
  if (row >= rows_) {
    entry.offset = scan_offset_ + scan_size_;
    return entry;
  }
  const uint8_t* at = entries_ + (static_cast<size_t>(row) * static_cast<size_t>(per_row_) +
                                  static_cast<size_t>(i)) *
                                     entry_size_;
  const uint32_t position = load32(at);
  // A place that the file doesn't have is refused by whoever reads there.
  entry.offset = scan_offset_ + std::min<size_t>(position >> 3, scan_size_);
  entry.bit = position & 7;
  for (size_t c = 0; c < static_cast<size_t>(components_); ++c)
    entry.dc[c] = static_cast<int16_t>(at[4 + 2 * c] | at[5 + 2 * c] << 8);
  return entry;
}

Code build_entry_points(const File& file, int every_n_mcus, std::vector<uint8_t>* out) {
  out->clear();
  if (every_n_mcus < 0 || every_n_mcus > kMaxDistance) return Code::kInvalidArgument;
  const auto scan = std::make_unique<WholeScan>();
  Code code = scan->open(file);
  if (code != Code::kOk) return code;
  const auto components = static_cast<size_t>(file.header.components);
  int distance = every_n_mcus;
  if (distance == 0) distance = choose_distance(scan->frame, 4 + 2 * components, file.size);
  if (distance == 0) return Code::kUnsupported;
  out->resize(kHeaderSize);
  code = append_entries(file, distance, scan.get(), out);
  if (code != Code::kOk) {
    out->clear();
    return code;
  }
  uint8_t* header = out->data();
  header[0] = 'H';
  header[1] = 'J';
  header[2] = kVersion;
  header[3] = static_cast<uint8_t>(components);
  store32(static_cast<uint32_t>(file.size), header + 4);
  store32(checksum(file.data, file.header.scan_offset), header + 8);
  store32(static_cast<uint32_t>(distance), header + 12);
  store32(index_checksum(header, out->size()), header + kChecksumOffset);
  return Code::kOk;
}

}  // namespace headrace::jpeg
