// Restart-sliced decoding: where restart markers cut the data into pieces that don't depend on each
// other, the pieces that a rectangle needs are put together to a smaller JPEG, and libjpeg decodes
// that.
#include <algorithm>
#include <cstring>
#include <vector>

#include "libjpeg_session.h"

namespace headrace::jpeg {
namespace {

// Slices whose true width is less can switch fancy upsampling off (see kMinWindowWidth in
// libjpeg_session.cpp).
constexpr int kMinSliceWidth = 16;

// How the image is cut: MCUs of mcu_w × mcu_h pixels, `columns` of them in a row; a segment holds
// `segment_columns` of one row, or `segment_rows` whole rows.
struct Grid {
  int mcu_w, mcu_h;
  int columns, rows;
  int segment_columns, segment_rows;
  int segments_across, segments_down;
};

int divide_up(int a, int b) { return (a + b - 1) / b; }

bool make_grid(const Header& header, Grid* grid) {
  int h = 1, v = 1;
  for (int i = 0; i < header.components; ++i) {
    h = std::max<int>(h, header.component[i].h);
    v = std::max<int>(v, header.component[i].v);
  }
  if (header.components == 1) h = v = 1;  // a scan of one component isn't interleaved
  grid->mcu_w = 8 * h;
  grid->mcu_h = 8 * v;
  grid->columns = divide_up(header.width, grid->mcu_w);
  grid->rows = divide_up(header.height, grid->mcu_h);
  const int interval = header.restart_interval;
  if (interval < 1) return false;
  if (grid->columns % interval == 0) {
    grid->segment_columns = interval;
    grid->segment_rows = 1;
  } else if (interval % grid->columns == 0) {
    grid->segment_columns = grid->columns;
    grid->segment_rows = interval / grid->columns;
  } else {
    return false;
  }
  grid->segments_across = grid->columns / grid->segment_columns;
  grid->segments_down = divide_up(grid->rows, grid->segment_rows);
  return true;
}

class RestartDecoder final : public Decoder {
 public:
  bool supports(const File& file) const override {
    Grid grid;
    const Header& header = file.header;
    return header.single_scan && header.ends_with_eoi &&
           (header.components == 1 || header.components == 3) && header.precision == 8 &&
           make_grid(header, &grid);
  }

  Code decode(const File& file, const Rect& rect, const ImageView& out) override {
    Grid grid;
    if (!make_grid(file.header, &grid) || !find_segments(file, grid)) return Code::kUnsupported;
    Rect cover;  // in segments
    const Rect covered = cover_rect(file.header, grid, rect, &cover);
    assemble(file, grid, cover, covered);
    const Rect inside = {rect.x - covered.x, rect.y - covered.y, rect.w, rect.h};
    return session_.decode(slice_.data(), slice_.size(), inside, out, Reach::kWholeFile);
  }

 private:
  // Start of every segment, and the end of the last. False unless the markers are exactly those
  // expected.
  bool find_segments(const File& file, const Grid& grid) {
    const size_t count =
        static_cast<size_t>(grid.segments_across) * static_cast<size_t>(grid.segments_down);
    starts_.clear();
    starts_.push_back(file.header.scan_offset);
    size_t at = file.header.scan_offset;
    while (true) {
      const void* found = std::memchr(file.data + at, 0xFF, file.size - at);
      if (found == nullptr) return false;
      at = static_cast<size_t>(static_cast<const uint8_t*>(found) - file.data);
      if (at + 1 >= file.size) return false;
      const uint8_t marker = file.data[at + 1];
      at += 2;
      if (marker == 0x00) continue;
      if (marker == 0xD9) {
        starts_.push_back(at);  // one past the EOI: like the others, 2 past its segment's end
        return starts_.size() == count + 1 && at == file.size;
      }
      if (marker != 0xD0 + (starts_.size() - 1) % 8 || starts_.size() >= count) return false;
      starts_.push_back(at);
    }
  }

  // The segments that `rect` and its margin touch, and the pixels that they cover.
  static Rect cover_rect(const Header& header, const Grid& grid, const Rect& rect, Rect* cover) {
    const int step_x = grid.mcu_w * grid.segment_columns;
    const int step_y = grid.mcu_h * grid.segment_rows;
    int first_x = std::max(0, rect.x - 1) / step_x;
    const int last_x = std::min(header.width - 1, rect.x + rect.w) / step_x;
    const int first_y = std::max(0, rect.y - 1) / step_y;
    const int last_y = std::min(header.height - 1, rect.y + rect.h) / step_y;
    const int right = std::min(header.width, (last_x + 1) * step_x);
    const int bottom = std::min(header.height, (last_y + 1) * step_y);
    while (first_x > 0 && right - first_x * step_x < kMinSliceWidth) --first_x;
    *cover = {first_x, first_y, last_x - first_x + 1, last_y - first_y + 1};
    return {first_x * step_x, first_y * step_y, right - first_x * step_x,
            bottom - first_y * step_y};
  }

  void assemble(const File& file, const Grid& grid, const Rect& cover, const Rect& covered) {
    slice_.assign(file.data, file.data + file.header.scan_offset);
    const size_t size_at = sof_size_offset(file);
    slice_[size_at] = static_cast<uint8_t>(covered.h >> 8);
    slice_[size_at + 1] = static_cast<uint8_t>(covered.h);
    slice_[size_at + 2] = static_cast<uint8_t>(covered.w >> 8);
    slice_[size_at + 3] = static_cast<uint8_t>(covered.w);
    unsigned number = 0;
    for (int y = cover.y; y < cover.y + cover.h; ++y) {
      for (int x = cover.x; x < cover.x + cover.w; ++x) {
        const size_t segment = static_cast<size_t>(y) * static_cast<size_t>(grid.segments_across) +
                               static_cast<size_t>(x);
        slice_.insert(slice_.end(), file.data + starts_[segment],
                      file.data + starts_[segment + 1] - 2);
        slice_.push_back(0xFF);
        slice_.push_back(static_cast<uint8_t>(0xD0 + number++ % 8));
      }
    }
    slice_.back() = 0xD9;  // the last restart marker becomes the end of the image
  }

  // Of the frame's height and width: behind marker, fill bytes, length and precision.
  static size_t sof_size_offset(const File& file) {
    size_t at = file.header.sof_offset;
    while (file.data[at] == 0xFF) ++at;
    return at + 1 + 2 + 1;
  }

  LibjpegSession session_;
  std::vector<size_t> starts_;
  std::vector<uint8_t> slice_;
};

}  // namespace

std::unique_ptr<Decoder> make_libjpeg_restart_decoder() {
  return std::make_unique<RestartDecoder>();
}

}  // namespace headrace::jpeg
