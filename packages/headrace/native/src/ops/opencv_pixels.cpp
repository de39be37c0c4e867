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

OpencvAround around_of(const OpencvWarp& warp) {
  return {warp.mode, warp.fill[0] | warp.fill[1] << 8 | warp.fill[2] << 16};
}

// The nearest integer, of two the even one. As processors have it, what is no int32 becomes the
// least one.
int32_t rounded(double value) {
  if (!(std::fabs(value) < 2147483648.0)) return INT32_MIN;
  constexpr double kNoFractions = 6755399441055744.0;  // 1.5 * 2^52
  const double sum = value + kNoFractions;
  int64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  return static_cast<int32_t>(bits);
}

// Sums wrap.
int32_t sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

constexpr int kPlaces = 256;  // whole registers

// Places in 1024ths of a pixel.
void warp_affine_fixed(const ImageView& source, const OpencvWarp& warp, const ImageView& out) {
  const double* m = warp.m;
  const OpencvAround around = around_of(warp);
  const int32_t half = warp.linear ? 16 : 512, shift = warp.linear ? 5 : 10;
  int32_t across_x[kPlaces], across_y[kPlaces], x[kPlaces] = {}, y[kPlaces] = {};
  for (int begin = 0; begin < out.width; begin += kPlaces) {
    const int count = std::min(kPlaces, out.width - begin);
    for (int i = 0; i < count; ++i) {
      across_x[i] = rounded(m[0] * (begin + i) * 1024);
      across_y[i] = rounded(m[3] * (begin + i) * 1024);
    }
    for (int row = 0; row < out.height; ++row) {
      const int32_t down_x = sum(rounded((m[1] * row + m[2]) * 1024), half);
      const int32_t down_y = sum(rounded((m[4] * row + m[5]) * 1024), half);
      for (int i = 0; i < count; ++i) {
        x[i] = sum(down_x, across_x[i]) >> shift;
        y[i] = sum(down_y, across_y[i]) >> shift;
      }
      auto* to = reinterpret_cast<uint32_t*>(out.row(row)) + begin;
      active_loops().opencv_warp_fixed(source, around, warp.linear, x, y, count, to);
    }
  }
}

// OpenCV adds to the place of a block's first column.
void warp_perspective_fixed(const ImageView& source, const OpencvWarp& warp, const ImageView& out) {
  const double* m = warp.m;
  const OpencvAround around = around_of(warp);
  const double unit = warp.linear ? 32 : 1;
  const int block = std::min(1024 / std::min(16, out.height), out.width);
  const auto place = [](double value) {  // also of what is no number
    return rounded(std::max<double>(INT32_MIN, std::min<double>(INT32_MAX, value)));
  };
  int32_t x[kPlaces] = {}, y[kPlaces] = {};
  for (int row = 0; row < out.height; ++row) {
    for (int begin = 0, count; begin < out.width; begin += count) {
      const int first = begin / block * block;
      count = std::min({kPlaces, out.width - begin, first + block - begin});
      const double left_x = m[0] * first + m[1] * row + m[2];
      const double left_y = m[3] * first + m[4] * row + m[5];
      const double left_depth = m[6] * first + m[7] * row + m[8];
      for (int i = 0; i < count; ++i) {
        const double column = begin - first + i, depth = left_depth + m[6] * column;
        const double scale = depth != 0 ? unit / depth : 0;
        x[i] = place((left_x + m[0] * column) * scale);
        y[i] = place((left_y + m[3] * column) * scale);
      }
      auto* to = reinterpret_cast<uint32_t*>(out.row(row)) + begin;
      active_loops().opencv_warp_fixed(source, around, warp.linear, x, y, count, to);
    }
  }
}

// Pixels that OpenCV 5 computes together.
constexpr int kWarpVector = 16;

void warp_floats(const ImageView& source, const OpencvWarp& warp, const ImageView& out) {
  const OpencvAround around = around_of(warp);
  OpencvRow row = {};
  for (int i = 0; i < 9; ++i) row.m[i] = static_cast<float>(warp.m[i]);
  row.perspective = warp.perspective;
  row.linear = warp.linear;
  const int vectors = out.width / kWarpVector * kWarpVector;
  for (int y = 0; y < out.height; ++y) {
    auto* to = reinterpret_cast<uint32_t*>(out.row(y));
    row.y = static_cast<float>(y);
    const auto warp_row = active_loops().opencv_warp_floats;
    warp_row(source, around, row, 0, vectors, false, to);
    warp_row(source, around, row, vectors, out.width, true, to);
  }
}

}  // namespace

void opencv_grayscale(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) active_loops().opencv_luma(image.row(y), image.width);
}

double opencv_mean(const ImageView& image) {
  uint64_t sum = 0;
  for (int y = 0; y < image.height; ++y)
    sum += active_loops().opencv_sum_luma(image.row(y), image.width);
  return static_cast<double>(sum) / (static_cast<double>(image.width) * image.height);
}

void opencv_saturation(const ImageView& image, double factor, bool numkong) {
  for (int y = 0; y < image.height; ++y)
    active_loops().opencv_blend_luma(image.row(y), image.width, static_cast<float>(factor),
                                     static_cast<float>(1 - factor), numkong);
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
  if (warp.version >= 5)
    warp_floats(source, warp, out);
  else if (warp.perspective)
    warp_perspective_fixed(source, warp, out);
  else
    warp_affine_fixed(source, warp, out);
}

}  // namespace headrace::ops
