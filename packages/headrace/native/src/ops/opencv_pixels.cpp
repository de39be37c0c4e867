// What OpenCV makes of uint8 images.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

// --- HSV ---

struct HsvTables {
  int32_t saturations[256], hues[256];

  HsvTables() : saturations{}, hues{} {
    for (int i = 1; i < 256; ++i) {
      saturations[i] = static_cast<int32_t>(std::nearbyint((255 << 12) / (1.0 * i)));
      hues[i] = static_cast<int32_t>(std::nearbyint((180 << 12) / (6.0 * i)));
    }
  }
};

// --- warps ---

// The pixels of a source, and what is seen around it.
class Surrounded {
 public:
  Surrounded(const ImageView& source, const OpencvWarp& warp)
      : source_(source), mode_(warp.mode), fill_(0) {
    std::memcpy(&fill_, warp.fill, 3);
  }

  uint32_t at(int x, int y) const {
    if (!has(x, source_.width) || !has(y, source_.height)) {
      if (mode_ == PaddingMode::kConstant) return fill_;
      x = padded_index(x, source_.width, mode_);
      y = padded_index(y, source_.height, mode_);
    }
    return pixels(y)[x];
  }

  // Pixel `i` of what is blended: those from (x, y) to (x + 1, y + 1).
  void corners(int x, int y, int i, OpencvCorners* corners) const {
    if (has(x, source_.width - 1) && has(y, source_.height - 1)) {
      const uint32_t *upper = pixels(y) + x, *lower = pixels(y + 1) + x;
      corners->pixels[0][i] = upper[0];
      corners->pixels[1][i] = upper[1];
      corners->pixels[2][i] = lower[0];
      corners->pixels[3][i] = lower[1];
    } else {
      for (int k = 0; k < 4; ++k) corners->pixels[k][i] = at(x + (k & 1), y + (k >> 1));
    }
  }

 private:
  static bool has(int i, int size) {
    return static_cast<unsigned>(i) < static_cast<unsigned>(size);
  }
  const uint32_t* pixels(int y) const { return reinterpret_cast<const uint32_t*>(source_.row(y)); }

  const ImageView& source_;
  PaddingMode mode_;
  uint32_t fill_;
};

// The nearest integer, of two the even one; |value| < 2^31.
int32_t rounded(double value) {
  constexpr double kNoFractions = 6755399441055744.0;  // 1.5 * 2^52
  const double sum = value + kNoFractions;
  int64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  return static_cast<int32_t>(bits);
}

// As OpenCV 4 limits places.
int limited(int32_t place) { return std::clamp(place, -32768, 32767); }

// One row of a warp of OpenCV 4 from its places, in 32nds of a pixel, or in pixels if it isn't
// linear.
void warp_places(const Surrounded& pixels, bool linear, const int32_t* x, const int32_t* y,
                 int count, OpencvCorners* corners, uint32_t* to) {
  if (!linear) {
    for (int i = 0; i < count; ++i) to[i] = pixels.at(limited(x[i]), limited(y[i]));
    return;
  }
  for (int i = 0; i < count; ++i) {
    corners->fixed_x[i] = x[i] & 31;
    corners->fixed_y[i] = y[i] & 31;
  }
  for (int i = 0; i < count; ++i)
    pixels.corners(limited(x[i] >> 5), limited(y[i] >> 5), i, corners);
  active_loops().opencv_blend_fixed(*corners, count, to);
}

// Places in 1024ths of a pixel.
void warp_affine_fixed(const Surrounded& pixels, const OpencvWarp& warp, const ImageView& out) {
  const double* m = warp.m;
  const int32_t half = warp.linear ? 16 : 512, shift = warp.linear ? 5 : 10;
  OpencvCorners corners;
  int32_t across_x[kOpencvPlaces], across_y[kOpencvPlaces], x[kOpencvPlaces], y[kOpencvPlaces];
  for (int begin = 0; begin < out.width; begin += kOpencvPlaces) {
    const int count = std::min(kOpencvPlaces, out.width - begin);
    for (int i = 0; i < count; ++i) {
      across_x[i] = rounded(m[0] * (begin + i) * 1024);
      across_y[i] = rounded(m[3] * (begin + i) * 1024);
    }
    for (int row = 0; row < out.height; ++row) {
      const int32_t down_x = rounded((m[1] * row + m[2]) * 1024) + half;
      const int32_t down_y = rounded((m[4] * row + m[5]) * 1024) + half;
      for (int i = 0; i < count; ++i) {
        x[i] = (down_x + across_x[i]) >> shift;
        y[i] = (down_y + across_y[i]) >> shift;
      }
      auto* to = reinterpret_cast<uint32_t*>(out.row(row)) + begin;
      warp_places(pixels, warp.linear, x, y, count, &corners, to);
    }
  }
}

