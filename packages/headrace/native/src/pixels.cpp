#include "pixels.h"

#include <cstring>

namespace headrace {
namespace {

// Red, green and blue next to each other: 4 bytes at once, but for the last pixel, after which
// memory may end.
void copy_packed_row(const uint8_t* from, int width, uint8_t* to) {
  for (int x = 0; x < width - 1; ++x) std::memcpy(to + 4 * x, from + 3 * x, 4);
  std::memcpy(to + 4 * (width - 1), from + 3 * (width - 1), 3);
}

// A row of each channel, and their strides known when this is compiled.
void copy_planar_row(const uint8_t* red, const uint8_t* green, const uint8_t* blue, int width,
                     uint8_t* to) {
  for (int x = 0; x < width; ++x) {
    to[4 * x] = red[x];
    to[4 * x + 1] = green[x];
    to[4 * x + 2] = blue[x];
    to[4 * x + 3] = 0;
  }
}

void copy_strided_row(const uint8_t* from, ptrdiff_t column, ptrdiff_t channel, int width,
                      uint8_t* to) {
  for (int x = 0; x < width; ++x, from += column) {
    for (int c = 0; c < 3; ++c) to[4 * x + c] = from[c * channel];
  }
}

}  // namespace

void copy_pixels(const PixelArray& pixels, const Rect& rect, const ImageView& out) {
  for (int y = 0; y < rect.h; ++y) {
    const uint8_t* from = pixels.data + (rect.y + y) * pixels.row + rect.x * pixels.column;
    uint8_t* to = out.row(y);
    if (pixels.column == 3 && pixels.channel == 1) {
      copy_packed_row(from, rect.w, to);
    } else if (pixels.column == 1) {
      copy_planar_row(from, from + pixels.channel, from + 2 * pixels.channel, rect.w, to);
    } else {
      copy_strided_row(from, pixels.column, pixels.channel, rect.w, to);
    }
  }
}

}  // namespace headrace
