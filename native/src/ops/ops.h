// Every op, each defined in a file of its own name: the list in ops.cpp makes them known.
#pragma once

#include "op.h"

namespace headrace {

extern const Op kCenterCrop;
extern const Op kColorJitter;
extern const Op kHorizontalFlip;
extern const Op kRandomCrop;
extern const Op kRandomResizedCrop;
extern const Op kRandomRotation;
extern const Op kResize;
extern const Op kResizeShorter;
extern const Op kVerticalFlip;

}  // namespace headrace
