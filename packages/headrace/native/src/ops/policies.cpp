// RandAugment, TrivialAugmentWide and AutoAugment: simple operations of random magnitudes.
#include <cmath>

#include "headrace.h"
#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// In the order of transforms/policies.py.
enum : int {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColor,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutoContrast,
  kEqualize,
  kInvert,
  kKinds,
};

// Places of the parameters. kBins: how many magnitudes each operation has. kFraction: the largest
// translation as a fraction of the edge; 0: translations are in pixels. kSigned and kGraded: bits
// of the operations whose magnitudes may be negative, and of those that have any. kCount: how many
// operations RandAugment chooses from, and how many policies AutoAugment. kSteps: how many
// operations RandAugment applies. kPlace: that of its magnitude; -1: it is drawn.
enum : int {
  kFilter,
  kFill,
  kIsV2 = 4,
  kBins,
  kFraction,
  kSigned,
  kGraded,
  kCount,
  kSteps,
  kPlace
};

constexpr int kMostBins = 1024;
constexpr int kMostPolicies = 1024;
constexpr int kMostSteps = HR_DRAWS / 3;

const char* check(const double* p) {
  if (!whole_between(p[kBins], 1, kMostBins)) return "a policy has too few or too many magnitudes";
  if (!between(p[kFraction], 0, 1)) return "a policy's translations must be 0 to 1 of an edge";
  if (!whole_between(p[kSigned], 0, (1 << kKinds) - 1) ||
      !whole_between(p[kGraded], 0, (1 << kKinds) - 1))
    return "a policy's operations are unknown";
  return check_warp(p[kFilter], p + kFill);
}

const char* check_rand(const double* p) {
  if (!whole_between(p[kCount], 1, kKinds)) return "a policy chooses from unknown operations";
  if (!whole_between(p[kSteps], 0, kMostSteps)) return "a policy applies too many operations";
  if (!whole_between(p[kPlace], -1, p[kBins] - 1)) return "a policy's magnitude is unknown";
  return check(p);
}

const char* check_auto(const double* p) {
  return whole_between(p[kCount], 1, kMostPolicies) ? check(p) : "there are no policies";
}

struct Step {
  int kind = kIdentity;
  int place = 0;  // of its magnitude
  bool negative = false;
};

// A translation in pixels; kUnsupported: float32's rounding decides, which torch knows best.
Code translation(const double* p, int place, int edge, double* pixels) {
  const auto most = static_cast<double>(static_cast<float>(p[kFraction] * edge));
  const int last = as_int(p[kBins]) - 1;
  const double value = last == 0 ? 0 : most * place / last;
  const double error = place == 0 || place == last ? 0 : value * 2e-6;
  *pixels = std::trunc(value);
  return std::trunc(value - error) == std::trunc(value + error) ? Code::kOk : Code::kUnsupported;
}

Code turn(const double* p, double degrees, Canvas* canvas) {
  const ImageView& image = canvas->image();
  return rotate_canvas(ops::plan_rotation(image.width, image.height, degrees, false, nullptr),
                       p[kFilter], p + kFill, canvas);
}

// A shear or a translation.
Code move(const double* p, int kind, double magnitude, Canvas* canvas) {
  const ImageView& image = canvas->image();
  const double corner[2] = {0, 0};
  double shear[2] = {0, 0}, translate[2] = {0, 0};
  const bool shears = kind == kShearX || kind == kShearY;
  const bool along_y = kind == kShearY || kind == kTranslateY;
  constexpr double kDegrees = 180.0 / 3.141592653589793;
  (shears ? shear : translate)[along_y ? 1 : 0] =
      shears ? std::atan(magnitude) * kDegrees : std::trunc(magnitude);
  const ops::Map map = ops::plan_affine(image.width, image.height, 0, translate, 1, shear,
                                        shears ? corner : nullptr, p[kIsV2] != 0);
  return warp_canvas(map, p[kFilter], p + kFill, canvas);
}

Code look_up(int kind, double magnitude, Canvas* canvas) {
  if (kind == kAutoContrast) return append_counted(&ops::LevelTable::append_autocontrast, canvas);
  if (kind == kEqualize) return append_counted(&ops::LevelTable::append_equalize, canvas);
  ops::LevelTable* levels = canvas->levels();
  if (kind == kBrightness) levels->append_brightness(1.0 + magnitude);
  if (kind == kPosterize) levels->append_posterize(as_int(magnitude));
  if (kind == kSolarize) levels->append_solarize(magnitude);
  if (kind == kInvert) levels->append_invert();
  return Code::kOk;
}

