#include "ops.h"

#include <cstring>
#include <iterator>

namespace headrace {
namespace {

const Op* const kOps[] = {
    &kAugMix,
    &kAutoAugment,
    &kCenterCrop,
    &kChannelPermutation,
    &kColorJitter,
    &kCropOrPad,
    &kGaussianBlur,
    &kGrayscale,
    &kGroup,
    &kHorizontalFlip,
    &kMultiCrop,
    &kPad,
    &kPhotometricDistort,
    &kPillowBlur,
    &kPillowPoint,
    &kPillowWarp,
    &kRandAugment,
    &kRandomAffine,
    &kRandomApply,
    &kRandomAutocontrast,
    &kRandomChoice,
    &kRandomCrop,
    &kRandomEqualize,
    &kRandomGrayscale,
    &kRandomInvert,
    &kRandomOrder,
    &kRandomPerspective,
    &kRandomPosterize,
    &kRandomResize,
    &kRandomResizedCrop,
    &kRandomRotation,
    &kRandomSharpness,
    &kRandomShortestSize,
    &kRandomSolarize,
    &kRandomTensorAutocontrast,
    &kRandomTensorGrayscale,
    &kRandomZoomOut,
    &kResize,
    &kResizeKeepRatio,
    &kResizeShorter,
    &kScaleJitter,
    &kTensorColorJitter,
    &kTensorGrayscale,
    &kTensorPhotometricDistort,
    &kTimmAugment,
    &kTimmResizedCrop,
    &kVerticalFlip,
};

constexpr int32_t kCount = static_cast<int32_t>(std::size(kOps));

}  // namespace

const Op* find_op(int32_t id) { return id >= 0 && id < kCount ? kOps[id] : nullptr; }

int32_t find_op_id(const char* name) {
  for (int32_t id = 0; id < kCount; ++id) {
    if (std::strcmp(kOps[id]->name, name) == 0) return id;
  }
  return -1;
}

}  // namespace headrace
