// PNG by libdeflate and code of our own, or by libpng; what pixels mean is said here, as Pillow
// says it.
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "../pixels.h"
#include "codec.h"
#include "png_file.h"
#ifdef HEADRACE_DEFLATE
#include "png_image.h"
#endif

namespace headrace {
namespace {

// What an interlaced image may take while it is decoded, in bytes.
constexpr uint64_t kMaxMemory = uint64_t{1} << 30;

// An IEND chunk, for libpng to find behind the image data, whatever else is there.
constexpr uint8_t kEnd[] = {0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xAE, 0x42, 0x60, 0x82};

#ifdef HEADRACE_DEFLATE
// The first `count` pixels of a row, which have 1, 2 or 4 bits each, a byte for each.
void unpack(const uint8_t* row, int bits, size_t count, uint8_t* values) {
  const size_t in_byte = 8 / static_cast<size_t>(bits);
  for (size_t i = 0; i < count; ++i) {
    const int shift = 8 - bits * (static_cast<int>(i % in_byte) + 1);
    values[i] = static_cast<uint8_t>(row[i / in_byte] >> shift & ((1 << bits) - 1));
  }
}
#endif

class PngCodec final : public Codec {
 public:
  explicit PngCodec(int first) : libpng_(first + static_cast<int>(png_decoders().size()) - 1) {}

  Code open(const EncodedImage& file, Size* size) override;
  Code check() override;
  Code decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) override;
  bool read_orientation(Orientation* orientation) const override {
    return header_.orientation.find(orientation);
  }
  bool is_gray() const override {
    return header_.color_type == png::kGray || header_.color_type == png::kGrayAlpha;
  }
  bool has_transparent_color() const override { return header_.transparent_color; }

 private:
  struct Piece {
    const uint8_t* data;
    size_t size;
  };

  // libpng's callbacks. An error jumps back to decode(); a warning is damage that it papers over.
  static void on_error(png_structp png, png_const_charp) {
    std::longjmp(static_cast<PngCodec*>(png_get_error_ptr(png))->escape_, 1);
  }
  static void on_warning(png_structp png, png_const_charp) {
    static_cast<PngCodec*>(png_get_error_ptr(png))->warned_ = true;
  }
  static void on_read(png_structp png, png_bytep to, size_t count);

  Code decode_inflated(const Rect& rect, const ImageView& out);
  Code decode_by_libpng(const Rect& rect, const ImageView& out);
  void read_colors();
  void start();
  // These run under setjmp: nothing in them may have a destructor.
  Code read(const Rect& rect, const ImageView& out);
  Code read_in_order(const Rect& rect, const ImageView& out);
  Code read_interlaced(const Rect& rect, const ImageView& out);
  void convert(const uint8_t* row, const Rect& rect, uint8_t* rgbx) const;

  int libpng_;  // the number of its decoder, the last one of the format
  const uint8_t* data_ = nullptr;
  png::Header header_;
  uint32_t colors_[256] = {};  // RGBX by the value of a pixel of at most 8 bits
#ifdef HEADRACE_DEFLATE
  png::ImageData image_data_;
#endif

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf escape_;
  bool warned_ = false;
  Piece pieces_[4] = {};  // what libpng gets to see: no chunk that says nothing about pixels
  int piece_ = 0;
  Buffer rows_;
};

Code PngCodec::open(const EncodedImage& file, Size* size) {
  data_ = file.data;
  const Code code = png::parse_header(file.data, file.size, &header_);
  *size = {header_.width, header_.height};
  return code;
}

Code PngCodec::check() { return png::data_is_intact(data_, header_) ? Code::kOk : Code::kCorrupt; }

Code PngCodec::decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) {
  read_colors();
  Code code = Code::kUnsupported;
#ifdef HEADRACE_DEFLATE
  if ((allowed >> (libpng_ - 1) & 1u) != 0) {
    code = decode_inflated(rect, out);
    *decoder = libpng_ - 1;
    if (code == Code::kOk || code == Code::kOutOfMemory) return code;
  }
#endif
  if ((allowed >> libpng_ & 1u) == 0) return code;
  *decoder = libpng_;
  return decode_by_libpng(rect, out);
}

