// Restart-sliced decoding: where restart markers cut the data into segments that don't depend on
// each other, those that a rectangle needs are put together to a smaller JPEG, and libjpeg decodes
// that.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "libjpeg_session.h"

namespace headrace::jpeg {
namespace {

// A narrower slice could switch fancy upsampling off: libjpeg does that where a component is at
// most 2 samples wide.
constexpr int kMinSliceWidth = 16;

constexpr uint8_t kRst0 = 0xD0;
constexpr uint8_t kEoi = 0xD9;

int divide_up(int a, int b) { return (a + b - 1) / b; }

// The image as pieces of equal size, each made of whole segments: part of a row of MCUs where the
// interval divides the row, else as many rows as it takes for a segment to end where a row does.
struct Grid {
  int piece_w = 0;  // in pixels
  int piece_h = 0;
  int across = 0;  // pieces in a row of pieces
  int down = 0;
  size_t segments_per_piece = 0;
  size_t segments = 0;  // of the whole image: the last piece may have fewer
};

// False where there is nothing to cut.
bool make_grid(const Header& header, Grid* grid) {
  int h = 1, v = 1;
  if (header.components > 1) {  // a scan of one component isn't interleaved
    for (int i = 0; i < header.components; ++i) {
      h = std::max<int>(h, header.component[i].h);
      v = std::max<int>(v, header.component[i].v);
    }
  }
  const int columns = divide_up(header.width, 8 * h);
  const int rows = divide_up(header.height, 8 * v);
  const int interval = header.restart_interval;
  if (interval < 1) return false;
  const int shared = std::gcd(interval, columns);
  const bool divides_row = shared == interval;
  const int piece_columns = divides_row ? interval : columns;
  const int piece_rows = interval / shared;
  grid->piece_w = 8 * h * piece_columns;
  grid->piece_h = 8 * v * piece_rows;
  grid->across = columns / piece_columns;
  grid->down = divide_up(rows, piece_rows);
  grid->segments_per_piece = divides_row ? 1 : static_cast<size_t>(columns / shared);
  const int64_t mcus = int64_t{columns} * rows;
  grid->segments = static_cast<size_t>((mcus + interval - 1) / interval);
  return grid->segments > 1 && int64_t{grid->across} * grid->down > 1;
}

// What is cut out: pieces first_x to last_x of the rows of pieces first_y to last_y.
struct Slice {
  int first_x, last_x, first_y, last_y;
  Rect pixels;  // that they cover
};

// One pixel beyond the rectangle, as fancy upsampling looks at the next sample.
Slice slice_of(const Header& header, const Grid& grid, const Rect& rect) {
  Slice slice = {};
  slice.first_x = std::max(0, rect.x - 1) / grid.piece_w;
  slice.first_y = std::max(0, rect.y - 1) / grid.piece_h;
  slice.last_x = std::min(header.width - 1, rect.x + rect.w) / grid.piece_w;
  slice.last_y = std::min(header.height - 1, rect.y + rect.h) / grid.piece_h;
  const int right = std::min(header.width, (slice.last_x + 1) * grid.piece_w);
  const int bottom = std::min(header.height, (slice.last_y + 1) * grid.piece_h);
  while (slice.first_x > 0 && right - slice.first_x * grid.piece_w < kMinSliceWidth)
    --slice.first_x;
  const int left = slice.first_x * grid.piece_w, top = slice.first_y * grid.piece_h;
  slice.pixels = {left, top, right - left, bottom - top};
  return slice;
}

// Of the frame's height, followed by its width: behind marker, fill bytes, length and precision.
size_t frame_size_offset(const File& file) {
  size_t at = file.header.sof_offset;
  while (file.data[at] == 0xFF) ++at;
  return at + 1 + 2 + 1;
}

uint8_t* put_word(uint8_t* to, int word) {
  to[0] = static_cast<uint8_t>(word >> 8);
  to[1] = static_cast<uint8_t>(word);
  return to + 2;
}

class RestartDecoder final : public Decoder {
 public:
  bool supports(const File& file) const override;
  Code decode(const File& file, const Rect& rect, const ImageView& out) override;

 private:
  Code find_segments(const File& file, size_t count);
  Code assemble(const File& file, const Grid& grid, const Slice& slice);
  uint8_t* append(const File& file, size_t begin, size_t end, uint8_t* to);

