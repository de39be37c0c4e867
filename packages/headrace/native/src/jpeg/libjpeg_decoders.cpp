// The two decoders that hand a file to libjpeg-turbo as it is: errors become codes, its appetite is
// bounded, damage that it would paper over is refused.
#include <algorithm>
#include <cstring>

#include "decoder.h"
#include "libjpeg_guard.h"

namespace headrace::jpeg {
namespace {

enum class Reach {
  kWholeFile,  // decode all of it, so that damage anywhere is noticed
  kRectangle,  // skip what lies outside the rectangle, as far as libjpeg can
  kDamaged,    // all of it, and make do with what can be read of damaged data, as Pillow does
};

// A narrower window could switch fancy upsampling off: libjpeg does that where a component is at
// most 2 samples wide.
constexpr int kMinWindowWidth = 64;

// Adobe's convention, which Pillow assumes of every file: levels are of light, not of ink, and so
// red, green and blue are cyan's, magenta's and yellow's light through that of black.
void cmyk_to_rgb(const uint8_t* cmyk, int width, uint8_t* rgbx) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgbx += 4) {
    for (int c = 0; c < 3; ++c) {
      const int scaled = cmyk[c] * cmyk[3] + 128;
      rgbx[c] = static_cast<uint8_t>((scaled + (scaled >> 8)) >> 8);  // / 255, rounded
    }
    rgbx[3] = 0;
  }
}

class LibjpegDecoder final : public Decoder {
 public:
  explicit LibjpegDecoder(Reach reach) : reach_(reach) {}

  // kOk only where libjpeg had nothing to warn about, unless damage is expected.
  Code decode(const File& file, const Rect& rect, const ImageView& out) override;

 private:
  // These run under setjmp: nothing in them may have a destructor.
  Code open(const File& file, const Rect& rect);
  Code read_whole_file(const Rect& rect, const ImageView& out);
  Code read_rectangle(const Rect& rect, const ImageView& out);
  bool skip_rows(int count);
  bool copy_rows(const Rect& rect, int first_column, const ImageView& out);

  Reach reach_;
  jpeg_decompress_struct cinfo_ = {};
  LibjpegGuard guard_ = {};
  Buffer row_;
};

Code LibjpegDecoder::decode(const File& file, const Rect& rect, const ImageView& out) {
  // Nobody knows what two components mean; Pillow refuses them.
  if (file.header.components == 2 || file.header.precision != 8) return Code::kUnsupported;
  // A file that was cut short must fail wherever the crop lies, so its end is looked at first.
  if (reach_ == Reach::kRectangle && !file.header.ends_with_eoi) return Code::kUnsupported;
  cinfo_.err = guard_.install();
  if (setjmp(guard_.escape) != 0) {
    jpeg_destroy_decompress(&cinfo_);
    return guard_.code();
  }
  // Made again for each file: a kept one would lend the last file's tables to a file without any.
  jpeg_create_decompress(&cinfo_);
  Code code = open(file, rect);
  if (code == Code::kOk) {
    code = reach_ == Reach::kRectangle ? read_rectangle(rect, out) : read_whole_file(rect, out);
  }
  const bool strict = reach_ != Reach::kDamaged;
  if (strict && code == Code::kOk && guard_.warnings() > 0) code = Code::kCorrupt;
  jpeg_destroy_decompress(&cinfo_);
  return code;
}

