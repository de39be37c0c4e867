#include <algorithm>
#include <cmath>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters: the area's share, and width / height twice, as a float32 logarithm for
// the tries and as it is for the fallback. kOtherFilter: another filter that is drawn as often; -1:
// there is none. v: top, left, height, width of the box; the filter.
enum : int { kHeight, kWidth, kFilter, kScale, kLogRatio = 5, kRatio = 7, kOtherFilter = 9 };

const char* check(const double* p) {
  if (!is_edge(p[kHeight]) || !is_edge(p[kWidth]))
    return "a RandomResizedCrop's size is out of range";
  if (!is_filter(p[kFilter])) return "a RandomResizedCrop's filter is unknown";
  if (!whole_between(p[kOtherFilter], -1, 5)) return "a RandomResizedCrop's filter is unknown";
  const bool positive = p[kScale] >= 0 && p[kRatio] > 0 && p[kRatio + 1] > 0;
  const bool finite = std::isfinite(static_cast<float>(p[kScale])) &&
                      std::isfinite(static_cast<float>(p[kScale + 1])) &&
                      std::isfinite(static_cast<float>(p[kLogRatio])) &&
                      std::isfinite(static_cast<float>(p[kLogRatio + 1]));
  return positive && finite ? nullptr : "a RandomResizedCrop's scale or ratio is out of range";
}

// Python's round().
int round_half_even(double value) { return static_cast<int>(std::nearbyint(value)); }

void central_box(const double* p, Size in, double* v) {
  const double in_ratio = static_cast<double>(in.width) / in.height;
  const double low = std::min(p[kRatio], p[kRatio + 1]);
  const double high = std::max(p[kRatio], p[kRatio + 1]);
  int w = in.width, h = in.height;
  if (in_ratio < low) {
    h = round_half_even(w / low);
  } else if (in_ratio > high) {
    w = round_half_even(h * high);
  }
  // A floor division, as in Python: h can exceed the height by rounding.
  const auto half = [](int value) { return value >= 0 ? value / 2 : -((-value + 1) / 2); };
  v[0] = half(in.height - h);
  v[1] = half(in.width - w);
  v[2] = h;
  v[3] = w;
}

// A box of this area and width / height, at any place; false: it doesn't fit.
bool place_box(RandomStream* random, Size in, double area, double aspect, double* v) {
  const double w = std::nearbyint(std::sqrt(area * aspect));
  const double h = std::nearbyint(std::sqrt(area / aspect));
  if (!(w <= in.width && h <= in.height)) return false;
  v[0] = random->below(in.height - static_cast<int>(h) + 1);
  v[1] = random->below(in.width - static_cast<int>(w) + 1);
  v[2] = h;
  v[3] = w;
  return true;
}

// torchvision's RandomResizedCrop.get_params: ten tries, then the central box; the same float32 and
// double steps.
Code draw(const double* p, RandomStream* random, Size in, double* v) {
  const float scale[2] = {static_cast<float>(p[kScale]), static_cast<float>(p[kScale + 1])};
  const float log_ratio[2] = {static_cast<float>(p[kLogRatio]),
                              static_cast<float>(p[kLogRatio + 1])};
  const double area = static_cast<double>(in.width) * in.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random->uniform(scale[0], scale[1]);
    const double aspect = std::exp(random->uniform(log_ratio[0], log_ratio[1]));
    const bool empty = std::sqrt(target * aspect) <= 0.5 || std::sqrt(target / aspect) <= 0.5;
    if (!empty && place_box(random, in, target, aspect, v)) return Code::kOk;
  }
  central_box(p, in, v);
  return Code::kOk;
}

// timm's: in double precision, and a box may round to nothing.
Code draw_timm(const double* p, RandomStream* random, Size in, double* v) {
  const double area = static_cast<double>(in.width) * in.height;
  bool fits = false;
  for (int attempt = 0; attempt < 10 && !fits; ++attempt) {
    const double target = uniform(random, p[kScale], p[kScale + 1]) * area;
    const double aspect = std::exp(uniform(random, p[kLogRatio], p[kLogRatio + 1]));
    fits = place_box(random, in, target, aspect, v);
  }
  if (!fits) central_box(p, in, v);
  v[4] = draw_filter(p[kFilter], p[kOtherFilter], random);
  return Code::kOk;
}

Size size(const double* p, const double*, Size) { return {as_int(p[kWidth]), as_int(p[kHeight])}; }

Code fold(const double* p, const double* v, Folder* folder) {
  const Rect box = {as_int(v[1]), as_int(v[0]), as_int(v[3]), as_int(v[2])};
  return folder->resize(box, size(p, v, {}), static_cast<Filter>(as_int(p[kFilter])));
}

Code fold_timm(const double* p, const double* v, Folder* folder) {
  if (!whole_between(v[4], 0, 5) || v[2] < 1 || v[3] < 1) return Code::kUnsupported;
  const Rect box = {as_int(v[1]), as_int(v[0]), as_int(v[3]), as_int(v[2])};
  return folder->resize(box, size(p, v, {}), static_cast<Filter>(as_int(v[4])));
}

}  // namespace

const Op kRandomResizedCrop = {"random_resized_crop", check, draw, nullptr, size, fold};
const Op kTimmResizedCrop = {"timm_resized_crop", check, draw_timm, nullptr, size, fold_timm};

}  // namespace headrace
