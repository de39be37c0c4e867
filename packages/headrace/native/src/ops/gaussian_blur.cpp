#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// p: the sizes of the kernels along x and y, both odd, how many standard deviations there are to
// draw from, and their bounds. data: for each of them the kernel along x, then that along y:
// torch's own, since its exponential function is its own. v: the standard deviation, and its place.
enum : int { kSizeX, kSizeY, kCount, kSigma };

constexpr int kMostTaps = 255;
constexpr int kMostSigmas = 1 << 12;

const char* check(const double* p) {
  for (const int size : {kSizeX, kSizeY}) {
    if (!whole_between(p[size], 1, kMostTaps) || as_int(p[size]) % 2 == 0)
      return "a blur's kernel must have 1 to 255 taps, an odd number";
  }
  return whole_between(p[kCount], 1, kMostSigmas) ? nullptr
                                                  : "a blur has 1 to 4096 standard deviations";
}

int64_t data_count(const double* p) {
  return static_cast<int64_t>(p[kCount]) * (as_int(p[kSizeX]) + as_int(p[kSizeY]));
}

// One of `kCount` equally spaced values, in the arithmetic of RandomStream::uniform.
Code draw(const double* p, RandomStream* random, Size in, double* v) {
  if (as_int(p[kSizeX]) / 2 >= in.width || as_int(p[kSizeY]) / 2 >= in.height)
    return Code::kUnsupported;
  const auto low = static_cast<float>(p[kSigma]), high = static_cast<float>(p[kSigma + 1]);
  const auto count = static_cast<float>(p[kCount]);
  const float unit = random->uniform(0.0f, 1.0f);
  const float place = static_cast<float>(static_cast<int>(unit * count));
  v[0] = static_cast<double>(place / count * (high - low) + low);
  v[1] = static_cast<double>(place);
  return Code::kOk;
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  if (!whole_between(v[1], 0, p[kCount] - 1)) return Code::kUnsupported;
  const int size_x = as_int(p[kSizeX]), size_y = as_int(p[kSizeY]);
  const float* kernels = canvas->data() + static_cast<int64_t>(v[1]) * (size_x + size_y);
  return canvas->redraw([=](const ImageView& image, const ImageView& out) {
    return canvas->blur()->gaussian(image, kernels, size_x, kernels + size_x, size_y, out);
  });
}

}  // namespace

const Op kGaussianBlur = {"gaussian_blur", check,  draw,    nullptr,   nullptr,
                          nullptr,         pixels, nullptr, data_count};

}  // namespace headrace