Code LibjpegDecoder::open(const File& file, const Rect& rect) {
  guard_.limit(&cinfo_);
  jpeg_mem_src(&cinfo_, file.data, static_cast<unsigned long>(file.size));
  if (jpeg_read_header(&cinfo_, TRUE) != JPEG_HEADER_OK) return Code::kCorrupt;
  if (cinfo_.data_precision != 8) return Code::kUnsupported;
  switch (cinfo_.jpeg_color_space) {
    case JCS_YCbCr:
      cinfo_.out_color_space = file.luma ? JCS_GRAYSCALE : JCS_EXT_RGBX;
      break;
    case JCS_GRAYSCALE:
    case JCS_RGB:
      cinfo_.out_color_space = JCS_EXT_RGBX;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      cinfo_.out_color_space = JCS_CMYK;
      break;
    default:
      return Code::kUnsupported;
  }
  if (!jpeg_start_decompress(&cinfo_)) return Code::kCorrupt;
  if (lacks_scans(cinfo_)) return Code::kUnsupported;
  const bool inside = rect.x + rect.w <= static_cast<int>(cinfo_.output_width) &&
                      rect.y + rect.h <= static_cast<int>(cinfo_.output_height);
  if (!inside) return Code::kCorrupt;
  return row_.reserve(size_t{4} * cinfo_.output_width) ? Code::kOk : Code::kOutOfMemory;
}

Code LibjpegDecoder::read_whole_file(const Rect& rect, const ImageView& out) {
  const int rows = static_cast<int>(cinfo_.output_height);
  if (!skip_rows(rect.y) || !copy_rows(rect, 0, out) || !skip_rows(rows - rect.y - rect.h))
    return Code::kCorrupt;
  return jpeg_finish_decompress(&cinfo_) ? Code::kOk : Code::kCorrupt;
}

Code LibjpegDecoder::read_rectangle(const Rect& rect, const ImageView& out) {
  const int width = static_cast<int>(cinfo_.output_width);
  // One pixel more on each side: fancy upsampling looks at the neighbouring chroma sample.
  int left = std::max(0, rect.x - 1);
  int right = std::min(width, rect.x + rect.w + 1);
  if (right - left < kMinWindowWidth) {
    left = std::max(0, std::min(left, width - kMinWindowWidth));
    right = std::min(width, left + kMinWindowWidth);
  }
  auto offset = static_cast<JDIMENSION>(left);
  auto columns = static_cast<JDIMENSION>(right - left);
  if (left > 0 || right < width) jpeg_crop_scanline(&cinfo_, &offset, &columns);
  const auto above = static_cast<JDIMENSION>(rect.y);
  if (above > 0 && jpeg_skip_scanlines(&cinfo_, above) != above) return Code::kCorrupt;
  return copy_rows(rect, static_cast<int>(offset), out) ? Code::kOk : Code::kCorrupt;
}

// Decodes rows and forgets them. jpeg_skip_scanlines() would not notice all damage.
bool LibjpegDecoder::skip_rows(int count) {
  JSAMPROW row = row_.reserve(1);
  for (int y = 0; y < count; ++y) {
    if (jpeg_read_scanlines(&cinfo_, &row, 1) != 1) return false;
  }
  return true;
}

// The next rect.h rows into `out`; libjpeg's rows begin at column `first_column` of the image.
bool LibjpegDecoder::copy_rows(const Rect& rect, int first_column, const ImageView& out) {
  JSAMPROW row = row_.reserve(1);
  const uint8_t* from = row + static_cast<size_t>(cinfo_.output_components) *
                                  static_cast<size_t>(rect.x - first_column);
  for (int y = 0; y < rect.h; ++y) {
    if (jpeg_read_scanlines(&cinfo_, &row, 1) != 1) return false;
    if (cinfo_.out_color_space == JCS_CMYK) {
      cmyk_to_rgb(from, rect.w, out.row(y));
    } else if (cinfo_.out_color_space == JCS_GRAYSCALE) {
      for (int x = 0; x < rect.w; ++x) std::memset(out.row(y) + 4 * x, from[x], 4);
    } else {
      std::memcpy(out.row(y), from, size_t{4} * static_cast<size_t>(rect.w));
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<Decoder> make_libjpeg_full_decoder() {
  return std::make_unique<LibjpegDecoder>(Reach::kWholeFile);
}
std::unique_ptr<Decoder> make_libjpeg_damage_decoder() {
  return std::make_unique<LibjpegDecoder>(Reach::kDamaged);
}
std::unique_ptr<Decoder> make_libjpeg_crop_decoder() {
  return std::make_unique<LibjpegDecoder>(Reach::kRectangle);
}

}  // namespace headrace::jpeg
