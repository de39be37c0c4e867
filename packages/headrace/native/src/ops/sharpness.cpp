#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// p: the probability, the factor. v: 1 where the image is sharpened.
bool idle(const double* p, const double* v) {
  return v[0] == 0 || static_cast<float>(p[1]) == 1.0f;
}

Code pixels(const double* p, const double*, Canvas* canvas) { return sharpen_canvas(p[1], canvas); }

}  // namespace

const Op kRandomSharpness = {
    "random_sharpness", check_chance, draw_chance, idle, nullptr, nullptr, pixels};

}  // namespace headrace
