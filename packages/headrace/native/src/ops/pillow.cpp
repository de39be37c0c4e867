// What is recorded of Pillow's own methods and filters: no parameters are drawn.
#include <algorithm>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

constexpr double kMaxRadius = 1000;

// ImageFilter.GaussianBlur. v: the standard deviations along x and y, in pixels.
Code blur_pixels(const double*, const double* v, Canvas* canvas) {
  if (!between(v[0], 0, kMaxRadius) || !between(v[1], 0, kMaxRadius)) return Code::kUnsupported;
  return blur_canvas(v[0], v[1], canvas);
}

constexpr int64_t kLevels = 3 * 256;

int64_t point_data(const double*) { return kLevels; }

// Image.point. data: what the 256 levels of red become, then those of green and blue.
Code point_pixels(const double*, const double*, Canvas* canvas) {
  uint8_t levels[kLevels];
  for (int64_t i = 0; i < kLevels; ++i) {
    const float level = canvas->data()[i];
    if (!(level >= 0 && level <= 255)) return Code::kUnsupported;
    levels[i] = static_cast<uint8_t>(level);
  }
  auto& table = canvas->levels()->level;
  for (int c = 0; c < 3; ++c)
    for (uint8_t& level : table[c]) level = levels[256 * c + level];
  return Code::kOk;
}

// Image.transform(AFFINE or PERSPECTIVE). p: the filter, red, green and blue of what fills the
// outside, width and height of the result, 1 for a perspective. v: the coefficients, as Pillow
// takes them.
enum : int { kFilter, kFill, kWidth = 4, kHeight, kPerspective };

const char* check_size(const double* p) {
  if (!is_edge(p[kWidth]) || !is_edge(p[kHeight])) return "a warp's size is out of range";
  return check_warp(p[kFilter], p + kFill);
}

Size warp_size(const double* p, const double*, Size) {
  return {as_int(p[kWidth]), as_int(p[kHeight])};
}

Code warp_pixels(const double* p, const double* v, Canvas* canvas) {
  ops::Map map;
  map.perspective = p[kPerspective] != 0;
  std::copy_n(v, map.perspective ? 8 : 6, map.m);
  return warp_canvas(map, p[kFilter], p + kFill, warp_size(p, v, {}), canvas);
}

}  // namespace

const Op kPillowBlur = {"pillow_blur", nullptr, nullptr, nullptr, nullptr, nullptr, blur_pixels};
const Op kPillowPoint = {"pillow_point", nullptr,      nullptr, nullptr,   nullptr,
                         nullptr,        point_pixels, nullptr, point_data};
const Op kPillowWarp = {"pillow_warp", check_size, nullptr,    nullptr,
                        warp_size,     nullptr,    warp_pixels};

}  // namespace headrace
