#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

Code pixels(const double*, const double*, Canvas* canvas) {
  ops::grayscale(canvas->image());
  return Code::kOk;
}

}  // namespace

const Op kGrayscale = {"grayscale", nullptr, nullptr, nullptr, nullptr, nullptr, pixels};
const Op kRandomGrayscale = {
    "random_grayscale", check_chance, draw_chance, not_applied, nullptr, nullptr, pixels};

}  // namespace headrace
