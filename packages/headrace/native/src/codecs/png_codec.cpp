// PNG by libdeflate: all image data are inflated at once, rows unfiltered as they are needed; what
// pixels mean is said here, as Pillow says it. Interlaced files are left to Pillow.
#include <libdeflate.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../pixels.h"
#include "codec.h"
#include "headrace.h"
#include "png_file.h"

namespace headrace {
namespace {

// What an image may take while it is decoded, in bytes.
constexpr uint64_t kMaxMemory = uint64_t{1} << 30;

// Deflate makes no more than so many bytes of one.
constexpr uint64_t kMostOfAByte = 1032;

enum : uint8_t { kNone = 0, kSub = 1, kUp = 2, kAverage = 3, kPaeth = 4 };  // filters of a row

void undo_up(uint8_t* row, const uint8_t* above, size_t count) {
  for (size_t i = 0; i < count; ++i) row[i] = static_cast<uint8_t>(row[i] + above[i]);
}

int paeth_of(int value, int left, int up, int corner) {
  const int to_left = std::abs(up - corner), to_up = std::abs(left - corner);
  const int to_corner = std::abs(left + up - 2 * corner);
  const int other = to_up <= to_corner ? up : corner;
  const int nearest = to_left <= to_up && to_left <= to_corner ? left : other;
  return (value + nearest) & 0xFF;
}

// Two rows of single bytes, the lower one a pixel behind: a pixel waits for the one before it, and
// so a row alone leaves the processor waiting.
void undo_two_paeth(uint8_t* row, uint8_t* below, const uint8_t* above, size_t count) {
  int left = 0, corner = 0, below_left = 0, below_corner = 0;
  for (size_t i = 0; i < count; ++i) {
    const int before = left;
    left = paeth_of(row[i], before, above[i], corner);
    corner = above[i];
    row[i] = static_cast<uint8_t>(left);
    if (i == 0) continue;
    below_left = paeth_of(below[i - 1], below_left, before, below_corner);
    below_corner = before;
    below[i - 1] = static_cast<uint8_t>(below_left);
  }
  const int last = paeth_of(below[count - 1], below_left, left, below_corner);
  below[count - 1] = static_cast<uint8_t>(last);
}

// The three that look at the pixel to the left, of kBytes bytes: those are kept in registers.
template <int kBytes>
struct Unfilter {
  static void sub(uint8_t* row, size_t count) {
    uint8_t left[kBytes] = {};
    for (size_t i = 0; i + kBytes <= count; i += kBytes) {
      for (int k = 0; k < kBytes; ++k) {
        left[k] = static_cast<uint8_t>(left[k] + row[i + k]);
        row[i + k] = left[k];
      }
    }
  }

  static void average(uint8_t* row, const uint8_t* above, size_t count) {
    uint8_t left[kBytes] = {};
    for (size_t i = 0; i + kBytes <= count; i += kBytes) {
      for (int k = 0; k < kBytes; ++k) {
        left[k] = static_cast<uint8_t>(row[i + k] + (left[k] + above[i + k]) / 2);
        row[i + k] = left[k];
      }
    }
  }

  static void paeth(uint8_t* row, const uint8_t* above, size_t count) {
    int left[kBytes] = {}, corner[kBytes] = {};
    for (size_t i = 0; i + kBytes <= count; i += kBytes) {
      for (int k = 0; k < kBytes; ++k) {
        left[k] = paeth_of(row[i + k], left[k], above[i + k], corner[k]);
        corner[k] = above[i + k];
        row[i + k] = static_cast<uint8_t>(left[k]);
      }
    }
  }

  static void run(uint8_t filter, uint8_t* row, const uint8_t* above, size_t count) {
    switch (filter) {
      case kSub:
        return sub(row, count);
      case kUp:
        return undo_up(row, above, count);
      case kAverage:
        return average(row, above, count);
      case kPaeth:
        return paeth(row, above, count);
      default:
        return;
    }
  }
};

using Run = void (*)(uint8_t filter, uint8_t* row, const uint8_t* above, size_t count);

Run unfilter_for(int pixel) {
  switch (pixel) {
    case 1:
      return Unfilter<1>::run;
    case 2:
      return Unfilter<2>::run;
    case 3:
      return Unfilter<3>::run;
    case 4:
      return Unfilter<4>::run;
    case 6:
      return Unfilter<6>::run;
    default:
      return Unfilter<8>::run;
  }
}

// Keeps its memory from file to file; one instance serves one thread.
class ImageData {
 public:
  // Inflates all image data of a file, into memory of its own or `to`. kCorrupt: they are anything
  // but as many rows as the header says, each with a filter that there is, and their checksum.
  Code open(const uint8_t* data, const png::Header& header, uint8_t* to = nullptr);

  // Has unfilter() take rows from what open() has written to `inflated`.
  Code open_inflated(const uint8_t* inflated, const png::Header& header);

