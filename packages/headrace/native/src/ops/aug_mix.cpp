// AugMix: several chains of simple operations, mixed with the image. torchvision computes all of it
// on tensors.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "headrace.h"
#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// In the order of transforms/aug_mix.py.
enum : int {
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kKinds,
};

// Places of the parameters. kHasFill: whether a fill was given, of red, green, blue. kSeverity: how
// many magnitudes there are to choose from. kWidth: how many chains. kDepth: operations of a chain;
// 0: 1 to 3 of them, drawn. kCount: how many operations there are to choose from. kSigned and
// kGraded: bits of those whose magnitudes may be negative, and of those that have any. kFusedGrid:
// see ops::TorchWarp.
// data: the magnitudes of each operation; translations are in shares of the edge.
// v: the weights of the image and of each chain; then kDepth (or 3) numbers for each chain: which
// operation, the place of its magnitude and whether that is negative, in one; -1: none.
enum : int {
  kFilter,
  kHasFill,
  kFill,
  kIsV2 = 5,
  kSeverity,
  kWidth,
  kDepth,
  kAlpha,
  kCount,
  kSigned,
  kGraded,
  kFusedGrid,
};

constexpr int kMagnitudes = 10;
constexpr int kMostDrawn = 3;  // where the depth is drawn
// torch multiplies smaller matrices itself, without fused multiply-adds (bmm_out_or_baddbmm_).
constexpr int kLeastProducts = 400;

int most_depth(const double* p) { return p[kDepth] > 0 ? as_int(p[kDepth]) : kMostDrawn; }

const char* check(const double* p) {
  if (p[kFilter] != 0 && p[kFilter] != 2) return "AugMix's filter must be nearest or bilinear";
  for (int c = 0; c < 3; ++c)
    if (!between(p[kFill + c], 0, 255)) return "AugMix's fill must be three levels of 0 to 255";
  if (!whole_between(p[kSeverity], 1, kMagnitudes)) return "AugMix's severity must be 1 to 10";
  if (!whole_between(p[kWidth], 1, HR_DRAWS) || !whole_between(p[kDepth], 0, HR_DRAWS) ||
      1 + p[kWidth] * (1 + most_depth(p)) > HR_DRAWS)
    return "AugMix has too many chains";
  if (!between(p[kAlpha], 1e-3, 1e3)) return "AugMix's alpha must be 0.001 to 1000";
  if (!whole_between(p[kCount], 1, kKinds)) return "AugMix's operations are unknown";
  const int all = (1 << kKinds) - 1;
  return whole_between(p[kSigned], 0, all) && whole_between(p[kGraded], 0, all)
             ? nullptr
             : "AugMix's operations are unknown";
}

int64_t data_count(const double*) { return int64_t{kKinds} * kMagnitudes; }

// torch's Dirichlet distribution gives neither 0 nor 1.
void bound(float* shares, int count) {
  for (int i = 0; i < count; ++i)
    shares[i] = std::min(std::max(shares[i], FLT_MIN), std::nextafter(1.0f, 0.0f));
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  const int width = as_int(p[kWidth]), most = most_depth(p);
  float both[2], shares[HR_DRAWS];
  random->shares(p[kAlpha], 2, both);
  random->shares(p[kAlpha], width, shares);
  bound(both, 2);
  bound(shares, width);
  *v++ = static_cast<double>(both[0]);
  for (int i = 0; i < width; ++i) *v++ = static_cast<double>(shares[i] * both[1]);
  for (int i = 0; i < width; ++i, v += most) {
    std::fill_n(v, most, -1);
    const int depth = p[kDepth] > 0 ? most : 1 + random->below(kMostDrawn);
    for (int step = 0; step < depth; ++step) {
      const int kind = random->below(as_int(p[kCount]));
      const int place = has_bit(p[kGraded], kind) ? random->below(as_int(p[kSeverity])) : 0;
      bool negative = false;
      if (has_bit(p[kSigned], kind))
        negative = p[kIsV2] != 0 ? random->uniform(0.0f, 1.0f) <= 0.5f : random->below(2) != 0;
      v[step] = 2 * (kMagnitudes * kind + place) + (negative ? 1 : 0);
    }
  }
  return Code::kOk;
}

// --- one operation ---

Code warp(const double* p, const ops::Map& map, Canvas* canvas) {
  float fill[3];
  for (int c = 0; c < 3; ++c) fill[c] = static_cast<float>(p[kFill + c]);
  const Filter filter = p[kFilter] == 0 ? Filter::kNearest : Filter::kBilinear;
  const int64_t products = int64_t{6} * canvas->image().width * canvas->image().height;
  const ops::TorchWarp warp = {map, filter, p[kHasFill] != 0 ? fill : nullptr, p[kIsV2] != 0,
                               p[kFusedGrid] != 0 && products >= kLeastProducts};
  return canvas->redraw([&](const ImageView& image, const ImageView& out) {
    ops::torch_affine(image, warp, out);
    return Code::kOk;
  });
}

