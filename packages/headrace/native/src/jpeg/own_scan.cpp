#include "own_scan.h"

#include <algorithm>
#include <cstring>

namespace headrace::jpeg::own {
namespace {

constexpr uint8_t kRst0 = 0xD0;
constexpr uint8_t kEoi = 0xD9;

}  // namespace

Unstuffed unstuff(const uint8_t* data, size_t size, uint8_t* out) {
  size_t at = 0;
  size_t written = 0;
  while (at < size) {
    const void* found = std::memchr(data + at, 0xFF, size - at);
    const size_t next =
        found == nullptr ? size : static_cast<size_t>(static_cast<const uint8_t*>(found) - data);
    std::memcpy(out + written, data + at, next - at);
    written += next - at;
    at = next;
    if (at == size || data[at + 1] != 0) break;
    out[written++] = 0xFF;
    at += 2;
  }
  return {std::min(at, size), written};
}

Code open_whole(const File& file, Buffer* bytes, Stream* stream) {
  const size_t begin = file.header.scan_offset;
  if (begin >= file.size) return Code::kCorrupt;
  const size_t size = file.size - begin;
  uint8_t* out = bytes->reserve(size + kStreamPadding);
  if (out == nullptr) return Code::kOutOfMemory;
  const Unstuffed result = unstuff(file.data + begin, size, out);
  size_t at = begin + result.consumed;
  while (at < file.size && file.data[at] == 0xFF) ++at;
  if (at >= file.size || file.data[at] != kEoi) return Code::kCorrupt;
  std::memset(out + result.written, 0, kStreamPadding);
  stream->start(out, out + result.written, 0);
  return Code::kOk;
}

Code Scan::open(const File& file, const McuLayout& layout, const EntropyKernels& kernels,
                int mcus_per_row, int mcu_rows, int past_mcu) {
  file_ = &file;
  layout_ = &layout;
  kernels_ = &kernels;
  mcus_per_row_ = mcus_per_row;
  mcu_rows_ = mcu_rows;
  interval_ = file.header.restart_interval;
  for (Lane& lane : lanes_) lane.mcu = lane.segment = -1;
  if (interval_ != 0) {
    mode_ = Mode::kRestart;
    const int total = (mcus_per_row * mcu_rows + interval_ - 1) / interval_;
    return find_segments((past_mcu + interval_ - 1) / interval_, total);
  }
  if (index_.open(file, mcus_per_row, mcu_rows)) {
    mode_ = Mode::kEntries;
    return Code::kOk;
  }
  mode_ = Mode::kSequential;
  lanes_[0].mcu = 0;
  return open_whole(file, &lanes_[0].bytes, &lanes_[0].stream);
}

Code Scan::load(Lane* lane, size_t begin, size_t end, uint32_t bit) {
  if (begin >= end || end > file_->size) return Code::kCorrupt;
  uint8_t* bytes = lane->bytes.reserve(end - begin + kStreamPadding);
  if (bytes == nullptr) return Code::kOutOfMemory;
  const Unstuffed result = unstuff(file_->data + begin, end - begin, bytes);
  std::memset(bytes + result.written, 0, kStreamPadding);
  lane->stream.start(bytes, bytes + result.written, bit);
  return Code::kOk;
}

Code Scan::skip_to(Lane* lane, int mcu) {
  if (!kernels_->skip(*layout_, &lane->stream, mcu - lane->mcu)) return Code::kCorrupt;
  lane->mcu = mcu;
  return Code::kOk;
}

// The first `count` of the file's `total` segments, with the markers between them checked.
Code Scan::find_segments(int count, int total) {
  const uint8_t* data = file_->data;
  const size_t size = file_->size;
  size_t at = file_->header.scan_offset;
  segments_.clear();
  for (int i = 0; i < count; ++i) {
    segments_.push_back(at);
    while (true) {
      if (at + 1 >= size) return Code::kCorrupt;
      const void* found = std::memchr(data + at, 0xFF, size - 1 - at);
      if (found == nullptr) return Code::kCorrupt;
      at = static_cast<size_t>(static_cast<const uint8_t*>(found) - data);
      if (data[at + 1] != 0) break;
      at += 2;
    }
    segments_.push_back(at);
    while (at < size && data[at] == 0xFF) ++at;
    const int expected = i == total - 1 ? kEoi : kRst0 + (i & 7);
    if (at >= size || data[at] != expected) return Code::kCorrupt;
    ++at;
  }
  return Code::kOk;
}

Code Scan::seek_segment(Lane* lane, int mcu) {
  const int segment = mcu / interval_;
  if (lane->segment != segment || lane->mcu > mcu) {
    const size_t i = 2 * static_cast<size_t>(segment);
    if (i + 1 >= segments_.size()) return Code::kInternal;
    const Code code = load(lane, segments_[i], segments_[i + 1], 0);
    if (code != Code::kOk) return code;
    lane->segment = segment;
    lane->mcu = segment * interval_;
  }
  return skip_to(lane, mcu);
}

Code Scan::seek_entry(Lane* lane, int row, int column, int past_column) {
  const int distance = index_.distance();
  const int i = column / distance;
  const EntryIndex::Entry from = index_.entry(row, i);
  const EntryIndex::Entry to = index_.entry(row, (past_column + distance - 1) / distance);
  // The byte that `to` lies in belongs to both sides.
  const size_t end = std::min(to.offset + 1, file_->size);
  const Code code = load(lane, from.offset, end, from.bit);
  if (code != Code::kOk) return code;
  std::memcpy(lane->stream.dc, from.dc, sizeof from.dc);
  lane->mcu = row * mcus_per_row_ + i * distance;
  return skip_to(lane, row * mcus_per_row_ + column);
}

Code Scan::seek(int lane_index, int row, int column, int past_column, int* run) {
  Lane* lane = &lanes_[lane_index];
  const int mcu = row * mcus_per_row_ + column;
  *run = past_column - column;
  switch (mode_) {
    case Mode::kSequential:
      return lane_index == 0 && lane->mcu <= mcu ? skip_to(lane, mcu) : Code::kInternal;
    case Mode::kEntries:
      return seek_entry(lane, row, column, past_column);
    case Mode::kRestart:
      *run = std::min(*run, (mcu / interval_ + 1) * interval_ - mcu);
      return seek_segment(lane, mcu);
  }
  return Code::kInternal;
}

}  // namespace headrace::jpeg::own
