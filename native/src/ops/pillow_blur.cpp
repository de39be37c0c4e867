#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

constexpr double kMaxRadius = 1000;

// ImageFilter.GaussianBlur. v: the standard deviations along x and y, in pixels.
Code pixels(const double*, const double* v, Canvas* canvas) {
  if (!between(v[0], 0, kMaxRadius) || !between(v[1], 0, kMaxRadius)) return Code::kUnsupported;
  const ImageView& image = canvas->image();
  const ImageView out = canvas->spare(image.width, image.height);
  if (out.data == nullptr) return Code::kOutOfMemory;
  const Code code = canvas->blur()->pillow_gaussian(image, v[0], v[1], out);
  if (code == Code::kOk) canvas->show_spare();
  return code;
}

}  // namespace

const Op kPillowBlur = {"pillow_blur", nullptr, nullptr, nullptr, nullptr, nullptr, pixels};

}  // namespace headrace
