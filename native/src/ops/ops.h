// Every op, each defined in a file of its own name: the list in ops.cpp makes them known.
#pragma once

#include "op.h"

namespace headrace {

extern const Op kAugMix;
extern const Op kAutoAugment;
extern const Op kCenterCrop;
extern const Op kChannelPermutation;
extern const Op kColorJitter;
extern const Op kCropOrPad;
extern const Op kGaussianBlur;
extern const Op kGrayscale;
extern const Op kGroup;
extern const Op kHorizontalFlip;
extern const Op kMultiCrop;
extern const Op kPad;
extern const Op kPhotometricDistort;
extern const Op kPillowBlur;
extern const Op kPillowPoint;
extern const Op kPillowWarp;
extern const Op kRandAugment;
extern const Op kRandomAffine;
extern const Op kRandomApply;
extern const Op kRandomAutocontrast;
extern const Op kRandomChoice;
extern const Op kRandomCrop;
extern const Op kRandomEqualize;
extern const Op kRandomGrayscale;
extern const Op kRandomInvert;
extern const Op kRandomOrder;
extern const Op kRandomPerspective;
extern const Op kRandomPosterize;
extern const Op kRandomResize;
extern const Op kRandomResizedCrop;
extern const Op kRandomRotation;
extern const Op kRandomSharpness;
extern const Op kRandomShortestSize;
extern const Op kRandomSolarize;
extern const Op kRandomTensorAutocontrast;
extern const Op kRandomTensorGrayscale;
extern const Op kRandomZoomOut;
extern const Op kResize;
extern const Op kResizeKeepRatio;
extern const Op kResizeShorter;
extern const Op kScaleJitter;
extern const Op kTensorColorJitter;
extern const Op kTensorGrayscale;
extern const Op kTensorPhotometricDistort;
extern const Op kTimmAugment;
extern const Op kTimmResizedCrop;
extern const Op kVerticalFlip;

}  // namespace headrace
