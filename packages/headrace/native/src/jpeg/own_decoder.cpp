// The own crop decoder: baseline JPEG, only the MCUs that a rectangle needs, bit for bit what
// libjpeg-turbo gives.
#include <algorithm>
#include <cstring>

#include "../cpu.h"
#include "decoder.h"
#include "own_frame.h"
#include "own_kernels.h"
#include "own_scan.h"

namespace headrace::jpeg {
namespace own {
namespace {

// The MCUs that a rectangle needs: [left, right) × [top, bottom).
struct Window {
  int left, right, top, bottom;
};

// One pixel beyond the rectangle, as interpolated chroma looks at the next sample.
Window window_of(const Rect& rect, const Frame& frame, const Header& header) {
  const int dx = frame.halves_columns() ? 1 : 0;
  const int dy = frame.halves_rows() ? 1 : 0;
  const int w = 8 * frame.h, h = 8 * frame.v;
  return {std::max(rect.x - dx, 0) / w, (std::min(rect.x + rect.w + dx, header.width) - 1) / w + 1,
          std::max(rect.y - dy, 0) / h,
          (std::min(rect.y + rect.h + dy, header.height) - 1) / h + 1};
}

// The last few rows of MCUs of one component's samples, within the window's columns.
class Plane {
 public:
  static constexpr int kMcuRows = 4;  // a power of two: two under way, one before, one spare
  static constexpr size_t kMargin = 64;

  bool reshape(int width, int rows_per_mcu) {
    stride_ = (static_cast<size_t>(width) + 2 * kMargin + 63) / 64 * 64;
    mask_ = kMcuRows * rows_per_mcu - 1;
    memory_ = buffer_.reserve(stride_ * static_cast<size_t>(mask_ + 1));
    return memory_ != nullptr;
  }
  // Row y of the whole component; sample 0 is the window's first.
  uint8_t* row(int y) const { return memory_ + kMargin + static_cast<size_t>(y & mask_) * stride_; }
  size_t stride() const { return stride_; }

 private:
  Buffer buffer_;
  uint8_t* memory_ = nullptr;
  size_t stride_ = 0;
  int mask_ = 0;
};

class OwnDecoder : public Decoder {
 public:
  Code decode(const File& file, const Rect& rect, const ImageView& out) override;

 private:
  static constexpr int kBatch = 4;  // MCUs between entropy decoding and inverse DCT

  // The coefficients under way in one stream, and where their samples go. Blocks are zero between
  // files and batches, which the kernels see to unless a file fails in the middle.
  struct Lane {
    Block blocks[kBatch * kMaxBlocks];
    uint8_t extents[kBatch * kMaxBlocks];
    BlockTarget targets[kMaxBlocks];  // of the next MCU
  };

  Code prepare(const File& file, const Rect& rect);
  void transform(Lane* lane, int mcus);
  void decode_targets(int row, BlockTarget* targets) const;
  Code decode_window(const Rect& rect, const ImageView& out);
  Code decode_rows(int row, int rows);
  bool read_coefficients(int rows, int mcus);
  void repeat_edges(int row);
  void put_row(const Rect& rect, int y, uint8_t* rgbx);
  void mix_rows(const RowSamples& in, bool lower, int first, int count);
  void repeat_columns(const RowSamples& in);

  // Of the file at hand.
  const Header* header_ = nullptr;
  bool luma_ = false;  // chroma is read, but not transformed
  Frame frame_;
  McuLayout layout_;
  Window window_ = {};
  const PixelKernels* pixels_ = nullptr;
  const EntropyKernels* entropy_ = nullptr;