// OpenCV adds to the place of a block's first column.
void warp_perspective_fixed(const Surrounded& pixels, const OpencvWarp& warp,
                            const ImageView& out) {
  const double* m = warp.m;
  const double unit = warp.linear ? 32 : 1;
  const int block = std::min(1024 / std::min(16, out.height), out.width);
  OpencvCorners corners;
  int32_t x[kOpencvPlaces], y[kOpencvPlaces];
  for (int row = 0; row < out.height; ++row) {
    for (int begin = 0, count; begin < out.width; begin += count) {
      const int first = begin / block * block;
      count = std::min({kOpencvPlaces, out.width - begin, first + block - begin});
      const double left_x = m[0] * first + m[1] * row + m[2];
      const double left_y = m[3] * first + m[4] * row + m[5];
      const double left_depth = m[6] * first + m[7] * row + m[8];
      for (int i = 0; i < count; ++i) {
        const double column = begin - first + i, depth = left_depth + m[6] * column;
        const double scale = depth != 0 ? unit / depth : 0;
        const double most = 1 << 30;  // further outside looks the same
        x[i] = rounded(std::clamp((left_x + m[0] * column) * scale, -most, most));
        y[i] = rounded(std::clamp((left_y + m[3] * column) * scale, -most, most));
      }
      auto* to = reinterpret_cast<uint32_t*>(out.row(row)) + begin;
      warp_places(pixels, warp.linear, x, y, count, &corners, to);
    }
  }
}

// Pixels that OpenCV 5 computes together.
constexpr int kWarpVector = 16;

void warp_floats(const Surrounded& pixels, const OpencvWarp& warp, const ImageView& out) {
  const Loops& loops = active_loops();
  float m[9];
  for (int i = 0; i < 9; ++i) m[i] = static_cast<float>(warp.m[i]);
  OpencvCorners corners;
  float depth[kOpencvPlaces];
  int32_t x[kOpencvPlaces], y[kOpencvPlaces];
  const int vectors = out.width / kWarpVector * kWarpVector;
  for (int row = 0; row < out.height; ++row) {
    auto* to = reinterpret_cast<uint32_t*>(out.row(row));
    for (int begin = 0, count; begin < out.width; begin += count, to += count) {
      const bool last = begin >= vectors;
      count = std::min(kOpencvPlaces, (last ? out.width : vectors) - begin);
      const auto plane = [&](const float* coefficients, float* places) {
        loops.opencv_plane(coefficients, static_cast<float>(row), begin, count, last, places);
      };
      plane(m, corners.x);
      plane(m + 3, corners.y);
      if (warp.perspective) {
        plane(m + 6, depth);
        for (int i = 0; i < count; ++i) {
          corners.x[i] /= depth[i];
          corners.y[i] /= depth[i];
        }
      }
      loops.opencv_split(corners.x, count, !warp.linear, x);
      loops.opencv_split(corners.y, count, !warp.linear, y);
      if (warp.linear) {
        for (int i = 0; i < count; ++i) pixels.corners(x[i], y[i], i, &corners);
        loops.opencv_blend_floats(corners, count, to);
      } else {
        for (int i = 0; i < count; ++i) to[i] = pixels.at(x[i], y[i]);
      }
    }
  }
}

}  // namespace

void opencv_grayscale(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) active_loops().opencv_luma(image.row(y), image.width);
}

void opencv_to_hsv(const ImageView& image) {
  static const HsvTables tables;
  for (int y = 0; y < image.height; ++y)
    active_loops().opencv_to_hsv(image.row(y), image.width, tables.saturations, tables.hues);
}

void opencv_from_hsv(const ImageView& image, int vector) {
  const int vectors = image.width / vector * vector;
  for (int y = 0; y < image.height; ++y) {
    active_loops().opencv_from_hsv(image.row(y), vectors, false);
    active_loops().opencv_from_hsv(image.row(y) + 4 * vectors, image.width - vectors, true);
  }
}

void opencv_warp(const ImageView& source, const OpencvWarp& warp, const ImageView& out) {
  const Surrounded pixels(source, warp);
  if (warp.version >= 5)
    warp_floats(pixels, warp, out);
  else if (warp.perspective)
    warp_perspective_fixed(pixels, warp, out);
  else
    warp_affine_fixed(pixels, warp, out);
}

}  // namespace headrace::ops