Code move(const double* p, int kind, double magnitude, Canvas* canvas) {
  const ImageView& image = canvas->image();
  const bool shears = kind == kShearX || kind == kShearY, turns = kind == kRotate;
  const bool along_y = kind == kShearY || kind == kTranslateY;
  double shear[2] = {0, 0}, translate[2] = {0, 0};
  constexpr double kDegrees = 180.0 / 3.141592653589793;
  if (shears) shear[along_y ? 1 : 0] = std::atan(magnitude) * kDegrees;
  if (!shears && !turns) translate[along_y ? 1 : 0] = magnitude;
  // Shears leave the corner where it is.
  const double center[2] = {shears ? 0 - image.width * 0.5 : 0,
                            shears ? 0 - image.height * 0.5 : 0};
  const ops::Map map = ops::plan_affine(image.width, image.height, turns ? -magnitude : 0,
                                        translate, 1, shear, center, p[kIsV2] != 0);
  return warp(p, map, canvas);
}

// `share` of the edge in whole pixels; kUnsupported: float32's rounding decides, which torch knows
// best.
Code translation(double share, int edge, double* pixels) {
  const double value = share * edge, error = value * 2e-6;
  *pixels = std::trunc(value);
  return std::trunc(value - error) == std::trunc(value + error) ? Code::kOk : Code::kUnsupported;
}

Code look_up(int kind, double magnitude, bool v2, Canvas* canvas) {
  if (kind == kEqualize) return append_counted(&ops::LevelTable::append_equalize, canvas);
  if (kind == kAutoContrast) return append_torch_autocontrast(v2, canvas);
  if (kind == kContrast) {
    const ImageView& image = canvas->image();
    return canvas->levels()->append_torch_contrast(image, 1.0 + magnitude, v2);
  }
  if (kind == kPosterize && !whole_between(magnitude, 0, 8)) return Code::kUnsupported;
  ops::LevelTable* levels = canvas->levels();
  if (kind == kBrightness) levels->append_brightness(1.0 + magnitude);
  if (kind == kPosterize) levels->append_posterize(as_int(magnitude));
  if (kind == kSolarize)  // torch compares in float32
    levels->append_solarize(static_cast<float>(v2 ? 255.0 * magnitude : magnitude));
  return Code::kOk;
}

Code apply(const double* p, int code, Canvas* canvas) {
  const bool v2 = p[kIsV2] != 0;
  const int kind = code / (2 * kMagnitudes), place = code / 2 % kMagnitudes;
  auto magnitude = static_cast<double>(canvas->data()[kind * kMagnitudes + place]);
  if (!between(magnitude, -kMaxEdge, kMaxEdge)) return Code::kUnsupported;
  if (kind == kTranslateX || kind == kTranslateY) {
    const ImageView& image = canvas->image();
    const int edge = kind == kTranslateX ? image.width : image.height;
    const Code whole = translation(magnitude, edge, &magnitude);
    if (whole != Code::kOk) return whole;
  }
  if (code % 2 != 0) magnitude = -magnitude;
  switch (kind) {
    case kShearX:
    case kShearY:
    case kTranslateX:
    case kTranslateY:
    case kRotate:
      return move(p, kind, magnitude, canvas);
    case kColor:
      ops::torch_saturation(canvas->image(), 1.0 + magnitude, v2);
      return Code::kOk;
    case kSharpness:
      return canvas->redraw([=](const ImageView& image, const ImageView& out) {
        ops::torch_sharpness(image, 1.0 + magnitude, v2, out);
        return Code::kOk;
      });
    default:
      return look_up(kind, magnitude, v2, canvas);
  }
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  const int width = as_int(p[kWidth]), depth = most_depth(p);
  ImageView images[ops::kMostMixed];
  const double* codes = v + 1 + width;
  const Code code = change_copies(width, canvas, images, [&](int chain) {
    for (int step = chain * depth; step < (chain + 1) * depth; ++step) {
      if (codes[step] == -1) continue;
      if (!whole_between(codes[step], 0, 2 * kMagnitudes * kKinds - 1)) return Code::kUnsupported;
      const Code applied = apply(p, as_int(codes[step]), canvas);
      if (applied != Code::kOk) return applied;
    }
    return Code::kOk;
  });
  return code == Code::kOk ? mix_images(images, v, width + 1, canvas) : code;
}

}  // namespace

const Op kAugMix = {"aug_mix", check, draw, nullptr, nullptr, nullptr, pixels, nullptr, data_count};

}  // namespace headrace