  // Undoes the filters of `count` rows from `first` on, each as far as its first `bytes` bytes.
  // To be called once after open() or open_inflated().
  void unfilter(int first, int count, size_t bytes);

  // As in the PNG specification, 7.2: pixels of less than 8 bits are packed.
  const uint8_t* row(int y) const { return rows_ + static_cast<size_t>(y) * stride_ + 1; }

 private:
  // Where the compressed data are in one piece; nullptr: memory is short.
  const uint8_t* joined(const uint8_t* data, const png::Header& header, size_t* size);

  void describe(const png::Header& header);

  // The first row that row `y` needs: those above matter as long as each depends on the one before.
  int needed_from(int y) const;

  png::Decompressor decompressor_{libdeflate_alloc_decompressor()};
  Buffer joined_;
  Buffer memory_;
  uint8_t* rows_ = nullptr;            // of the first row's filter
  const uint8_t* filtered_ = nullptr;  // the same before unfilter()
  size_t stride_ = 0;                  // bytes of a row and its filter
  int height_ = 0;
  int pixel_ = 0;  // bytes of a pixel, at least 1
};

const uint8_t* ImageData::joined(const uint8_t* data, const png::Header& header, size_t* size) {
  const size_t whole = header.data_end - header.data_begin;
  const size_t first = png::chunk_size(data + header.data_begin);
  *size = first;
  if (first + png::kChunkOverhead == whole) return data + header.data_begin + 8;
  uint8_t* const out = joined_.reserve(whole);
  if (out == nullptr) return nullptr;
  *size = 0;
  for (size_t at = header.data_begin; at < header.data_end;) {
    const size_t part = png::chunk_size(data + at);
    std::memcpy(out + *size, data + at + 8, part);
    *size += part;
    at += part + png::kChunkOverhead;
  }
  return out;
}

// Bytes of a row and its filter.
uint64_t stride_of(const png::Header& header) {
  const auto bits = static_cast<uint64_t>(png::bits_per_pixel(header));
  return (bits * static_cast<uint64_t>(header.width) + 7) / 8 + 1;
}

// Bytes of all rows and their filters.
uint64_t filtered_size(const png::Header& header) {
  return stride_of(header) * static_cast<uint64_t>(header.height);
}

void ImageData::describe(const png::Header& header) {
  height_ = header.height;
  pixel_ = (png::bits_per_pixel(header) + 7) / 8;
  stride_ = stride_of(header);
}

Code ImageData::open_inflated(const uint8_t* inflated, const png::Header& header) {
  describe(header);
  const uint64_t size = stride_ + filtered_size(header);
  if (header.data_end < header.data_begin + 8 + size) return Code::kCorrupt;
  uint8_t* const memory = memory_.reserve(size);
  if (memory == nullptr) return Code::kOutOfMemory;
  std::memset(memory, 0, stride_);
  rows_ = memory + stride_;
  filtered_ = inflated + stride_;
  return Code::kOk;
}

int ImageData::needed_from(int y) const {
  while (y > 0 && filtered_[static_cast<size_t>(y) * stride_] >= kUp) --y;
  return y;
}

Code ImageData::open(const uint8_t* data, const png::Header& header, uint8_t* to) {
  if (decompressor_ == nullptr) return Code::kOutOfMemory;
  describe(header);
  const uint64_t size = filtered_size(header);
  if (size > kMaxMemory) return Code::kUnsupported;
  if (size / kMostOfAByte > header.data_end - header.data_begin) return Code::kCorrupt;
  size_t compressed = 0;
  const uint8_t* const from = joined(data, header, &compressed);
  // Above the first row there is one of zeros.
  uint8_t* const memory = to != nullptr ? to : memory_.reserve(stride_ + size);
  if (from == nullptr || memory == nullptr) return Code::kOutOfMemory;
  std::memset(memory, 0, stride_);
  filtered_ = rows_ = memory + stride_;
  // Without a place for the number of bytes made, it has to be `size`.
  if (libdeflate_zlib_decompress(decompressor_.get(), from, compressed, rows_, size, nullptr) !=
      LIBDEFLATE_SUCCESS)
    return Code::kCorrupt;
  for (int y = 0; y < height_; ++y) {
    if (row(y)[-1] > kPaeth) return Code::kCorrupt;
  }
  return Code::kOk;
}

void ImageData::unfilter(int first, int count, size_t bytes) {
  const Run run = unfilter_for(pixel_);
  const auto take = [&](int y) {
    const size_t at = static_cast<size_t>(y) * stride_;
    if (filtered_ != rows_) std::memcpy(rows_ + at, filtered_ + at, bytes + 1);
    return rows_ + at + 1;
  };
  const auto is_paeth = [&](int y) {
    return y < first + count && filtered_[static_cast<size_t>(y) * stride_] == kPaeth;
  };
  for (int y = needed_from(first); y < first + count; ++y) {
    uint8_t* const to = take(y);
    if (pixel_ == 1 && is_paeth(y) && is_paeth(y + 1))
      undo_two_paeth(to, take(++y), to - stride_, bytes);
    else
      run(to[-1], to, to - stride_, bytes);
  }
}

// The first `count` pixels of a row, which have 1, 2 or 4 bits each, a byte for each.
void unpack(const uint8_t* row, int bits, size_t count, uint8_t* values) {
  const size_t in_byte = 8 / static_cast<size_t>(bits);
  for (size_t i = 0; i < count; ++i) {
    const int shift = 8 - bits * (static_cast<int>(i % in_byte) + 1);
    values[i] = static_cast<uint8_t>(row[i / in_byte] >> shift & ((1 << bits) - 1));
  }
}

class PngCodec final : public Codec {
 public:
  explicit PngCodec(int number) : number_(number) {}

