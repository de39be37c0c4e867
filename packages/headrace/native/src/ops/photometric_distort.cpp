#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// p: the probability, then the ranges of the factors of brightness, contrast, saturation and hue.
// v: whether each of them is changed, their factors, whether contrast comes before saturation,
// whether channels are permuted, and which become red, green and blue.
enum : int { kChanged, kFactors = 4, kContrastFirst = 8, kPermuted, kChannels };
enum : int { kBrightness, kContrast, kSaturation, kHue };

const char* check(const double* p) {
  if (!between(p[0], 0, 1)) return "a distortion's probability must be 0 to 1";
  if (!between(p[7], -0.5, 0.5) || !between(p[8], -0.5, 0.5))
    return "a distortion's hue must be -0.5 to 0.5";
  return nullptr;
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  for (int i = 0; i < 4; ++i) {
    v[kChanged + i] = happens(random, p[0]);
    const auto low = static_cast<float>(p[1 + 2 * i]), high = static_cast<float>(p[2 + 2 * i]);
    if (v[kChanged + i] != 0) v[kFactors + i] = random->uniform(low, high);
  }
  v[kContrastFirst] = happens(random, 0.5);
  v[kPermuted] = happens(random, p[0]);
  if (v[kPermuted] != 0) draw_channels(random, v + kChannels);
  return Code::kOk;
}

bool idle(const double*, const double* v) {
  return v[kChanged + kBrightness] == 0 && v[kChanged + kContrast] == 0 &&
         v[kChanged + kSaturation] == 0 && v[kChanged + kHue] == 0 && v[kPermuted] == 0;
}

template <const ops::ColourArithmetic& by>
Code pixels(const double*, const double* v, Canvas* canvas) {
  if (!between(v[kFactors + kHue], -0.5, 0.5)) return Code::kUnsupported;
  const ImageView& image = canvas->image();
  const auto contrast = [&](bool first) {
    if (v[kChanged + kContrast] == 0 || (v[kContrastFirst] != 0) != first) return Code::kOk;
    return by.contrast(image, v[kFactors + kContrast]);
  };
  if (v[kChanged + kBrightness] != 0) ops::adjust_brightness(image, v[kFactors + kBrightness]);
  Code code = contrast(true);
  if (code != Code::kOk) return code;
  if (v[kChanged + kSaturation] != 0) by.saturation(image, v[kFactors + kSaturation]);
  if (v[kChanged + kHue] != 0) by.hue(image, v[kFactors + kHue]);
  code = contrast(false);
  if (code != Code::kOk) return code;
  return v[kPermuted] != 0 ? permute_channels(v + kChannels, canvas) : Code::kOk;
}

}  // namespace

const Op kPhotometricDistort = {"photometric_distort",     check, draw, idle, nullptr, nullptr,
                                pixels<ops::kPillowColour>};
const Op kTensorPhotometricDistort = {
    "tensor_photometric_distort", check, draw, idle, nullptr, nullptr, pixels<ops::kTorchColour>};

}  // namespace headrace
