// Colour as torchvision computes it on uint8 tensors: passes over the rows of an image.
#include <algorithm>

#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

// The largest sum that float32 holds exactly, whatever the order of the additions.
constexpr uint64_t kLargestSum = uint64_t{1} << 24;

// What torch multiplies with: the factor and 1 - factor, each rounded to float32 by itself.
struct Shares {
  explicit Shares(double given) {
    const double bounded = std::clamp(given, -1e6, 1e6);  // all is clipped beyond
    factor = static_cast<float>(bounded);
    rest = static_cast<float>(1.0 - bounded);
  }
  float factor, rest;
};

Code adjust_contrast_by_torch(const ImageView& image, double factor) {
  uint64_t sum = 0;
  for (int y = 0; y < image.height; ++y)
    sum += active_loops().torch_sum_luma(image.row(y), image.width);
  if (sum > kLargestSum) return Code::kUnsupported;
  const int64_t count = int64_t{image.width} * image.height;
  const float mean = static_cast<float>(sum) / static_cast<float>(count);
  const Shares shares(factor);
  for (int y = 0; y < image.height; ++y)
    active_loops().torch_blend_level(image.row(y), image.width, mean, shares.factor, shares.rest);
  return Code::kOk;
}

void adjust_saturation_by_torch(const ImageView& image, double factor) {
  const Shares shares(factor);
  for (int y = 0; y < image.height; ++y)
    active_loops().torch_blend_luma(image.row(y), image.width, shares.factor, shares.rest);
}

void adjust_hue_by_torch(const ImageView& image, double factor) {
  const auto shift = static_cast<float>(factor);
  for (int y = 0; y < image.height; ++y)
    active_loops().torch_shift_hue(image.row(y), image.width, shift);
}

}  // namespace

const ColourArithmetic kTorchColour = {adjust_contrast_by_torch, adjust_saturation_by_torch,
                                       adjust_hue_by_torch};

void torch_grayscale(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) active_loops().torch_luma(image.row(y), image.width);
}

}  // namespace headrace::ops
