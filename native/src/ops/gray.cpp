#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

const char* check(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a grayscale's probability must be 0 to 1";
}

// v: 1 where the image becomes gray.
Code draw(const double* p, RandomStream* random, Size, double* v) {
  v[0] = happens(random, p[0]);
  return Code::kOk;
}

bool idle(const double*, const double* v) { return v[0] == 0; }

Code pixels(const double*, const double*, Canvas* canvas) {
  ops::grayscale(canvas->image());
  return Code::kOk;
}

}  // namespace

const Op kGrayscale = {"grayscale", nullptr, nullptr, nullptr, nullptr, nullptr, pixels};
const Op kRandomGrayscale = {"random_grayscale", check, draw, idle, nullptr, nullptr, pixels};

}  // namespace headrace
