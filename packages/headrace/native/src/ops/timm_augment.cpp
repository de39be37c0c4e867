// timm's RandAugment, AutoAugment and AugMix: Pillow operations of random magnitudes.
#include <algorithm>
#include <cmath>

#include "headrace.h"
#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// In the order of transforms/timm_augment.py.
enum : int {
  kNothing,
  kShearX,
  kShearY,
  kTranslateX,  // by pixels
  kTranslateY,
  kTranslateXRel,  // by a fraction of the edge
  kTranslateYRel,
  kRotate,
  kAutoContrast,
  kEqualize,
  kInvert,
  kPosterize,
  kPosterizeIncreasing,
  kPosterizeOriginal,
  kSolarize,
  kSolarizeIncreasing,
  kSolarizeAdd,
  kColor,
  kContrast,
  kBrightness,
  kSharpness,
  kColorIncreasing,
  kContrastIncreasing,
  kBrightnessIncreasing,
  kSharpnessIncreasing,
  kDesaturate,
  kBlur,
  kBlurRand,
  kKinds,
};

// Places of the parameters. kStd: the standard deviation of magnitudes; -1: they are drawn from 0
// to the magnitude. kMost: their upper bound. kRows: how many policies there are, or operations.
// kSteps: how many operations are applied. kPolicies: 1 where a policy is chosen, whose operations
// are applied one after another; 0: each of them is chosen. kWeighted: they have weights, and none
// is chosen twice. kKeepsNoBits: Pillow posterizes to 0 bits; 0: it raises an error for them. The
// last four are AugMix's.
// data: of each operation its kind, the greatest random number by which it is applied, and its
// magnitude; then the weights.
// v, of each operation that is applied: kind, argument, filter.
enum : int {
  kFilter,
  kOtherFilter,
  kFill,
  kStd = 5,
  kMost,
  kTranslation,
  kFraction,
  kRows,
  kSteps,
  kPolicies,
  kWeighted,
  kKeepsNoBits,
  kWidth,
  kDepth,
  kAlpha,
  kBlended,
};

constexpr int kMostRows = 256;
constexpr int kMostSteps = HR_DRAWS / 3;
constexpr double kMostBlur = 64;

const char* check(const double* p) {
  if (!whole_between(p[kRows], 1, kMostRows)) return "there are too few or too many operations";
  if (!whole_between(p[kSteps], 0, kMostSteps)) return "too many operations are applied";
  if (p[kWeighted] != 0 && p[kSteps] > p[kRows]) return "too many operations are applied";
  if (!between(p[kStd], -1, 1e6) || !between(p[kMost], 0, 1e6) ||
      !between(p[kTranslation], 0, 1e6) || !between(p[kFraction], 0, 1e3))
    return "an operation's magnitude is out of range";
  const bool other = p[kOtherFilter] == -1 || check_warp(p[kOtherFilter], p + kFill) == nullptr;
  return other ? check_warp(p[kFilter], p + kFill) : "a warp's other filter is unknown";
}

int64_t operations(const double* p) {
  return int64_t{as_int(p[kRows])} * (p[kPolicies] != 0 ? as_int(p[kSteps]) : 1);
}

int64_t data_count(const double* p) {
  return 3 * operations(p) + (p[kWeighted] != 0 ? as_int(p[kRows]) : 0);
}

// As Python's random.gauss.
double gauss(RandomStream* random, double mean, double deviation) {
  const double angle = random->unit() * 6.283185307179586;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random->unit()));
  return mean + std::cos(angle) * radius * deviation;
}

double clamped(double value, double low, double high) {
  return std::max(low, std::min(value, high));
}

// What a magnitude means to an operation, as an argument of Pillow's.
double argument(const double* p, int kind, double magnitude, RandomStream* random) {
  const double level = magnitude / 10.0;
  const auto negated = [random](double value) { return random->unit() > 0.5 ? -value : value; };
  switch (kind) {
    case kShearX:
    case kShearY:
      return negated(level * 0.3);
    case kTranslateX:
    case kTranslateY:
      return negated(level * p[kTranslation]);
    case kTranslateXRel:
    case kTranslateYRel:
      return negated(level * p[kFraction]);
    case kRotate:
      return negated(level * 30.0);
    case kPosterize:
      return std::trunc(level * 4);
    case kPosterizeIncreasing:
      return 4 - std::trunc(level * 4);
    case kPosterizeOriginal:
      return std::trunc(level * 4) + 4;
    case kSolarize:
      return std::min(256.0, std::trunc(level * 256));
    case kSolarizeIncreasing:
      return 256 - std::min(256.0, std::trunc(level * 256));
    case kSolarizeAdd:
      return std::min(128.0, std::trunc(level * 110));
    case kColor:
    case kContrast:
    case kBrightness:
    case kSharpness:
      return level * 1.8 + 0.1;
    case kColorIncreasing:
    case kContrastIncreasing:
    case kBrightnessIncreasing:
    case kSharpnessIncreasing:
      return std::max(0.1, 1.0 + negated(level * .9));
    case kDesaturate:
      return std::min(1.0, std::max(0.0, 1.0 - clamped(0.5 + 0.5 * level, 0.5, 1.0)));
    case kBlur:
      return clamped(0.1 + (2.0 - 0.1) * level, 0.1, 2.0);
    case kBlurRand:
      return uniform(random, 0.1, 2.0 * clamped(level, 0.0, 1.0));
    default:
      return 0;
  }
}

