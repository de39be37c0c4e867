#include <cmath>

#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters; each range is a pair. The flags say whether a range is drawn from, and
// whether the center is given (x, y in pixels) or the image's. kShears: how many of them are drawn.
enum : int {
  kDegrees = 0,
  kTranslate = 2,  // fractions of the width and of the height
  kTranslates = 4,
  kScale = 5,
  kScales = 7,
  kShear = 8,
  kShears = 12,
  kFilter = 13,
  kFill = 14,
  kCenter = 17,
  kCentered = 19,
  kIsV2 = 20,
};

enum : int { kAngle, kX, kY, kFactor, kShearX, kShearY };

const char* check(const double* p) {
  if (!between(p[kTranslate], 0, 1) || !between(p[kTranslate + 1], 0, 1))
    return "an affine map's translation must be 0 to 1";
  if (p[kScales] != 0 && !(p[kScale] > 0 && p[kScale + 1] > 0))
    return "an affine map's scale must be positive";
  if (!whole_between(p[kShears], 0, 2)) return "an affine map has 0 to 2 shears";
  return check_warp(p[kFilter], p + kFill);
}

Code draw(const double* p, RandomStream* random, Size in, double* v) {
  const auto uniform = [random](double low, double high) {
    return static_cast<double>(random->uniform(static_cast<float>(low), static_cast<float>(high)));
  };
  v[kAngle] = uniform(p[kDegrees], p[kDegrees + 1]);
  if (p[kTranslates] != 0) {
    const double most_x = p[kTranslate] * in.width, most_y = p[kTranslate + 1] * in.height;
    v[kX] = std::nearbyint(uniform(-most_x, most_x));
    v[kY] = std::nearbyint(uniform(-most_y, most_y));
  }
  v[kFactor] = p[kScales] != 0 ? uniform(p[kScale], p[kScale + 1]) : 1;
  if (p[kShears] >= 1) v[kShearX] = uniform(p[kShear], p[kShear + 1]);
  if (p[kShears] >= 2) v[kShearY] = uniform(p[kShear + 2], p[kShear + 3]);
  return Code::kOk;
}

bool idle(const double*, const double* v) {
  return v[kAngle] == 0 && v[kX] == 0 && v[kY] == 0 && v[kFactor] == 1 && v[kShearX] == 0 &&
         v[kShearY] == 0;
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  if (!(v[kFactor] > 0)) return Code::kUnsupported;
  const ImageView& image = canvas->image();
  const double* center = p[kCentered] != 0 ? p + kCenter : nullptr;
  const ops::Map map = ops::plan_affine(image.width, image.height, v[kAngle], v + kX, v[kFactor],
                                        v + kShearX, center, p[kIsV2] != 0);
  return warp_canvas(map, p[kFilter], p + kFill, canvas);
}

}  // namespace

const Op kRandomAffine = {"random_affine", check, draw, idle, nullptr, nullptr, pixels};

}  // namespace headrace
