#include <cmath>
#include <initializer_list>

#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters; the bounds are in degrees, the centre in pixels. v: the angle,
// counter-clockwise.
enum : int { kLow, kHigh, kFilter, kExpand, kHasCenter, kCenter, kFill = 7 };

const char* check(const double* p) {
  if (!between(p[kLow], -1e6, 1e6) || !between(p[kHigh], p[kLow], 1e6))
    return "a rotation's bounds are out of range";
  for (const int axis : {0, 1}) {
    if (!between(p[kCenter + axis], -kMaxEdge, kMaxEdge))
      return "a rotation's centre is too far away";
  }
  return check_warp(p[kFilter], p + kFill);
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  v[0] = random->uniform(static_cast<float>(p[kLow]), static_cast<float>(p[kHigh]));
  return Code::kOk;
}

// Pillow copies the image then.
bool idle(const double* p, const double* v) {
  return p[kHasCenter] == 0 && std::fmod(v[0], 360.0) == 0;
}

ops::Rotation rotation(const double* p, const double* v, Size in) {
  const double* center = p[kHasCenter] == 0 ? nullptr : p + kCenter;
  return ops::plan_rotation(in.width, in.height, v[0], p[kExpand] != 0, center);
}

Size size(const double* p, const double* v, Size in) {
  const ops::Rotation turned = rotation(p, v, in);
  return {turned.width, turned.height};
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  const ImageView& image = canvas->image();
  return rotate_canvas(rotation(p, v, {image.width, image.height}), p[kFilter], p + kFill, canvas);
}

}  // namespace

const Op kRandomRotation = {"random_rotation", check, draw, idle, size, nullptr, pixels};

}  // namespace headrace
