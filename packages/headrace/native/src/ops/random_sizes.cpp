// Resizes to a random size, of torchvision's v2: RandomShortestSize, RandomResize, ScaleJitter;
// timm's ResizeKeepRatio; and RandomZoomOut, which pads to one.
#include <algorithm>
#include <cmath>

#include "headrace.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

constexpr double kMostGrowth = 16;

// What is drawn by the resizes.
enum : int { kHeight, kWidth };

Code to_size(double height, double width, double* v) {
  v[kHeight] = std::trunc(height);
  v[kWidth] = std::trunc(width);
  return is_edge(v[kHeight]) && is_edge(v[kWidth]) ? Code::kOk : Code::kUnsupported;
}

Size size(const double*, const double* v, Size) {
  return is_edge(v[kHeight]) && is_edge(v[kWidth]) ? Size{as_int(v[kWidth]), as_int(v[kHeight])}
                                                   : Size{0, 0};
}

Code fold_to(const double* v, double filter, Folder* folder) {
  const Size out = size(nullptr, v, {});
  if (out.width == 0) return Code::kUnsupported;
  const Rect whole = {0, 0, folder->size().width, folder->size().height};
  return folder->resize(whole, out, static_cast<Filter>(as_int(filter)));
}

// p[0]: the filter.
Code fold(const double* p, const double* v, Folder* folder) { return fold_to(v, p[0], folder); }

const char* check_filter(const double* p) {
  return whole_between(p[0], 0, 5) ? nullptr : "a resize's filter is unknown";
}

// --- random_shortest_size. p: the filter, the limit of the longer edge (0: none), how many sizes
// there are, and the sizes.

enum : int { kLimit = 1, kCount, kSizes };

const char* check_shortest(const double* p) {
  if (!whole_between(p[kLimit], 0, kMaxEdge) || !whole_between(p[kCount], 1, HR_PARAMS - kSizes))
    return "a resize has too few or too many sizes";
  for (int i = 0; i < as_int(p[kCount]); ++i)
    if (!is_edge(p[kSizes + i])) return "a resize's size is out of range";
  return check_filter(p);
}

Code draw_shortest(const double* p, RandomStream* random, Size in, double* v) {
  const double edge = p[kSizes + random->below(as_int(p[kCount]))];
  double ratio = edge / std::min(in.width, in.height);
  if (p[kLimit] > 0) ratio = std::min(ratio, p[kLimit] / std::max(in.width, in.height));
  return to_size(in.height * ratio, in.width * ratio, v);
}

// --- random_resize. p: the filter, and the bounds of the shorter edge, of which the upper one is
// excluded.

enum : int { kLeast = 1, kEnd };

const char* check_random(const double* p) {
  if (!is_edge(p[kLeast]) || !whole_between(p[kEnd], p[kLeast] + 1, kMaxEdge))
    return "a resize's bounds are out of range";
  return check_filter(p);
}

Code draw_random(const double* p, RandomStream* random, Size in, double* v) {
  const double edge = p[kLeast] + random->below(as_int(p[kEnd] - p[kLeast]));
  const double longer = edge * std::max(in.width, in.height) / std::min(in.width, in.height);
  return in.width <= in.height ? to_size(longer, edge, v) : to_size(edge, longer, v);
}

// --- scale_jitter. p: the filter, the target's first and second edge, the least scale, and how far
// scales go beyond it. torchvision computes in float32 from the scale on.

enum : int { kFirst = 1, kSecond, kScale, kRange };

const char* check_jitter(const double* p) {
  if (!is_edge(p[kFirst]) || !is_edge(p[kSecond])) return "a resize's size is out of range";
  if (!between(p[kScale], 0, kMostGrowth) || !between(p[kScale] + p[kRange], 0, kMostGrowth))
    return "a resize's scale is out of range";
  return check_filter(p);
}

Code draw_jitter(const double* p, RandomStream* random, Size in, double* v) {
  const float unit = random->uniform(0.0f, 1.0f);
  const float scale = unit * static_cast<float>(p[kRange]) + static_cast<float>(p[kScale]);
  const double fit = std::min(p[kSecond] / in.height, p[kFirst] / in.width);
  const float ratio = static_cast<float>(fit) * scale;
  return to_size(static_cast<double>(static_cast<float>(in.height) * ratio),
                 static_cast<double>(static_cast<float>(in.width) * ratio), v);
}

// --- resize_keep_ratio: both edges divided by one number, but for what is drawn. Places of the
// parameters: the size, how much the longer edge counts, and for scale and aspect the probability
// that they change and their ranges; that of the aspect as logarithms. v: height, width, filter.

enum : int {
  kToHeight,
  kToWidth,
  kFilter,
  kOtherFilter,
  kLongest,
  kScaleChance,
  kScales,
  kScaleIsArea = 8,
  kAspectChance,
  kLogAspect,
};

