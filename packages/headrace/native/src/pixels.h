// Images that are decoded already, somewhere in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image.h"

namespace headrace {

// 8-bit RGB pixels. Strides are in bytes and may be negative.
struct PixelArray {
  const uint8_t* data = nullptr;  // red of the pixel at (0, 0)
  ptrdiff_t row = 0;
  ptrdiff_t column = 0;
  ptrdiff_t channel = 0;
};

// The rectangle `rect` of `pixels` into `out`, which has its size. Nothing outside of it is read.
void copy_pixels(const PixelArray& pixels, const Rect& rect, const ImageView& out);

}  // namespace headrace