#ifdef HEADRACE_DEFLATE
Code PngCodec::decode_inflated(const Rect& rect, const ImageView& out) {
  const Code code = image_data_.open(data_, header_);
  if (code != Code::kOk) return code;
  const auto bits = static_cast<size_t>(png::bits_per_pixel(header_));
  const auto right = static_cast<size_t>(rect.x) + static_cast<size_t>(rect.w);
  image_data_.unfilter(rect.y, rect.h, (bits * right + 7) / 8);
  uint8_t* const values = rows_.reserve(right);
  if (values == nullptr) return Code::kOutOfMemory;
  for (int y = 0; y < rect.h; ++y) {
    const uint8_t* row = image_data_.row(rect.y + y);
    if (bits < 8) {
      unpack(row, static_cast<int>(bits), right, values);
      row = values;
    }
    convert(row, rect, out.row(y));
  }
  return Code::kOk;
}
#endif

Code PngCodec::decode_by_libpng(const Rect& rect, const ImageView& out) {
  start();
  if (setjmp(escape_) != 0) {
    png_destroy_read_struct(&png_, &info_, nullptr);
    return Code::kCorrupt;
  }
  png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
  if (png_ != nullptr) info_ = png_create_info_struct(png_);
  const Code code = info_ == nullptr ? Code::kOutOfMemory : read(rect, out);
  png_destroy_read_struct(&png_, &info_, nullptr);
  return code == Code::kOk && warned_ ? Code::kCorrupt : code;
}

void PngCodec::start() {
  png_ = nullptr;
  info_ = nullptr;
  warned_ = false;
  const bool palette = header_.color_type == png::kPalette;
  pieces_[0] = {data_, png::kStartSize};
  pieces_[1] = {data_ + header_.palette_begin,
                palette ? header_.palette_size + png::kChunkOverhead : 0};
  pieces_[2] = {data_ + header_.data_begin, header_.data_end - header_.data_begin};
  pieces_[3] = {kEnd, sizeof kEnd};
  piece_ = 0;
}

void PngCodec::read_colors() {
  const bool palette = header_.color_type == png::kPalette;
  if (header_.bit_depth > 8 || (!palette && header_.bit_depth == 8)) return;
  std::memset(colors_, 0, sizeof colors_);
  const int count = palette ? static_cast<int>(header_.palette_size / 3) : 1 << header_.bit_depth;
  const uint8_t* entries = data_ + header_.palette_begin + 8;
  for (int i = 0; i < count; ++i) {
    uint8_t rgbx[4] = {};
    if (palette)
      std::memcpy(rgbx, entries + 3 * i, 3);
    else
      std::memset(rgbx, i * 255 / (count - 1), 3);
    std::memcpy(colors_ + i, rgbx, 4);
  }
}

void PngCodec::on_read(png_structp png, png_bytep to, size_t count) {
  auto* self = static_cast<PngCodec*>(png_get_io_ptr(png));
  while (count > 0) {
    if (self->piece_ == 4) png_error(png, "the file ends");
    Piece& piece = self->pieces_[self->piece_];
    const size_t part = count < piece.size ? count : piece.size;
    std::memcpy(to, piece.data, part);
    to += part;
    count -= part;
    piece.data += part;
    piece.size -= part;
    if (piece.size == 0) ++self->piece_;
  }
}

