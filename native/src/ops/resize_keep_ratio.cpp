// timm's ResizeKeepRatio: both edges divided by one number, but for what is drawn.
#include <algorithm>
#include <cmath>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters: the size, how much the longer edge counts, and for scale and aspect the
// probability that they change and their ranges; that of the aspect as logarithms. v: height,
// width, filter.
enum : int {
  kHeight,
  kWidth,
  kFilter,
  kOtherFilter,
  kLongest,
  kScaleChance,
  kScale,
  kScaleIsArea = 8,
  kAspectChance,
  kLogAspect,
};

const char* check(const double* p) {
  if (!is_edge(p[kHeight]) || !is_edge(p[kWidth])) return "a resize's size is out of range";
  if (!whole_between(p[kFilter], 0, 5) || !whole_between(p[kOtherFilter], -1, 5))
    return "a resize's filter is unknown";
  const bool ranges = between(p[kScale], 1e-6, 1e6) && between(p[kScale + 1], 1e-6, 1e6) &&
                      between(p[kLogAspect], -14, 14) && between(p[kLogAspect + 1], -14, 14) &&
                      between(p[kLongest], 0, 1);
  return ranges ? nullptr : "a resize's scale or aspect is out of range";
}

Code draw(const double* p, RandomStream* random, Size in, double* v) {
  const double ratio_h = in.height / p[kHeight], ratio_w = in.width / p[kWidth];
  const double ratio =
      std::max(ratio_h, ratio_w) * p[kLongest] + std::min(ratio_h, ratio_w) * (1.0 - p[kLongest]);
  double factor_h = 1, factor_w = 1;
  if (p[kScaleChance] > 0 && random->unit() < p[kScaleChance]) {
    factor_h = uniform(random, p[kScale], p[kScale + 1]);
    if (p[kScaleIsArea] != 0) factor_h = 1.0 / std::sqrt(factor_h);
    factor_w = factor_h;
  }
  if (p[kAspectChance] > 0 && random->unit() < p[kAspectChance]) {
    const double aspect = std::sqrt(std::exp(uniform(random, p[kLogAspect], p[kLogAspect + 1])));
    factor_h /= aspect;
    factor_w *= aspect;
  }
  v[0] = std::nearbyint(in.height * factor_h / ratio);
  v[1] = std::nearbyint(in.width * factor_w / ratio);
  v[2] = draw_filter(p[kFilter], p[kOtherFilter], random);
  return is_edge(v[0]) && is_edge(v[1]) ? Code::kOk : Code::kUnsupported;
}

Size size(const double*, const double* v, Size) {
  return is_edge(v[0]) && is_edge(v[1]) ? Size{as_int(v[1]), as_int(v[0])} : Size{0, 0};
}

Code fold(const double* p, const double* v, Folder* folder) {
  const Size out = size(p, v, {});
  if (out.width == 0 || !whole_between(v[2], 0, 5)) return Code::kUnsupported;
  const Rect whole = {0, 0, folder->size().width, folder->size().height};
  return folder->resize(whole, out, static_cast<Filter>(as_int(v[2])));
}

}  // namespace

const Op kResizeKeepRatio = {"resize_keep_ratio", check, draw, nullptr, size, fold};

}  // namespace headrace
