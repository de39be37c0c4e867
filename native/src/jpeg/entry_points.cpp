#include "entry_points.h"

#include <algorithm>
#include <cstring>

#include "own_entropy.h"
#include "own_frame.h"
#include "own_scan.h"

namespace headrace::jpeg {
namespace {

constexpr size_t kHeaderSize = 16;
constexpr uint8_t kVersion = 1;

uint32_t load32(const uint8_t* at) {
  return static_cast<uint32_t>(at[0]) | static_cast<uint32_t>(at[1]) << 8 |
         static_cast<uint32_t>(at[2]) << 16 | static_cast<uint32_t>(at[3]) << 24;
}

void store32(uint32_t value, uint8_t* at) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

// Of the header's bytes, eight at a time. It has to notice another file, not an attacker.
uint32_t checksum(const uint8_t* data, size_t size) {
  uint64_t hash = size;
  for (size_t i = 0; i < size; i += 8) {
    uint64_t word = 0;
    for (size_t j = i; j < std::min(i + 8, size); ++j)
      word |= static_cast<uint64_t>(data[j]) << (8 * (j - i));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  }
  return static_cast<uint32_t>(hash);
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
  if (distance < 1 || distance > 65535) return false;
  distance_ = static_cast<int>(distance);
  per_row_ = (mcus_per_row + distance_ - 1) / distance_;
  rows_ = mcu_rows;
  components_ = header.components;
  entry_size_ = 4 + 2 * static_cast<size_t>(components_);
  const size_t count = static_cast<size_t>(per_row_) * static_cast<size_t>(rows_);
  if (points.size != kHeaderSize + count * entry_size_) return false;
  if (load32(data + 8) != checksum(file.data, header.scan_offset)) return false;
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
  const uint8_t* at =
      entries_ + (static_cast<size_t>(row) * static_cast<size_t>(per_row_) + static_cast<size_t>(i)) * entry_size_;
  const uint32_t position = load32(at);
  // A place that the file doesn't have is refused by whoever reads there.
  entry.offset = scan_offset_ + std::min<size_t>(position >> 3, scan_size_);
  entry.bit = position & 7;
  for (size_t c = 0; c < static_cast<size_t>(components_); ++c)
    entry.dc[c] = static_cast<int16_t>(at[4 + 2 * c] | at[5 + 2 * c] << 8);
  return entry;
}

}  // namespace headrace::jpeg