bool moves(int kind) { return kind >= kShearX && kind <= kRotate; }

void draw_step(const double* p, const float* row, RandomStream* random, double* v) {
  const auto known = static_cast<double>(row[0]);
  const int kind = whole_between(known, 0, kKinds - 1) ? as_int(known) : kNothing;
  if (row[1] < 1.0F && random->uniform(0.0f, 1.0f) > row[1]) return;
  auto magnitude = static_cast<double>(row[2]);
  if (p[kStd] < 0) magnitude = uniform(random, 0, magnitude);
  if (p[kStd] > 0) magnitude = gauss(random, magnitude, p[kStd]);
  v[0] = kind;
  v[1] = argument(p, kind, clamped(magnitude, 0.0, p[kMost]), random);
  if (moves(kind)) v[2] = draw_filter(p[kFilter], p[kOtherFilter], random);
}

// The rows that are chosen; with weights none of them twice.
void choose(const double* p, const float* weights, RandomStream* random, int* rows) {
  const int count = as_int(p[kRows]);
  bool taken[kMostRows] = {};
  for (int i = 0; i < as_int(p[kSteps]); ++i) {
    if (p[kWeighted] == 0) {
      rows[i] = random->below(count);
      continue;
    }
    double sum = 0;
    for (int row = 0; row < count; ++row) sum += taken[row] ? 0 : static_cast<double>(weights[row]);
    double left = random->unit() * sum;
    int last = -1;
    for (int row = 0; row < count && (last < 0 || left >= 0); ++row) {
      if (taken[row]) continue;
      left -= static_cast<double>(weights[row]);
      last = row;
    }
    taken[last] = true;
    rows[i] = last;
  }
}

Code draw(const double* p, const float* data, RandomStream* random, Size, double* v) {
  const int steps = as_int(p[kSteps]);
  if (p[kPolicies] != 0) {
    const float* row = data + int64_t{3} * random->below(as_int(p[kRows])) * steps;
    for (int i = 0; i < steps; ++i)
      draw_step(p, row + ptrdiff_t{3} * i, random, v + ptrdiff_t{3} * i);
    return Code::kOk;
  }
  int rows[kMostSteps] = {};
  choose(p, data + 3 * operations(p), random, rows);
  for (int i = 0; i < steps; ++i)
    draw_step(p, data + ptrdiff_t{3} * rows[i], random, v + ptrdiff_t{3} * i);
  return Code::kOk;
}

bool idle(const double* p, const double* v) {
  for (int i = 0; i < as_int(p[kSteps]); ++i)
    if (v[ptrdiff_t{3} * i] != kNothing) return false;
  return true;
}

Code move(const double* p, int kind, double amount, double filter, Canvas* canvas) {
  const ImageView& image = canvas->image();
  if (kind == kRotate)
    return rotate_canvas(ops::plan_rotation(image.width, image.height, amount, false, nullptr),
                         filter, p + kFill, canvas);
  if (kind == kTranslateXRel) amount *= image.width;
  if (kind == kTranslateYRel) amount *= image.height;
  ops::Map map;
  if (kind == kShearX) map.m[1] = amount;
  if (kind == kShearY) map.m[3] = amount;
  if (kind == kTranslateX || kind == kTranslateXRel) map.m[2] = amount;
  if (kind == kTranslateY || kind == kTranslateYRel) map.m[5] = amount;
  return warp_canvas(map, filter, p + kFill, canvas);
}

Code enhance(int kind, double factor, Canvas* canvas) {
  switch (kind) {
    case kContrast:
    case kContrastIncreasing:
      ops::adjust_contrast(canvas->image(), factor);
      return Code::kOk;
    case kBrightness:
    case kBrightnessIncreasing:
      canvas->levels()->append_brightness(factor);
      return Code::kOk;
    case kSharpness:
    case kSharpnessIncreasing:
      return sharpen_canvas(factor, canvas);
    default:
      ops::adjust_saturation(canvas->image(), factor);
      return Code::kOk;
  }
}

