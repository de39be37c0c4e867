// What is recorded of OpenCV's and albumentations' functions: no parameters are drawn.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "headrace.h"
#include "loops.h"
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

// p: the sizes of the kernels along x and y, both odd; channels of OpenCV's array for float32, or
// 0; 1 if blue is its first. v: the weights along x, in 256ths if they aren't in float32, from the
// first to the one in the middle, and from 16 on those along y.
enum : int { kSizeX, kSizeY, kChannels, kBlueFirst };
constexpr int kTaps = 16;
constexpr int kMostTaps = 2 * kTaps - 1;
constexpr int kMostWeight = 257;  // of all taps

const char* check_blur(const double* p) {
  for (const int size : {kSizeX, kSizeY})
    if (!whole_between(p[size], 1, kMostTaps) || as_int(p[size]) % 2 == 0)
      return "a blur's kernel must have 1 to 31 taps, an odd number";
  if (!whole_between(p[kChannels], 0, 3)) return "an array has 1 to 3 channels";
  return nullptr;
}

template <typename Weight>
bool read_weights(const double* v, int size, Weight* weights) {
  constexpr bool kWhole = std::is_integral_v<Weight>;
  constexpr double kMost = kWhole ? kMostWeight : 1.01;
  double sum = 0;
  for (int i = 0; i < size; ++i) {
    const double weight = v[std::min(i, size - 1 - i)];
    if (!(kWhole ? whole_between(weight, 0, kMost) : between(weight, 0, kMost))) return false;
    weights[i] = static_cast<Weight>(weight);
    sum += weight;
  }
  return sum <= kMost;
}

template <typename Weight, typename Blur>
Code blur_with(const double* p, const double* v, Canvas* canvas, const Blur& blur) {
  const int size_x = as_int(p[kSizeX]), size_y = as_int(p[kSizeY]);
  Weight x[kMostTaps], y[kMostTaps];
  if (!read_weights(v, size_x, x) || !read_weights(v + kTaps, size_y, y)) return Code::kUnsupported;
  return canvas->redraw([&](const ImageView& image, const ImageView& out) {
    return blur(image, x, size_x, y, size_y, out);
  });
}

Code blur(const double* p, const double* v, Canvas* canvas) {
  const auto integers = [&](auto&&... arguments) { return canvas->blur()->opencv(arguments...); };
  const ops::OpencvValues values = {as_int(p[kChannels]), p[kBlueFirst] != 0};
  const auto floats = [&](const ImageView& image, const float* x, int size_x, const float* y,
                          int size_y, const ImageView& out) {
    return canvas->blur()->opencv_filter(image, {x, size_x, values}, {y, size_y, values}, out);
  };
  return values.channels == 0 ? blur_with<uint16_t>(p, v, canvas, integers)
                              : blur_with<float>(p, v, canvas, floats);
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

// v: the factors of contrast and of brightness, and 1 if brightness comes first. In float32,
// truncated: albumentations' adjust_contrast_torchvision for a brightness of 1, or otherwise
// AlbumentationsX's apply_brightness_contrast_torchvision.
Code contrast(const double*, const double* v, Canvas* canvas) {
  if (!between(v[0], -kLargest, kLargest) || !between(v[1], 0, kLargest)) return Code::kUnsupported;
  const auto factor = static_cast<float>(v[0]), brightness = static_cast<float>(v[1]);
  const bool brighter_first = v[2] != 0;
  double mean = ops::opencv_mean(canvas->image());
  if (v[1] != 1) mean = std::min(mean / 255 * (brighter_first ? v[1] : 1), 1.0) * 255;
  const auto offset = static_cast<float>(mean * (1 - v[0]));
  const auto clamped = [](float value) { return std::clamp(value, 0.0f, 255.0f); };
  ops::LevelTable* const table = canvas->levels();
  for (auto& channel : table->level) {
    for (int i = 0; i < 256; ++i) {
      auto value = static_cast<float>(i);
      if (brighter_first) value = clamped(value * brightness);
      value = clamped(value * factor + offset);
      if (!brighter_first) value = clamped(std::floor(value) * brightness);
      channel[i] = static_cast<uint8_t>(value);
    }
  }
  return Code::kOk;
}

// p: 1 for NumKong's arithmetic rather than OpenCV's. v: the factor. adjust_saturation_torchvision
// of albumentations, which is addWeighted, or of AlbumentationsX, which is blend.
Code saturation(const double* p, const double* v, Canvas* canvas) {
  if (!between(v[0], -kLargest, kLargest)) return Code::kUnsupported;
  ops::opencv_saturation(canvas->image(), v[0], p[0] != 0);
  return Code::kOk;
}

// p: the fill. v: boxes of left, top, right and bottom, as far as there is room for draws.
Code fill_boxes(const double* p, const double* v, Canvas* canvas) {
  uint8_t rgb[4] = {};
  read_fill(p, rgb);
  uint32_t pixel;
  std::memcpy(&pixel, rgb, 4);
  const ImageView& image = canvas->image();
  for (int i = 0; i + 4 <= HR_DRAWS; i += 4) {
    const double left = v[i], top = v[i + 1], right = v[i + 2], bottom = v[i + 3];
    if (!whole_between(right, 0, image.width) || !whole_between(left, 0, right) ||
        !whole_between(bottom, 0, image.height) || !whole_between(top, 0, bottom))
      return Code::kUnsupported;
    for (int y = as_int(top); y < as_int(bottom); ++y) {
      auto* row = reinterpret_cast<uint32_t*>(image.row(y));
      std::fill(row + as_int(left), row + as_int(right), pixel);
    }
  }
  return Code::kOk;
}

}  // namespace

const Op kFillBoxes = {"fill_boxes", check_fill, nullptr, nullptr, nullptr, nullptr, fill_boxes};
const Op kOpencvBlur = {"opencv_blur", check_blur, nullptr, nullptr, nullptr, nullptr, blur};
const Op kOpencvContrast = {"opencv_contrast", nullptr, nullptr, nullptr,
                            nullptr,           nullptr, contrast};
const Op kOpencvFromHsv = {"opencv_from_hsv", check_from_hsv, nullptr, nullptr,
                           nullptr,           nullptr,        from_hsv};
const Op kOpencvSaturation = {"opencv_saturation", nullptr, nullptr, nullptr, nullptr, nullptr,
                              saturation};
const Op kOpencvToHsv = {"opencv_to_hsv", nullptr, nullptr, nullptr, nullptr, nullptr, to_hsv};
const Op kOpencvWarp = {"opencv_warp", check_warp_to, nullptr, nullptr, warp_size, nullptr, warp};

}  // namespace headrace
