#include <algorithm>

#include "kernels.h"
#include "ops.h"

namespace headrace {
namespace {

constexpr int kFactors = 4;

// p: for brightness, contrast, saturation and hue each whether it is changed, and the factor's
// bounds. v: the order of the four, and then their factors.
const char* check(const double* p) {
  for (int i = 0; i < kFactors; ++i) {
    const double low = i == 3 ? -0.5 : 0, high = i == 3 ? 0.5 : 1e6;
    if (!between(p[3 * i + 1], low, high) || !between(p[3 * i + 2], p[3 * i + 1], high))
      return "a ColorJitter's bounds are out of range";
  }
  return nullptr;
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  int order[kFactors] = {0, 1, 2, 3};
  random->shuffle(order, kFactors);
  std::copy_n(order, kFactors, v);
  for (int i = 0; i < kFactors; ++i) {
    if (p[3 * i] == 0) continue;
    v[kFactors + i] =
        random->uniform(static_cast<float>(p[3 * i + 1]), static_cast<float>(p[3 * i + 2]));
  }
  return Code::kOk;
}

bool idle(const double* p, const double*) {
  return p[0] == 0 && p[3] == 0 && p[6] == 0 && p[9] == 0;
}

template <const ops::ColourArithmetic& by>
Code pixels(const double* p, const double* v, Canvas* canvas) {
  const ImageView& image = canvas->image();
  for (int place = 0; place < kFactors; ++place) {
    const int which = as_int(v[place]);
    if (which < 0 || which >= kFactors || p[3 * which] == 0) continue;
    const double factor = v[kFactors + which];
    Code code = Code::kOk;
    if (which == 0) ops::adjust_brightness(image, factor);
    if (which == 1) code = by.contrast(image, factor);
    if (which == 2) by.saturation(image, factor);
    if (which == 3) by.hue(image, std::clamp(factor, -0.5, 0.5));
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

}  // namespace

const Op kColorJitter = {
    "color_jitter", check, draw, idle, nullptr, nullptr, pixels<ops::kPillowColour>};
const Op kTensorColorJitter = {"tensor_color_jitter",    check, draw, idle, nullptr, nullptr,
                               pixels<ops::kTorchColour>};

}  // namespace headrace