Code PngCodec::read(const Rect& rect, const ImageView& out) {
  png_set_read_fn(png_, this, on_read);
  // Pillow ignores the checksums of image data as well; parse_header() has seen the others.
  png_set_crc_action(png_, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
  png_set_check_for_invalid_index(png_, 0);
  png_set_user_limits(png_, kMaxEdge, kMaxEdge);
  const bool all = header_.interlaced || rect.y + rect.h == header_.height;
#ifdef PNG_IGNORE_ADLER32
  if (!all) png_set_option(png_, PNG_IGNORE_ADLER32, PNG_OPTION_ON);  // it is never reached
#endif
  png_read_info(png_, info_);
  if (header_.bit_depth < 8) png_set_packing(png_);
  Code code = header_.interlaced ? read_interlaced(rect, out) : read_in_order(rect, out);
  if (code != Code::kOk) return code;
  if (all) {
    png_read_end(png_, nullptr);
    return Code::kOk;
  }
  // Pillow would find damage behind the rectangle, or what damage before it leads to there.
  // Checksums find both in less time.
  return check();
}

Code PngCodec::read_in_order(const Rect& rect, const ImageView& out) {
  png_read_update_info(png_, info_);
  uint8_t* const row = rows_.reserve(png_get_rowbytes(png_, info_));
  if (row == nullptr) return Code::kOutOfMemory;
  for (int y = 0; y < rect.y; ++y) png_read_row(png_, nullptr, nullptr);
  for (int y = 0; y < rect.h; ++y) {
    png_read_row(png_, row, nullptr);
    convert(row, rect, out.row(y));
  }
  return Code::kOk;
}

Code PngCodec::read_interlaced(const Rect& rect, const ImageView& out) {
  const int passes = png_set_interlace_handling(png_);
  png_read_update_info(png_, info_);
  const uint64_t stride = png_get_rowbytes(png_, info_);
  const uint64_t size = stride * static_cast<uint64_t>(header_.height);
  if (size > kMaxMemory) return Code::kUnsupported;
  uint8_t* const rows = rows_.reserve(size);
  if (rows == nullptr) return Code::kOutOfMemory;
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < header_.height; ++y)
      png_read_row(png_, rows + stride * static_cast<uint64_t>(y), nullptr);
  }
  for (int y = 0; y < rect.h; ++y)
    convert(rows + stride * static_cast<uint64_t>(rect.y + y), rect, out.row(y));
  return Code::kOk;
}

// The part of a row of the image that is in the rectangle, as RGBX. Alpha is dropped, and of 16
// bits the higher 8 are kept; but gray of 16 bits is clipped to 255: so does Pillow.
void PngCodec::convert(const uint8_t* row, const Rect& rect, uint8_t* rgbx) const {
  const ptrdiff_t bytes = header_.bit_depth / 8;
  const ptrdiff_t channels[] = {1, 0, 3, 1, 2, 0, 4};  // by color type
  const bool indexed = header_.color_type == png::kPalette || header_.bit_depth < 8;
  if (indexed) {
    for (int x = 0; x < rect.w; ++x) std::memcpy(rgbx + 4 * x, colors_ + row[rect.x + x], 4);
  } else if (header_.color_type == png::kGray && bytes == 2) {
    for (int x = 0; x < rect.w; ++x) {
      const uint8_t* const value = row + 2 * (rect.x + x);
      std::memset(rgbx + 4 * x, value[0] == 0 ? value[1] : 255, 4);
    }
  } else {
    const bool gray = header_.color_type == png::kGray || header_.color_type == png::kGrayAlpha;
    const PixelArray pixels = {row, 0, bytes * channels[header_.color_type], gray ? 0 : bytes};
    copy_pixels(pixels, {rect.x, 0, rect.w, 1}, {rgbx, 0, rect.w, 1});
  }
}

}  // namespace

std::unique_ptr<Codec> make_png_codec(int first) { return std::make_unique<PngCodec>(first); }

std::vector<const char*> png_decoders() {
#ifdef HEADRACE_DEFLATE
  return {"libdeflate", "libpng"};
#else
  return {"libpng"};
#endif
}

std::vector<std::string> png_versions() {
#ifdef HEADRACE_DEFLATE
  return {png::libdeflate_version(), PNG_LIBPNG_VER_STRING};
#else
  return {PNG_LIBPNG_VER_STRING};
#endif
}

}  // namespace headrace
