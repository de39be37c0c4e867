// Every op, each defined in a file of its own name.
#pragma once

#include "op.h"

namespace headrace {

#define HEADRACE_OPS(X)       \
  X(AugMix)                   \
  X(AutoAugment)              \
  X(CenterCrop)               \
  X(ChannelPermutation)       \
  X(ColorJitter)              \
  X(CropOrPad)                \
  X(FillBoxes)                \
  X(GaussianBlur)             \
  X(Grayscale)                \
  X(Group)                    \
  X(HorizontalFlip)           \
  X(MultiCrop)                \
  X(OpencvBlur)               \
  X(OpencvContrast)           \
  X(OpencvFromHsv)            \
  X(OpencvGrayscale)          \
  X(OpencvSaturation)         \
  X(OpencvToHsv)              \
  X(OpencvWarp)               \
  X(Pad)                      \
  X(PhotometricDistort)       \
  X(PillowBlur)               \
  X(PillowPoint)              \
  X(PillowWarp)               \
  X(RandAugment)              \
  X(RandomAffine)             \
  X(RandomApply)              \
  X(RandomAutocontrast)       \
  X(RandomChoice)             \
  X(RandomCrop)               \
  X(RandomEqualize)           \
  X(RandomGrayscale)          \
  X(RandomInvert)             \
  X(RandomOrder)              \
  X(RandomPerspective)        \
  X(RandomPosterize)          \
  X(RandomResize)             \
  X(RandomResizedCrop)        \
  X(RandomRotation)           \
  X(RandomSharpness)          \
  X(RandomShortestSize)       \
  X(RandomSolarize)           \
  X(RandomTensorAutocontrast) \
  X(RandomTensorGrayscale)    \
  X(RandomZoomOut)            \
  X(Resize)                   \
  X(ResizeKeepRatio)          \
  X(ResizeShorter)            \
  X(ScaleJitter)              \
  X(TensorColorJitter)        \
  X(TensorGrayscale)          \
  X(TensorPhotometricDistort) \
  X(TimmAugMix)               \
  X(TimmAugment)              \
  X(TimmResizedCrop)          \
  X(VerticalFlip)

#define HEADRACE_DECLARE(Name) extern const Op k##Name;
HEADRACE_OPS(HEADRACE_DECLARE)
#undef HEADRACE_DECLARE

}  // namespace headrace
