#include <cmath>
#include <initializer_list>

#include "kernels.h"
#include "ops.h"

namespace headrace {
namespace {

// Places of the parameters; the bounds are in degrees, the centre in pixels. v: the angle,
// counter-clockwise.
enum : int { kLow, kHigh, kFilter, kExpand, kHasCenter, kCenter, kFill = 7 };

const char* check(const double* p) {
  if (!between(p[kLow], -1e6, 1e6) || !between(p[kHigh], p[kLow], 1e6))
    return "a rotation's bounds are out of range";
  if (!whole_between(p[kFilter], 0, 5)) return "a rotation's filter is unknown";
  const auto filter = static_cast<Filter>(as_int(p[kFilter]));
  if (filter != Filter::kNearest && filter != Filter::kBilinear && filter != Filter::kBicubic)
    return "a rotation's filter must be nearest, bilinear or bicubic";
  for (const int axis : {0, 1}) {
    if (!between(p[kCenter + axis], -kMaxEdge, kMaxEdge))
      return "a rotation's centre is too far away";
  }
  for (int c = 0; c < 3; ++c) {
    if (!whole_between(p[kFill + c], 0, 255))
      return "a rotation's fill must be three levels of 0 to 255";
  }
  return nullptr;
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
  const ImageView source = canvas->image();
  const ops::Rotation turned = rotation(p, v, {source.width, source.height});
  const ImageView out = canvas->spare(turned.width, turned.height);
  if (out.data == nullptr) return Code::kOutOfMemory;
  const uint8_t fill[3] = {static_cast<uint8_t>(p[kFill]), static_cast<uint8_t>(p[kFill + 1]),
                           static_cast<uint8_t>(p[kFill + 2])};
  ops::rotate(source, turned, static_cast<Filter>(as_int(p[kFilter])), fill, out);
  canvas->show_spare();
  return Code::kOk;
}

}  // namespace

const Op kRandomRotation = {"random_rotation", check, draw, idle, size, nullptr, pixels};

}  // namespace headrace