  LibjpegSession session_;
  Buffer starts_;  // size_t of each segment, and one past the last: 2 past the previous one's end
  Buffer sliced_;
  size_t sliced_size_ = 0;
  unsigned markers_ = 0;  // in sliced_
};

bool RestartDecoder::supports(const File& file) const {
  Grid grid;
  const Header& header = file.header;
  return header.single_scan && header.ends_with_eoi && !header.arithmetic &&
         header.components != 2 && header.precision == 8 && make_grid(header, &grid);
}

Code RestartDecoder::decode(const File& file, const Rect& rect, const ImageView& out) {
  Grid grid;
  if (!make_grid(file.header, &grid)) return Code::kUnsupported;
  const Slice slice = slice_of(file.header, grid, rect);
  Code code = find_segments(file, grid.segments);
  if (code == Code::kOk) code = assemble(file, grid, slice);
  if (code != Code::kOk) return code;
  const Rect inside = {rect.x - slice.pixels.x, rect.y - slice.pixels.y, rect.w, rect.h};
  return session_.decode(sliced_.reserve(1), sliced_size_, inside, out, Reach::kRectangle);
}

// kCorrupt unless the markers are exactly those expected, and the file's end follows the last.
Code RestartDecoder::find_segments(const File& file, size_t count) {
  if (count > file.size / 2) return Code::kCorrupt;  // each takes a marker
  auto* starts = reinterpret_cast<size_t*>(starts_.reserve((count + 1) * sizeof(size_t)));
  if (starts == nullptr) return Code::kOutOfMemory;
  size_t at = starts[0] = file.header.scan_offset;
  for (size_t found = 1;;) {
    const void* next = std::memchr(file.data + at, 0xFF, file.size - at);
    if (next == nullptr) return Code::kCorrupt;
    at = static_cast<size_t>(static_cast<const uint8_t*>(next) - file.data) + 2;
    if (at > file.size) return Code::kCorrupt;
    const uint8_t marker = file.data[at - 1];
    if (marker == 0x00) continue;
    const bool last = found == count;
    starts[found] = at;
    if (last) return marker == kEoi && at == file.size ? Code::kOk : Code::kCorrupt;
    if (marker != kRst0 + (found - 1) % 8) return Code::kCorrupt;
    ++found;
  }
}

// The header with the slice's size, and its segments with their markers renumbered.
Code RestartDecoder::assemble(const File& file, const Grid& grid, const Slice& slice) {
  uint8_t* to = sliced_.reserve(file.size);
  if (to == nullptr) return Code::kOutOfMemory;
  std::memcpy(to, file.data, file.header.scan_offset);
  put_word(put_word(to + frame_size_offset(file), slice.pixels.h), slice.pixels.w);
  to += file.header.scan_offset;
  markers_ = 0;
  const auto across = static_cast<size_t>(grid.across);
  for (int y = slice.first_y; y <= slice.last_y; ++y) {
    const size_t row = static_cast<size_t>(y) * across;
    const size_t begin = (row + static_cast<size_t>(slice.first_x)) * grid.segments_per_piece;
    const size_t end = (row + static_cast<size_t>(slice.last_x) + 1) * grid.segments_per_piece;
    to = append(file, begin, std::min(end, grid.segments), to);
  }
  to[-1] = kEoi;  // in place of the last restart marker
  sliced_size_ = static_cast<size_t>(to - sliced_.reserve(1));
  return Code::kOk;
}

// Segments `begin` to `end` - 1. Returns the end of what was written.
uint8_t* RestartDecoder::append(const File& file, size_t begin, size_t end, uint8_t* to) {
  const auto* starts = reinterpret_cast<const size_t*>(starts_.reserve(1));
  const size_t first = starts[begin];
  const size_t size = starts[end] - first;
  std::memcpy(to, file.data + first, size);
  for (size_t i = begin + 1; i <= end; ++i)
    to[starts[i] - first - 1] = static_cast<uint8_t>(kRst0 + markers_++ % 8);
  return to + size;
}

}  // namespace

std::unique_ptr<Decoder> make_libjpeg_restart_decoder() {
  return std::make_unique<RestartDecoder>();
}

}  // namespace headrace::jpeg