Code apply(const double* p, int kind, double amount, double filter, Canvas* canvas) {
  if (moves(kind))
    return check_warp(filter, p + kFill) == nullptr ? move(p, kind, amount, filter, canvas)
                                                    : Code::kUnsupported;
  switch (kind) {
    case kNothing:
      return Code::kOk;
    case kAutoContrast:
      return append_counted(&ops::LevelTable::append_autocontrast, canvas);
    case kEqualize:
      return append_counted(&ops::LevelTable::append_equalize, canvas);
    case kInvert:
      canvas->levels()->append_invert();
      return Code::kOk;
    case kPosterize:
    case kPosterizeIncreasing:
    case kPosterizeOriginal:
      if (!whole_between(amount, p[kKeepsNoBits] != 0 ? 0 : 1, 8)) return Code::kUnsupported;
      canvas->levels()->append_posterize(as_int(amount));
      return Code::kOk;
    case kSolarize:
    case kSolarizeIncreasing:
      canvas->levels()->append_solarize(amount);
      return Code::kOk;
    case kSolarizeAdd:
      if (!whole_between(amount, 0, 255)) return Code::kUnsupported;
      canvas->levels()->append_solarize_add(as_int(amount), 128);
      return Code::kOk;
    case kBlur:
    case kBlurRand:
      return between(amount, 0, kMostBlur) ? blur_canvas(amount, amount, canvas)
                                           : Code::kUnsupported;
    default:
      return enhance(kind, amount, canvas);
  }
}

Code apply_steps(const double* p, const double* v, int steps, Canvas* canvas) {
  for (int i = 0; i < steps; ++i, v += 3) {
    if (!whole_between(v[0], 0, kKinds - 1) || !between(v[1], -kMaxEdge, kMaxEdge))
      return Code::kUnsupported;
    const Code code = apply(p, as_int(v[0]), v[1], v[2], canvas);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  return apply_steps(p, v, as_int(p[kSteps]), canvas);
}

// --- timm_aug_mix: kWidth chains of kDepth operations (0: 1 to 3, drawn), mixed with shares that
// kAlpha is the parameter of, and the image blended towards that. kBlended: each chain's image is
// blended into the image instead. v: how far towards the mixture; the chains' shares, or how far
// towards each; then the operations of each chain, as above.

constexpr int kMostDrawn = 3;  // where the depth is drawn
constexpr double kWhole[] = {1};

int most_depth(const double* p) { return p[kDepth] > 0 ? as_int(p[kDepth]) : kMostDrawn; }

const char* check_mix(const double* p) {
  if (!whole_between(p[kWidth], 1, HR_DRAWS) || !whole_between(p[kDepth], 0, HR_DRAWS) ||
      1 + p[kWidth] * (1 + 3 * most_depth(p)) > HR_DRAWS)
    return "AugMix has too many chains";
  if (!between(p[kAlpha], 1e-3, 1e3)) return "AugMix's alpha must be 0.001 to 1000";
  if (p[kPolicies] != 0 || p[kWeighted] != 0) return "AugMix's operations are all equally likely";
  return check(p);
}

Code draw_mix(const double* p, const float* data, RandomStream* random, Size, double* v) {
  const int width = as_int(p[kWidth]), most = most_depth(p);
  float shares[HR_DRAWS], both[2];
  random->shares(p[kAlpha], width, shares);
  random->shares(p[kAlpha], 2, both);
  v[0] = static_cast<double>(both[0]);
  float left = 1;  // of what the chains before the last ones leave
  for (int i = width - 1; i >= 0; --i) {
    const float share = p[kBlended] != 0 ? shares[i] * both[0] / left : shares[i];
    v[1 + i] = std::min(1.0, static_cast<double>(share));
    left *= 1 - share;
  }
  double* step = v + 1 + width;
  for (int chain = 0; chain < width; ++chain, step += 3 * most) {
    const int depth = p[kDepth] > 0 ? most : 1 + random->below(kMostDrawn);
    int rows[HR_DRAWS];
    for (int i = 0; i < depth; ++i) rows[i] = random->below(as_int(p[kRows]));
    for (int i = 0; i < depth; ++i)
      draw_step(p, data + ptrdiff_t{3} * rows[i], random, step + ptrdiff_t{3} * i);
  }
  return Code::kOk;
}

Code mix_pixels(const double* p, const double* v, Canvas* canvas) {
  const int width = as_int(p[kWidth]), depth = most_depth(p);
  ImageView images[ops::kMostMixed];
  for (int i = 0; i <= width; ++i)
    if (!between(v[i], 0, 1)) return Code::kUnsupported;
  Code code = change_copies(width, canvas, images, [&](int chain) {
    return apply_steps(p, v + 1 + width + ptrdiff_t{3} * chain * depth, depth, canvas);
  });
  if (code != Code::kOk) return code;
  if (p[kBlended] == 0) {
    code = mix_images(images + 1, v + 1, width, canvas);
    ops::blend(images[0], v[0], canvas->image());
    return code;
  }
  for (int i = 1; i <= width; ++i) ops::blend(images[i - 1], v[i], images[i]);
  return mix_images(images + width, kWhole, 1, canvas);
}

}  // namespace

const Op kTimmAugMix = {"timm_aug_mix", check_mix,  nullptr, nullptr,    nullptr,
                        nullptr,        mix_pixels, nullptr, data_count, draw_mix};
const Op kTimmAugment = {"timm_augment", check,  nullptr, idle,       nullptr,
                         nullptr,        pixels, nullptr, data_count, draw};

}  // namespace headrace
