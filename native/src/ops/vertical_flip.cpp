#include "ops.h"

namespace headrace {
namespace {

// p: the probability. v: 1 where the image is flipped.
const char* check(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a flip's probability must be 0 to 1";
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  v[0] = random->uniform(0.0f, 1.0f) < static_cast<float>(p[0]) ? 1 : 0;
  return Code::kOk;
}

bool idle(const double*, const double* v) { return v[0] == 0; }

Code fold(const double*, const double*, Folder* folder) {
  folder->flip_y();
  return Code::kOk;
}

}  // namespace

const Op kVerticalFlip = {"vertical_flip", check, draw, idle, nullptr, fold};

}  // namespace headrace
