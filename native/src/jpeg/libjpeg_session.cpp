#include "libjpeg_session.h"

#include <algorithm>
#include <cstring>

namespace headrace::jpeg {
namespace {

// What one image may take while it is decoded: coefficients of a progressive file of Pillow's
// default limit (89 million pixels, 4:2:0) are 270 MB.
constexpr long kMaxMemory = 1L << 30;

// A file can hold any number of scans, each costing as much as the whole image; cameras and
// encoders write about 10.
constexpr int kMaxScans = 500;

// Narrower windows can switch fancy upsampling off (libjpeg does that where a component's width is
// at most 2).
constexpr int kMinCropWidth = 64;

}  // namespace

LibjpegSession::LibjpegSession() {
  cinfo_.err = jpeg_std_error(&errors_.base);
  errors_.base.error_exit = on_error;
  errors_.base.emit_message = on_message;
  if (setjmp(errors_.escape) != 0) return;
  jpeg_create_decompress(&cinfo_);
  created_ = true;
  cinfo_.mem->max_memory_to_use = kMaxMemory;
  progress_.progress_monitor = on_progress;
}

LibjpegSession::~LibjpegSession() {
  if (created_) jpeg_destroy_decompress(&cinfo_);
}

void LibjpegSession::on_error(j_common_ptr cinfo) {
  std::longjmp(reinterpret_cast<Errors*>(cinfo->err)->escape, 1);
}

void LibjpegSession::on_message(j_common_ptr cinfo, int level) {
  if (level < 0) ++cinfo->err->num_warnings;
}

void LibjpegSession::on_progress(j_common_ptr cinfo) {
  if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number > kMaxScans) on_error(cinfo);
}

Code LibjpegSession::decode(const uint8_t* data, size_t size, const Rect& rect,
                            const ImageView& out, bool crop) {
  if (!created_) return Code::kOutOfMemory;
  errors_.base.num_warnings = 0;
  if (setjmp(errors_.escape) != 0) {
    jpeg_abort_decompress(&cinfo_);
    return Code::kCorrupt;
  }
  Code code = run(data, size, rect, out, crop);
  if (code == Code::kOk && errors_.base.num_warnings > 0) code = Code::kCorrupt;
  jpeg_abort_decompress(&cinfo_);
  return code;
}

Code LibjpegSession::run(const uint8_t* data, size_t size, const Rect& rect, const ImageView& out,
                         bool crop) {
  const Code code = start(data, size, rect);
  if (code != Code::kOk) return code;
  const int width = static_cast<int>(cinfo_.output_width);
  if (!crop) {
    row_.resize(size_t{4} * static_cast<size_t>(width));
    if (!copy_rows(0, rect.y, rect, out)) return Code::kCorrupt;
    JSAMPROW row = row_.data();
    while (cinfo_.output_scanline < cinfo_.output_height) {
      if (jpeg_read_scanlines(&cinfo_, &row, 1) != 1) return Code::kCorrupt;
    }
    return jpeg_finish_decompress(&cinfo_) ? Code::kOk : Code::kCorrupt;
  }
  // One pixel more on each side: fancy upsampling looks at the neighbouring chroma sample.
  int left = std::max(0, rect.x - 1);
  int right = std::min(width, rect.x + rect.w + 1);
  if (right - left < kMinCropWidth) {
    left = std::max(0, std::min(left, width - kMinCropWidth));
    right = std::min(width, left + kMinCropWidth);
    if (right < rect.x + rect.w + 1) right = std::min(width, rect.x + rect.w + 1);
  }
  auto offset = static_cast<JDIMENSION>(left);
  auto columns = static_cast<JDIMENSION>(right - left);
  if (left > 0 || right < width) jpeg_crop_scanline(&cinfo_, &offset, &columns);
  row_.resize(size_t{4} * columns);
  if (rect.y > 0 && jpeg_skip_scanlines(&cinfo_, static_cast<JDIMENSION>(rect.y)) !=
                        static_cast<JDIMENSION>(rect.y)) {
    return Code::kCorrupt;
  }
  return copy_rows(static_cast<int>(offset), 0, rect, out) ? Code::kOk : Code::kCorrupt;
}

Code LibjpegSession::start(const uint8_t* data, size_t size, const Rect& rect) {
  jpeg_mem_src(&cinfo_, data, static_cast<unsigned long>(size));
  if (jpeg_read_header(&cinfo_, TRUE) != JPEG_HEADER_OK) return Code::kCorrupt;
  const bool known = cinfo_.jpeg_color_space == JCS_GRAYSCALE ||
                     cinfo_.jpeg_color_space == JCS_YCbCr || cinfo_.jpeg_color_space == JCS_RGB;
  if (!known || cinfo_.data_precision != 8) return Code::kUnsupported;
  cinfo_.out_color_space = JCS_EXT_RGBX;
  cinfo_.progress = &progress_;
  if (!jpeg_start_decompress(&cinfo_)) return Code::kCorrupt;
  const bool inside = rect.x + rect.w <= static_cast<int>(cinfo_.output_width) &&
                      rect.y + rect.h <= static_cast<int>(cinfo_.output_height);
  return inside ? Code::kOk : Code::kCorrupt;
}

// Reads `rows_before` rows and forgets them, then rect.h rows into `out`; row_ starts at column
// `first_column`.
bool LibjpegSession::copy_rows(int first_column, int rows_before, const Rect& rect,
                               const ImageView& out) {
  JSAMPROW row = row_.data();
  for (int y = 0; y < rows_before; ++y) {
    if (jpeg_read_scanlines(&cinfo_, &row, 1) != 1) return false;
  }
  const uint8_t* from = row_.data() + size_t{4} * static_cast<size_t>(rect.x - first_column);
  for (int y = 0; y < rect.h; ++y) {
    if (jpeg_read_scanlines(&cinfo_, &row, 1) != 1) return false;
    std::memcpy(out.row(y), from, size_t{4} * static_cast<size_t>(rect.w));
  }
  return true;
}

}  // namespace headrace::jpeg
