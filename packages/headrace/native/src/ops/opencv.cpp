// What is recorded of OpenCV's functions: no parameters are drawn.
#include <algorithm>
#include <cmath>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

Code to_hsv(const double*, const double*, Canvas* canvas) {
  ops::opencv_to_hsv(canvas->image());
  return Code::kOk;
}

// p: pixels that OpenCV computes together.
const char* check_from_hsv(const double* p) {
  return whole_between(p[0], 1, 256) ? nullptr : "1 to 256 pixels are computed together";
}

Code from_hsv(const double* p, const double*, Canvas* canvas) {
  ops::opencv_from_hsv(canvas->image(), as_int(p[0]));
  return Code::kOk;
}

// p: the sizes of the kernels along x and y, both odd. v: the weights along x, of 256, from the
// first to the one in the middle, and from 16 on those along y.
enum : int { kSizeX, kSizeY };
constexpr int kTaps = 16;
constexpr int kMostTaps = 2 * kTaps - 1;
constexpr int kMostWeight = 257;  // of all taps

const char* check_blur(const double* p) {
  for (const int size : {kSizeX, kSizeY})
    if (!whole_between(p[size], 1, kMostTaps) || as_int(p[size]) % 2 == 0)
      return "a blur's kernel must have 1 to 31 taps, an odd number";
  return nullptr;
}

bool read_weights(const double* v, int size, uint16_t* weights) {
  double sum = 0;
  for (int i = 0; i < size; ++i) {
    const double weight = v[std::min(i, size - 1 - i)];
    if (!whole_between(weight, 0, kMostWeight)) return false;
    weights[i] = static_cast<uint16_t>(weight);
    sum += weight;
  }
  return sum <= kMostWeight;
}

Code blur(const double* p, const double* v, Canvas* canvas) {
  const int size_x = as_int(p[kSizeX]), size_y = as_int(p[kSizeY]);
  uint16_t x[kMostTaps], y[kMostTaps];
  if (!read_weights(v, size_x, x) || !read_weights(v + kTaps, size_y, y)) return Code::kUnsupported;
  return canvas->redraw([&](const ImageView& image, const ImageView& out) {
    return canvas->blur()->opencv(image, x, size_x, y, size_y, out);
  });
}

// p: 1 for linear rather than nearest, the padding mode and fill of what is outside, width and
// height of the result, 1 for a perspective, OpenCV's version, 4 or 5. v: the inverted matrix, row
// by row.
enum : int { kLinear, kMode, kFill, kWidth = 5, kHeight, kPerspective, kVersion };

constexpr double kLargest = 1e6;

const char* check_warp_to(const double* p) {
  if (!is_edge(p[kWidth]) || !is_edge(p[kHeight])) return "a warp's size is out of range";
  return check_padding(p[kMode], p + kFill);
}

Size warp_size(const double* p, const double*, Size) {
  return {as_int(p[kWidth]), as_int(p[kHeight])};
}

Code warp(const double* p, const double* v, Canvas* canvas) {
  ops::OpencvWarp job = {};
  job.perspective = p[kPerspective] != 0;
  job.linear = p[kLinear] != 0;
  job.mode = static_cast<PaddingMode>(as_int(p[kMode]));
  job.version = as_int(p[kVersion]);
  read_fill(p + kFill, job.fill);
  for (int i = 0; i < (job.perspective ? 9 : 6); ++i) {
    if (!between(v[i], -kLargest, kLargest)) return Code::kUnsupported;
    job.m[i] = v[i];
  }
  return canvas->redraw(as_int(p[kWidth]), as_int(p[kHeight]),
                        [&](const ImageView& image, const ImageView& out) {
                          ops::opencv_warp(image, job, out);
                          return Code::kOk;
                        });
}

}  // namespace

const Op kOpencvBlur = {"opencv_blur", check_blur, nullptr, nullptr, nullptr, nullptr, blur};
const Op kOpencvFromHsv = {"opencv_from_hsv", check_from_hsv, nullptr, nullptr,
                           nullptr,           nullptr,        from_hsv};
const Op kOpencvToHsv = {"opencv_to_hsv", nullptr, nullptr, nullptr, nullptr, nullptr, to_hsv};
const Op kOpencvWarp = {"opencv_warp", check_warp_to, nullptr, nullptr, warp_size, nullptr, warp};

}  // namespace headrace
