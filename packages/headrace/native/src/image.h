// Pixels in memory: rectangles, views, and buffers that are kept and reused from image to image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace headrace {

struct Rect {
  int x = 0;
  int y = 0;
  int w = 0;
  int h = 0;
};

// RGBX pixels that are only read, 4 bytes each; the fourth byte is undefined. Rows start `stride`
// bytes apart.
struct ConstImageView {
  const uint8_t* data = nullptr;
  size_t stride = 0;
  int width = 0;
  int height = 0;

  const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * stride; }
};

// The same where they may be written.
struct ImageView {
  uint8_t* data = nullptr;
  size_t stride = 0;
  int width = 0;
  int height = 0;

  uint8_t* row(int y) const { return data + static_cast<size_t>(y) * stride; }
  operator ConstImageView() const { return {data, stride, width, height}; }
};

// `rect` must lie inside of the image.
inline ImageView part_of(const ImageView& image, const Rect& rect) {
  return {image.row(rect.y) + size_t{4} * static_cast<size_t>(rect.x), image.stride, rect.w,
          rect.h};
}

inline ConstImageView part_of(const ConstImageView& image, const Rect& rect) {
  return {image.row(rect.y) + size_t{4} * static_cast<size_t>(rect.x), image.stride, rect.w,
          rect.h};
}

// 64-byte aligned memory that only grows. SIMD code may read and write up to kPadding bytes past
// the size that was asked for, and read kPadding bytes before its start.
class Buffer {
 public:
  static constexpr size_t kPadding = 256;
  static constexpr uint64_t kMost = uint64_t{1} << 48;  // bytes; more would overflow sums of sizes

  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(base_); }

  // At least `size` bytes, contents undefined; nullptr when memory is short or `size` exceeds kMost
  // (the old memory is then gone).
  uint8_t* reserve(size_t size) {
    if (size > capacity_ || base_ == nullptr) {
      std::free(base_);
      const size_t rounded = (size + size / 4 + 63) / 64 * 64;
      base_ = size > kMost ? nullptr
                           : static_cast<uint8_t*>(std::aligned_alloc(64, rounded + 2 * kPadding));
      capacity_ = base_ == nullptr ? 0 : rounded;
    }
    return base_ == nullptr ? nullptr : base_ + kPadding;
  }

  size_t capacity() const { return capacity_; }

 private:
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
};

// An RGBX image in a Buffer. At least 4 further rows may be read past the last one.
class Image {
 public:
  // A view of width × height with undefined pixels; data is nullptr when memory is short.
  ImageView reshape(int width, int height) {
    const size_t stride = stride_of(width);
    return {buffer_.reserve(stride * (static_cast<size_t>(height) + 4)), stride, width, height};
  }
  size_t capacity() const { return buffer_.capacity(); }

  // Bytes from row to row of an image of that width.
  static size_t stride_of(int width) { return (static_cast<size_t>(width) * 4 + 63) / 64 * 64; }

 private:
  Buffer buffer_;
};

}  // namespace headrace