  // Kept from file to file.
  Tables tables_;
  Scan scan_;
  Plane planes_[3];
  Buffer mixed_[2];
  Lane lanes_[Scan::kLanes];
};

Code OwnDecoder::prepare(const File& file, const Rect& rect) {
  header_ = &file.header;
  luma_ = file.luma;
  pixels_ = &pixel_kernels();
  entropy_ = &entropy_kernels();
  if (!make_frame(file.header, &frame_)) return Code::kUnsupported;
  const Code code = tables_.read(file.data, file.header);
  if (code != Code::kOk) return code;
  make_layout(file.header, frame_, tables_, &layout_);
  window_ = window_of(rect, frame_, file.header);
  const int mcus = window_.right - window_.left;
  for (int i = 0; i < file.header.components; ++i) {
    const int h = i == 0 ? frame_.h : 1, v = i == 0 ? frame_.v : 1;
    if (!planes_[i].reshape(8 * h * mcus, 8 * v)) return Code::kOutOfMemory;
  }
  for (Buffer& each : mixed_)
    if (each.reserve(static_cast<size_t>(8) * frame_.h * mcus) == nullptr)
      return Code::kOutOfMemory;
  for (Lane& lane : lanes_) std::memset(lane.blocks, 0, sizeof lane.blocks);
  return scan_.open(file, layout_, *entropy_, frame_.mcus_per_row, frame_.mcu_rows,
                    (window_.bottom - 1) * frame_.mcus_per_row + window_.right);
}

// Where the blocks of the row's first MCU go.
void OwnDecoder::decode_targets(int row, BlockTarget* targets) const {
  for (int i = 0; i < layout_.blocks; ++i) {
    const int component = layout_.block[i].component;
    const bool is_luma = component == 0;
    const Plane& plane = planes_[component];
    const int x = is_luma ? i % frame_.h : 0, y = is_luma ? i / frame_.h : 0;
    targets[i].quantiser = tables_.quantiser(header_->component[component].tq);
    targets[i].samples = plane.row(8 * (row * (is_luma ? frame_.v : 1) + y)) + ptrdiff_t{8} * x;
    targets[i].stride = plane.stride();
  }
}

// Inverse DCT of the first `mcus` MCUs that the lane has decoded.
void OwnDecoder::transform(Lane* lane, int mcus) {
  const int count = luma_ ? frame_.h * frame_.v : layout_.blocks;
  for (int i = 0; i < mcus; ++i) {
    const int at = i * layout_.blocks;
    pixels_->inverse_dct(lane->blocks + at, lane->extents + at, lane->targets, count);
    for (int j = count; j < layout_.blocks; ++j)
      std::memset(lane->blocks + at + j, 0, sizeof lane->blocks[0]);
    for (int j = 0; j < layout_.blocks; ++j)
      lane->targets[j].samples += layout_.block[j].component == 0 ? 8 * frame_.h : 8;
  }
}

// One row of MCUs, or two that are next to each other, one in each lane.
Code OwnDecoder::decode_rows(int row, int rows) {
  int run[Scan::kLanes] = {};
  for (int i = 0; i < rows; ++i) decode_targets(row + i, lanes_[i].targets);
  for (int column = window_.left; column < window_.right;) {
    int mcus = std::min(kBatch, window_.right - column);
    for (int i = 0; i < rows; ++i) {
      if (run[i] == 0) {
        const Code code = scan_.seek(i, row + i, column, window_.right, &run[i]);
        if (code != Code::kOk) return code;
      }
      mcus = std::min(mcus, run[i]);
    }
    if (!read_coefficients(rows, mcus)) return Code::kCorrupt;
    for (int i = 0; i < rows; ++i) {
      transform(&lanes_[i], mcus);
      scan_.advance(i, mcus);
      run[i] -= mcus;
    }
    column += mcus;
  }
  for (int i = 0; i < rows; ++i) repeat_edges(row + i);
  return Code::kOk;
}

bool OwnDecoder::read_coefficients(int rows, int mcus) {
  const BlockRun to[Scan::kLanes] = {{lanes_[0].blocks, lanes_[0].extents, mcus},
                                     {lanes_[1].blocks, lanes_[1].extents, mcus}};
  if (rows == 1) return entropy_->decode(layout_, scan_.stream(0), to[0]);
  Stream* const streams[Scan::kLanes] = {scan_.stream(0), scan_.stream(1)};
  return entropy_->decode_two(layout_, streams, to);
}

// Interpolation finds the first and the last chroma sample of the image once more beyond its edges.
void OwnDecoder::repeat_edges(int row) {
  if (!frame_.halves_columns() || luma_) return;
  const int past = frame_.chroma_width - 8 * window_.left;
  for (int component = 1; component < 3; ++component) {
    for (int y = 8 * row; y < 8 * row + 8; ++y) {
      uint8_t* samples = planes_[component].row(y);
      if (window_.left == 0) samples[-1] = samples[0];
      if (window_.right == frame_.mcus_per_row) samples[past] = samples[past - 1];
    }
  }
}

// Where chroma has a sample for two rows, and for every column: the nearer row counts three times.
void OwnDecoder::mix_rows(const RowSamples& in, bool lower, int first, int count) {
  const uint8_t* near[2] = {in.cb, in.cr};
  const uint8_t* far[2] = {in.cb_far, in.cr_far};
  const int round = lower ? 2 : 1;
  for (int i = 0; i < 2; ++i) {
    uint8_t* out = mixed_[i].reserve(1);
    for (int x = first; x < first + count; ++x)
      out[x] = static_cast<uint8_t>((3 * near[i][x] + far[i][x] + round) >> 2);
  }
}

// Images of up to 4 columns: libjpeg repeats chroma instead of interpolating it.
void OwnDecoder::repeat_columns(const RowSamples& in) {
  for (int x = 0; x < 2 * frame_.chroma_width; ++x) {
    mixed_[0].reserve(1)[x] = in.cb[x >> 1];
    mixed_[1].reserve(1)[x] = in.cr[x >> 1];
  }
}

void OwnDecoder::put_row(const Rect& rect, int y, uint8_t* rgbx) {
  const int first = rect.x - window_.left * 8 * frame_.h;
  RowSamples in = {planes_[0].row(y), nullptr, nullptr, nullptr, nullptr};
  if (frame_.sampling == Sampling::kGray || luma_) return pixels_->gray(in, first, rect.w, rgbx);
  const bool lower = (y & 1) != 0;
  int near = y, far = y;
  if (frame_.halves_rows()) {
    near = y >> 1;
    far = std::clamp(lower ? near + 1 : near - 1, 0, frame_.chroma_height - 1);
  }
  in.cb = planes_[1].row(near);
  in.cr = planes_[2].row(near);
  in.cb_far = planes_[1].row(far);
  in.cr_far = planes_[2].row(far);
  RowKernel kernel = pixels_->full;
  if (frame_.halves_columns() && frame_.chroma_width <= 2) {
    repeat_columns(in);
    in.cb = mixed_[0].reserve(1);
    in.cr = mixed_[1].reserve(1);
  } else if (frame_.sampling == Sampling::kH1v2) {
    mix_rows(in, lower, first, rect.w);
    in.cb = mixed_[0].reserve(1);
    in.cr = mixed_[1].reserve(1);
  } else if (frame_.sampling == Sampling::kH2v1) {
    kernel = pixels_->h2v1;
  } else if (frame_.sampling == Sampling::kH2v2) {
    kernel = pixels_->h2v2;
  }
  kernel(in, first, rect.w, rgbx);
}

Code OwnDecoder::decode_window(const Rect& rect, const ImageView& out) {
  int next = rect.y;  // row of pixels
  for (int row = window_.top; row < window_.bottom;) {
    const int rows = scan_.has_lanes() ? std::min(Scan::kLanes, window_.bottom - row) : 1;
    const Code code = decode_rows(row, rows);
    if (code != Code::kOk) return code;
    row += rows;
    // The last row of pixels of an MCU looks at the chroma below it.
    int known = row * 8 * frame_.v - (frame_.halves_rows() ? 1 : 0);
    if (row == window_.bottom) known = rect.y + rect.h;
    for (; next < std::min(known, rect.y + rect.h); ++next)
      put_row(rect, next, out.row(next - rect.y));
  }
  return Code::kOk;
}

Code OwnDecoder::decode(const File& file, const Rect& rect, const ImageView& out) {
  Code code = prepare(file, rect);
  if (code == Code::kOk) code = decode_window(rect, out);
  if (code != Code::kCorrupt || !scan_.uses_entries()) return code;
  File alone = file;
  alone.entries = EntryPoints();
  code = prepare(alone, rect);
  return code == Code::kOk ? decode_window(rect, out) : code;
}

}  // namespace
}  // namespace own

std::unique_ptr<Decoder> make_own_decoder() { return std::make_unique<own::OwnDecoder>(); }

}  // namespace headrace::jpeg
