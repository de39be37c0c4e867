#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// p: the probability, the factor. v: 1 where the image is sharpened.
const char* check(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a sharpening's probability must be 0 to 1";
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  v[0] = happens(random, p[0]);
  return Code::kOk;
}

bool idle(const double* p, const double* v) {
  return v[0] == 0 || static_cast<float>(p[1]) == 1.0f;
}

Code pixels(const double* p, const double*, Canvas* canvas) {
  const ImageView& image = canvas->image();
  const ImageView out = canvas->spare(image.width, image.height);
  if (out.data == nullptr) return Code::kOutOfMemory;
  ops::adjust_sharpness(image, p[1], out);
  canvas->show_spare();
  return Code::kOk;
}

}  // namespace

const Op kRandomSharpness = {"random_sharpness", check, draw, idle, nullptr, nullptr, pixels};

}  // namespace headrace
