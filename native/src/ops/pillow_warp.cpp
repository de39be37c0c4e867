#include <algorithm>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Image.transform(AFFINE or PERSPECTIVE). p: the filter, red, green and blue of what fills the
// outside, width and height of the result, 1 for a perspective. v: the coefficients, as Pillow
// takes them.
enum : int { kFilter, kFill, kWidth = 4, kHeight, kPerspective };

const char* check(const double* p) {
  if (!is_edge(p[kWidth]) || !is_edge(p[kHeight])) return "a warp's size is out of range";
  return check_warp(p[kFilter], p + kFill);
}

Size size(const double* p, const double*, Size) { return {as_int(p[kWidth]), as_int(p[kHeight])}; }

Code pixels(const double* p, const double* v, Canvas* canvas) {
  const ImageView& image = canvas->image();
  const ImageView out = canvas->spare(as_int(p[kWidth]), as_int(p[kHeight]));
  if (out.data == nullptr) return Code::kOutOfMemory;
  ops::Map map;
  map.perspective = p[kPerspective] != 0;
  std::copy_n(v, map.perspective ? 8 : 6, map.m);
  uint8_t fill[3];
  read_fill(p + kFill, fill);
  ops::warp(image, map, static_cast<Filter>(as_int(p[kFilter])), fill, out);
  canvas->show_spare();
  return Code::kOk;
}

}  // namespace

const Op kPillowWarp = {"pillow_warp", check, nullptr, nullptr, size, nullptr, pixels};

}  // namespace headrace
