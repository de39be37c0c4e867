#include "png_image.h"

#include <libdeflate.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace headrace::png {
namespace {

// What an image may take while it is decoded, in bytes.
constexpr uint64_t kMaxMemory = uint64_t{1} << 30;

// Deflate makes no more than so many bytes of one.
constexpr uint64_t kMostOfAByte = 1032;

enum Filter : uint8_t { kNone = 0, kSub = 1, kUp = 2, kAverage = 3, kPaeth = 4 };

void undo_up(uint8_t* row, const uint8_t* above, size_t count) {
  for (size_t i = 0; i < count; ++i) row[i] = static_cast<uint8_t>(row[i] + above[i]);
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
        const int up = above[i + k];
        const int to_left = std::abs(up - corner[k]), to_up = std::abs(left[k] - corner[k]);
        const int to_corner = std::abs(left[k] + up - 2 * corner[k]);
        const int other = to_up <= to_corner ? up : corner[k];
        const int nearest = to_left <= to_up && to_left <= to_corner ? left[k] : other;
        left[k] = (row[i + k] + nearest) & 0xFF;
        corner[k] = up;
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

}  // namespace

struct ImageData::Library {
  libdeflate_decompressor* decompressor = libdeflate_alloc_decompressor();
  ~Library() {
    if (decompressor != nullptr) libdeflate_free_decompressor(decompressor);
  }
};

ImageData::ImageData() : library_(std::make_unique<Library>()) {}
ImageData::~ImageData() = default;

const uint8_t* ImageData::joined(const uint8_t* data, const Header& header, size_t* size) {
  const size_t whole = header.data_end - header.data_begin;
  const size_t first = chunk_size(data + header.data_begin);
  *size = first;
  if (first + kChunkOverhead == whole) return data + header.data_begin + 8;
  uint8_t* const out = joined_.reserve(whole);
  if (out == nullptr) return nullptr;
  *size = 0;
  for (size_t at = header.data_begin; at < header.data_end;) {
    const size_t part = chunk_size(data + at);
    std::memcpy(out + *size, data + at + 8, part);
    *size += part;
    at += part + kChunkOverhead;
  }
  return out;
}

Code ImageData::open(const uint8_t* data, const Header& header) {
  if (library_->decompressor == nullptr) return Code::kOutOfMemory;
  if (header.interlaced) return Code::kUnsupported;
  height_ = header.height;
  const auto bits = static_cast<size_t>(bits_per_pixel(header));
  pixel_ = static_cast<int>((bits + 7) / 8);
  stride_ = (bits * static_cast<size_t>(header.width) + 7) / 8 + 1;
  const uint64_t size = uint64_t{stride_} * static_cast<uint64_t>(height_);
  if (size > kMaxMemory) return Code::kUnsupported;
  if (size / kMostOfAByte > header.data_end - header.data_begin) return Code::kCorrupt;
  size_t compressed = 0;
  const uint8_t* const from = joined(data, header, &compressed);
  // Above the first row there is one of zeros.
  uint8_t* const memory = memory_.reserve(stride_ + size);
  if (from == nullptr || memory == nullptr) return Code::kOutOfMemory;
  std::memset(memory, 0, stride_);
  rows_ = memory + stride_;
  // Without a place for the number of bytes made, it has to be `size`.
  if (libdeflate_zlib_decompress(library_->decompressor, from, compressed, rows_, size, nullptr) !=
      LIBDEFLATE_SUCCESS)
    return Code::kCorrupt;
  for (int y = 0; y < height_; ++y) {
    if (row(y)[-1] > kPaeth) return Code::kCorrupt;
  }
  return Code::kOk;
}

void ImageData::unfilter(int first, int count, size_t bytes) {
  const Run run = unfilter_for(pixel_);
  int y = first;
  // Rows above matter as long as each depends on the one before it.
  while (y > 0 && row(y)[-1] >= kUp) --y;
  for (; y < first + count; ++y) {
    uint8_t* const to = rows_ + static_cast<size_t>(y) * stride_ + 1;
    run(to[-1], to, to - stride_, bytes);
  }
}

std::string libdeflate_version() { return LIBDEFLATE_VERSION_STRING; }

}  // namespace headrace::png
