// Colour: passes over the rows of an image, and the factors at which there is nothing to do.
#include <algorithm>
#include <cstring>

#include "../cpu.h"
#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

// Beyond these bounds every difference is clipped, and within them all fits an int.
float bounded(double factor) { return std::min(std::max(static_cast<float>(factor), -1e6f), 1e6f); }

// ImageStat's mean of the luma, rounded.
int mean_luma(const ImageView& image) {
  uint64_t sum = 0;
  for (int y = 0; y < image.height; ++y) sum += active_loops().sum_luma(image.row(y), image.width);
  const double count = static_cast<double>(image.width) * image.height;
  return static_cast<int>(static_cast<double>(sum) / count + 0.5);
}

void blend_level(const ImageView& image, int level, float factor) {
  for (int y = 0; y < image.height; ++y)
    active_loops().blend_level(image.row(y), image.width, level, factor);
}

}  // namespace

const Loops& active_loops() {
  switch (simd_active()) {
#if defined(__x86_64__)
    case Simd::kAvx512:
      return kAvx512Loops;
    case Simd::kAvx2:
      return kAvx2Loops;
#endif
    default:
      return kScalarLoops;
  }
}

void adjust_brightness(const ImageView& image, double factor) {
  if (static_cast<float>(factor) == 1.0f) return;
  blend_level(image, 0, bounded(factor));
}

void adjust_contrast(const ImageView& image, double factor) {
  if (static_cast<float>(factor) == 1.0f) return;
  blend_level(image, mean_luma(image), bounded(factor));
}

void adjust_saturation(const ImageView& image, double factor) {
  if (static_cast<float>(factor) == 1.0f) return;
  if (static_cast<float>(factor) == 0.0f) return grayscale(image);
  for (int y = 0; y < image.height; ++y)
    active_loops().blend_luma(image.row(y), image.width, bounded(factor));
}

void adjust_hue(const ImageView& image, double factor) {
  const int shift = static_cast<int>(factor * 255) & 0xFF;
  for (int y = 0; y < image.height; ++y) active_loops().shift_hue(image.row(y), image.width, shift);
}

const ColourArithmetic kPillowColour = {[](const ImageView& image, double factor) {
                                          adjust_contrast(image, factor);
                                          return Code::kOk;
                                        },
                                        adjust_saturation, adjust_hue};

void grayscale(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) active_loops().luma(image.row(y), image.width);
}

void blend(const ImageView& first, double factor, const ImageView& second) {
  for (int y = 0; y < first.height; ++y)
    active_loops().blend_rows(first.row(y), second.row(y), first.width, static_cast<float>(factor));
}

void permute_channels(const ImageView& image, const int order[3]) {
  if (order[0] == 0 && order[1] == 1 && order[2] == 2) return;
  for (int y = 0; y < image.height; ++y) active_loops().permute(image.row(y), image.width, order);
}

void adjust_sharpness(const ImageView& source, double factor, const ImageView& out) {
  const int last_x = source.width - 1, last_y = source.height - 1;
  for (int y = 0; y <= last_y; ++y) {
    std::memcpy(out.row(y), source.row(y), size_t{4} * source.width);
    if (static_cast<float>(factor) == 1.0f || last_x < 2 || y == 0 || y == last_y) continue;
    active_loops().sharpen(source.row(y - 1), source.row(y), source.row(y + 1), source.width,
                           bounded(factor), out.row(y));
  }
}

}  // namespace headrace::ops
