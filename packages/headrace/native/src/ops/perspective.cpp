#include <algorithm>
#include <cmath>

#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters.
enum : int { kDistortion, kProbability, kFilter, kFill };

// v: 1 where the image is warped, then x, y of where its corners go: top left, top right, bottom
// right, bottom left.
const char* check(const double* p) {
  if (!between(p[kDistortion], 0, 1)) return "a perspective's distortion must be 0 to 1";
  if (!between(p[kProbability], 0, 1)) return "a perspective's probability must be 0 to 1";
  return check_warp(p[kFilter], p + kFill);
}

Code draw(const double* p, RandomStream* random, Size in, double* v) {
  v[0] = happens(random, p[kProbability]);
  if (v[0] == 0) return Code::kOk;
  const int half_width = in.width / 2, half_height = in.height / 2;
  const int x = static_cast<int>(p[kDistortion] * half_width) + 1;
  const int y = static_cast<int>(p[kDistortion] * half_height) + 1;
  const int right = in.width - x, bottom = in.height - y;
  const int starts[8] = {0, 0, right, 0, right, bottom, 0, bottom};
  for (int i = 0; i < 8; ++i) v[1 + i] = starts[i] + random->below(i % 2 == 0 ? x : y);
  return Code::kOk;
}

bool idle(const double*, const double* v) { return v[0] == 0; }

// How far torch's solution may be from the exact one, in units of what a coefficient can be, where
// none of them is larger than that: ten times what was met in 4,000 random samples.
constexpr double kError = 1e-12;
// Beyond, corners are so close to a line that the error would hide a coefficient.
constexpr double kLargest = 1e4;

// Solves 8 equations with 8 unknowns, `a` of 9 columns; false: they have no single solution.
bool solve(long double (&a)[8][9], long double (&x)[8]) {
  for (int i = 0; i < 8; ++i) {
    int pivot = i;
    for (int row = i + 1; row < 8; ++row)
      if (std::fabs(a[row][i]) > std::fabs(a[pivot][i])) pivot = row;
    if (a[pivot][i] == 0) return false;
    std::swap(a[i], a[pivot]);
    for (int row = i + 1; row < 8; ++row) {
      const long double factor = a[row][i] / a[i][i];
      for (int k = i; k < 9; ++k) a[row][k] -= factor * a[i][k];
    }
  }
  for (int i = 7; i >= 0; --i) {
    x[i] = a[i][8];
    for (int k = i + 1; k < 8; ++k) x[i] -= a[i][k] * x[k];
    x[i] /= a[i][i];
  }
  return true;
}

// torchvision's coefficients: torch's least squares in double, rounded to float. False: there is no
// solution, or the last bits of torch's, which depend on its linear algebra, decide about a
// rounding. So it is with each coefficient that is 0, of which torch leaves some 1e-16: where it
// moves a pixel off the middle between two values, that can be seen.
bool coefficients(Size size, const double* ends, double* rounded) {
  const double starts[8] = {
      0.0, 0.0, size.width - 1.0, 0.0, size.width - 1.0, size.height - 1.0, 0.0, size.height - 1.0};
  long double a[8][9] = {}, x[8];
  for (int i = 0; i < 8; ++i) {
    const double* end = ends + i / 2 * 2;
    const int first = i % 2 * 3;
    a[i][first] = end[0];
    a[i][first + 1] = end[1];
    a[i][first + 2] = 1;
    a[i][6] = -starts[i] * end[0];
    a[i][7] = -starts[i] * end[1];
    a[i][8] = starts[i];
  }
  if (!solve(a, x)) return false;
  const double edge = std::max(size.width, size.height);
  const double units[8] = {1, 1, edge, 1, 1, edge, 1 / edge, 1 / edge};
  double largest = 1;  // the closer corners are to a line, the larger, and the larger the error
  for (int i = 0; i < 8; ++i)
    largest = std::max(largest, std::fabs(static_cast<double>(x[i])) / units[i]);
  if (!(largest <= kLargest)) return false;
  for (int i = 0; i < 8; ++i) {
    const double error = kError * units[i] * largest * largest;
    const auto exact = static_cast<double>(x[i]);
    rounded[i] = static_cast<float>(exact - error);
    if (rounded[i] != static_cast<float>(exact + error)) return false;
  }
  return true;
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  for (int i = 1; i <= 8; ++i)
    if (!between(v[i], 0, kMaxEdge)) return Code::kUnsupported;
  const ImageView& image = canvas->image();
  ops::Map map;
  map.perspective = true;
  if (!coefficients({image.width, image.height}, v + 1, map.m)) return Code::kUnsupported;
  return warp_canvas(map, p[kFilter], p + kFill, canvas);
}

}  // namespace

const Op kRandomPerspective = {"random_perspective", check, draw, idle, nullptr, nullptr, pixels};

}  // namespace headrace
