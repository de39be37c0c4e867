#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

Code pixels(const double*, const double*, Canvas* canvas) {
  ops::grayscale(canvas->image());
  return Code::kOk;
}

Code torch_pixels(const double*, const double*, Canvas* canvas) {
  ops::torch_grayscale(canvas->image());
  return Code::kOk;
}

Code opencv_pixels(const double*, const double*, Canvas* canvas) {
  ops::opencv_grayscale(canvas->image());
  return Code::kOk;
}

}  // namespace

const Op kGrayscale = {"grayscale", nullptr, nullptr, nullptr, nullptr, nullptr, pixels};
const Op kRandomGrayscale = {
    "random_grayscale", check_chance, draw_chance, not_applied, nullptr, nullptr, pixels};
const Op kOpencvGrayscale = {"opencv_grayscale", nullptr, nullptr, nullptr, nullptr, nullptr,
                             opencv_pixels};
const Op kTensorGrayscale = {"tensor_grayscale", nullptr, nullptr, nullptr, nullptr, nullptr,
                             torch_pixels};
const Op kRandomTensorGrayscale = {"random_tensor_grayscale",
                                   check_chance,
                                   draw_chance,
                                   not_applied,
                                   nullptr,
                                   nullptr,
                                   torch_pixels};

}  // namespace headrace