  Code open(const EncodedImage& file, Size* size) override;
  Code check() override;
  Code decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) override;
  bool read_orientation(Orientation* orientation) const override {
    return header_.orientation.find(orientation);
  }
  bool is_gray() const override {
    return header_.color_type == png::kGray || header_.color_type == png::kGrayAlpha;
  }

 private:
  void read_colors();
  void convert(const uint8_t* row, const Rect& rect, uint8_t* rgbx) const;

  int number_;
  const uint8_t* data_ = nullptr;
  png::Header header_;
  uint32_t colors_[256] = {};  // RGBX by the value of a pixel of at most 8 bits
  ImageData image_data_;
  Buffer values_;
};

Code PngCodec::open(const EncodedImage& file, Size* size) {
  data_ = file.data;
  const Code code = png::parse_header(file.data, file.size, &header_);
  *size = {header_.width, header_.height};
  return code;
}

Code PngCodec::check() {
  if (header_.interlaced) return Code::kUnsupported;
  return png::data_is_intact(data_, header_) ? Code::kOk : Code::kCorrupt;
}

Code PngCodec::decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) {
  if ((allowed >> number_ & 1u) == 0 || header_.interlaced) return Code::kUnsupported;
  const bool inflated = (allowed & HR_INFLATED) != 0;
  const uint8_t* const content = data_ + header_.data_begin + 8;
  const Code code =
      inflated ? image_data_.open_inflated(content, header_) : image_data_.open(data_, header_);
  if (code != Code::kOk) return code;
  read_colors();
  const auto bits = static_cast<size_t>(png::bits_per_pixel(header_));
  const auto right = static_cast<size_t>(rect.x) + static_cast<size_t>(rect.w);
  image_data_.unfilter(rect.y, rect.h, (bits * right + 7) / 8);
  uint8_t* const values = values_.reserve(right);
  if (values == nullptr) return Code::kOutOfMemory;
  for (int y = 0; y < rect.h; ++y) {
    const uint8_t* row = image_data_.row(rect.y + y);
    if (bits < 8) {
      unpack(row, static_cast<int>(bits), right, values);
      row = values;
    }
    convert(row, rect, out.row(y));
  }
  *decoder = number_;
  return Code::kOk;
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

uint8_t* put(uint64_t value, uint8_t* out) {
  for (int shift = 24; shift >= 0; shift -= 8) *out++ = static_cast<uint8_t>(value >> shift);
  return out;
}

}  // namespace

uint64_t png_inflated_bound(const uint8_t* data, size_t size) {
  png::Header header;
  if (png::parse_header(data, size, &header) != Code::kOk || header.interlaced) return 0;
  const uint64_t filtered = filtered_size(header);
  return filtered > kMaxMemory ? 0 : size + stride_of(header) + filtered + png::kChunkOverhead;
}

Code png_inflate(const uint8_t* data, size_t size, uint8_t* out, uint64_t* out_size) {
  thread_local ImageData image_data;
  png::Header header;
  Code code = png::parse_header(data, size, &header);
  if (code != Code::kOk) return code;
  uint8_t* const chunk = std::copy_n(data, header.data_begin, out);
  const uint64_t content = stride_of(header) + filtered_size(header);
  put(content, chunk);
  const uint8_t kType[] = {'I', 'D', 'A', 'T'};
  std::copy(kType, kType + 4, chunk + 4);
  code = image_data.open(data, header, chunk + 8);
  if (code != Code::kOk) return code;
  uint8_t* end = put(0, chunk + 8 + content);  // the checksum, which decode() doesn't look at
  end = std::copy_n(data + header.data_end, size - header.data_end, end);
  *out_size = static_cast<uint64_t>(end - out);
  return Code::kOk;
}

std::unique_ptr<Codec> make_png_codec(int first) { return std::make_unique<PngCodec>(first); }

std::string png_version() { return LIBDEFLATE_VERSION_STRING; }

}  // namespace headrace