const char* check_keep(const double* p) {
  if (!is_edge(p[kToHeight]) || !is_edge(p[kToWidth])) return "a resize's size is out of range";
  if (!whole_between(p[kFilter], 0, 5) || !whole_between(p[kOtherFilter], -1, 5))
    return "a resize's filter is unknown";
  const bool ranges = between(p[kScales], 1e-6, 1e6) && between(p[kScales + 1], 1e-6, 1e6) &&
                      between(p[kLogAspect], -14, 14) && between(p[kLogAspect + 1], -14, 14) &&
                      between(p[kLongest], 0, 1);
  return ranges ? nullptr : "a resize's scale or aspect is out of range";
}

Code draw_keep(const double* p, RandomStream* random, Size in, double* v) {
  const double ratio_h = in.height / p[kToHeight], ratio_w = in.width / p[kToWidth];
  const double ratio =
      std::max(ratio_h, ratio_w) * p[kLongest] + std::min(ratio_h, ratio_w) * (1.0 - p[kLongest]);
  double factor_h = 1, factor_w = 1;
  if (p[kScaleChance] > 0 && random->unit() < p[kScaleChance]) {
    factor_h = uniform(random, p[kScales], p[kScales + 1]);
    if (p[kScaleIsArea] != 0) factor_h = 1.0 / std::sqrt(factor_h);
    factor_w = factor_h;
  }
  if (p[kAspectChance] > 0 && random->unit() < p[kAspectChance]) {
    const double aspect = std::sqrt(std::exp(uniform(random, p[kLogAspect], p[kLogAspect + 1])));
    factor_h /= aspect;
    factor_w *= aspect;
  }
  v[2] = draw_filter(p[kFilter], p[kOtherFilter], random);
  return to_size(std::nearbyint(in.height * factor_h / ratio),
                 std::nearbyint(in.width * factor_w / ratio), v);
}

Code fold_keep(const double*, const double* v, Folder* folder) {
  return whole_between(v[2], 0, 5) ? fold_to(v, v[2], folder) : Code::kUnsupported;
}

// --- random_zoom_out. p: the probability, the least factor of the edges, how far factors go beyond
// it, and the fill. v: whether it is applied; height and width; top and left of the image in them.

enum : int { kFactor = 1, kBeyond, kFill };
enum : int { kApplied, kOutHeight, kOutWidth, kTop, kLeft };

const char* check_zoom(const double* p) {
  if (!between(p[kFactor], 1, kMostGrowth) ||
      !between(p[kFactor] + p[kBeyond], p[kFactor], kMostGrowth))
    return "a zoom's factor is out of range";
  const char* problem = check_chance(p);
  return problem == nullptr ? check_fill(p + kFill) : problem;
}

Code draw_zoom(const double* p, RandomStream* random, Size in, double* v) {
  v[kApplied] = happens(random, p[0]);
  if (v[kApplied] == 0) return Code::kOk;
  const float unit = random->uniform(0.0f, 1.0f);
  const float factor = unit * static_cast<float>(p[kBeyond]) + static_cast<float>(p[kFactor]);
  const auto grown = [=](int edge) {
    return std::trunc(static_cast<double>(static_cast<float>(edge) * factor));
  };
  const auto share = [=](double room) {
    const float place = random->uniform(0.0f, 1.0f);
    return std::trunc(static_cast<double>(static_cast<float>(room) * place));
  };
  v[kOutHeight] = grown(in.height);
  v[kOutWidth] = grown(in.width);
  v[kLeft] = share(v[kOutWidth] - in.width);
  v[kTop] = share(v[kOutHeight] - in.height);
  return is_edge(v[kOutHeight]) && is_edge(v[kOutWidth]) ? Code::kOk : Code::kUnsupported;
}

Size zoomed(const double*, const double* v, Size in) {
  if (v[kApplied] == 0) return in;
  const bool fits = is_edge(v[kOutHeight]) && is_edge(v[kOutWidth]) &&
                    whole_between(v[kTop], 0, v[kOutHeight] - in.height) &&
                    whole_between(v[kLeft], 0, v[kOutWidth] - in.width);
  return fits ? Size{as_int(v[kOutWidth]), as_int(v[kOutHeight])} : Size{0, 0};
}

Code fold_zoom(const double* p, const double* v, Folder* folder) {
  const Size out = zoomed(p, v, folder->size());
  if (out.width == 0) return Code::kUnsupported;
  return fold_crop({-as_int(v[kLeft]), -as_int(v[kTop]), out.width, out.height}, 0, p + kFill,
                   folder);
}

}  // namespace

const Op kRandomShortestSize = {
    "random_shortest_size", check_shortest, draw_shortest, nullptr, size, fold};
const Op kRandomResize = {"random_resize", check_random, draw_random, nullptr, size, fold};
const Op kScaleJitter = {"scale_jitter", check_jitter, draw_jitter, nullptr, size, fold};
const Op kResizeKeepRatio = {"resize_keep_ratio", check_keep, draw_keep, nullptr, size, fold_keep};
const Op kRandomZoomOut = {"random_zoom_out", check_zoom, draw_zoom,
                           not_applied,       zoomed,     fold_zoom};

}  // namespace headrace