Code apply(const double* p, const Step& step, Canvas* canvas) {
  const int kind = step.kind, bins = as_int(p[kBins]);
  if (kind < 0 || kind >= kKinds || step.place < 0 || step.place >= bins) return Code::kUnsupported;
  auto magnitude = static_cast<double>(canvas->data()[kind * bins + step.place]);
  if ((kind == kTranslateX || kind == kTranslateY) && p[kFraction] > 0) {
    const ImageView& image = canvas->image();
    const int edge = kind == kTranslateX ? image.width : image.height;
    const Code code = translation(p, step.place, edge, &magnitude);
    if (code != Code::kOk) return code;
  }
  if (!between(magnitude, -kMaxEdge, kMaxEdge)) return Code::kUnsupported;
  if (step.negative) magnitude = -magnitude;
  switch (kind) {
    case kIdentity:
      return Code::kOk;
    case kRotate:
      return turn(p, magnitude, canvas);
    case kColor:
      ops::adjust_saturation(canvas->image(), 1.0 + magnitude);
      return Code::kOk;
    case kContrast:
      ops::adjust_contrast(canvas->image(), 1.0 + magnitude);
      return Code::kOk;
    case kSharpness:
      return sharpen_canvas(1.0 + magnitude, canvas);
    case kPosterize:
      return whole_between(magnitude, 1, 8) ? look_up(kind, magnitude, canvas) : Code::kUnsupported;
    case kSolarize:
      return look_up(kind, p[kIsV2] != 0 ? 255.0 * magnitude : magnitude, canvas);
    case kBrightness:
    case kAutoContrast:
    case kEqualize:
    case kInvert:
      return look_up(kind, magnitude, canvas);
    default:
      return move(p, kind, magnitude, canvas);
  }
}

// --- rand_augment. v, for each operation: which it is, the place of its magnitude, and whether
// that is negative. data: the magnitudes of each operation.

int64_t rand_data(const double* p) { return int64_t{kKinds} * as_int(p[kBins]); }

Code rand_draw(const double* p, RandomStream* random, Size, double* v) {
  for (int i = 0; i < as_int(p[kSteps]); ++i, v += 3) {
    const int kind = random->below(as_int(p[kCount]));
    v[0] = kind;
    if (has_bit(p[kGraded], kind))
      v[1] = p[kPlace] >= 0 ? p[kPlace] : random->below(as_int(p[kBins]));
    if (has_bit(p[kSigned], kind))
      v[2] = p[kIsV2] != 0 ? random->uniform(0.0f, 1.0f) <= 0.5f : random->below(2);
  }
  return Code::kOk;
}

bool rand_idle(const double* p, const double* v) {
  for (int i = 0; i < as_int(p[kSteps]); ++i)
    if (v[3 * i] != kIdentity) return false;
  return true;
}

Code rand_pixels(const double* p, const double* v, Canvas* canvas) {
  for (int i = 0; i < as_int(p[kSteps]); ++i, v += 3) {
    if (!whole_between(v[0], 0, kKinds) || !whole_between(v[1], 0, kMostBins))
      return Code::kUnsupported;
    const Code code = apply(p, {as_int(v[0]), as_int(v[1]), v[2] != 0}, canvas);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

// --- auto_augment. v: the policy, and four random numbers: in v1 those that decide which of its
// two operations are applied, and two signs; in v2 each operation's is followed by its sign's, if
// it needs one. data: the magnitudes; then for both operations of each policy which it is, its
// probability and the place of its magnitude.

int64_t auto_data(const double* p) { return rand_data(p) + int64_t{6} * as_int(p[kCount]); }

Code auto_draw(const double* p, RandomStream* random, Size, double* v) {
  v[0] = random->below(as_int(p[kCount]));
  for (int i = 1; i <= 4; ++i) v[i] = p[kIsV2] != 0 || i <= 2 ? random->unit() : random->below(2);
  return Code::kOk;
}

Code auto_pixels(const double* p, const double* v, Canvas* canvas) {
  if (!whole_between(v[0], 0, p[kCount] - 1)) return Code::kUnsupported;
  const float* part = canvas->data() + rand_data(p) + int64_t{6} * as_int(v[0]);
  const bool is_v2 = p[kIsV2] != 0;
  int next = 1;
  for (int i = 0; i < 2; ++i, part += 3) {
    const auto kind = static_cast<double>(part[0]), place = static_cast<double>(part[2]);
    if (!(v[is_v2 ? next++ : 1 + i] <= static_cast<double>(part[1]))) continue;
    if (!whole_between(kind, 0, kKinds - 1) || !whole_between(place, 0, kMostBins))
      return Code::kUnsupported;
    Step step = {as_int(kind), as_int(place)};
    if (has_bit(p[kSigned], step.kind)) step.negative = is_v2 ? v[next++] <= 0.5 : v[3 + i] == 0;
    const Code code = apply(p, step, canvas);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

}  // namespace

const Op kRandAugment = {"rand_augment", check_rand,  rand_draw, rand_idle, nullptr,
                         nullptr,        rand_pixels, nullptr,   rand_data};
const Op kAutoAugment = {"auto_augment", check_auto,  auto_draw, nullptr,  nullptr,
                         nullptr,        auto_pixels, nullptr,   auto_data};

}  // namespace headrace
