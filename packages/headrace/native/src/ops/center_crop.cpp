#include <cmath>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters: the size, and how the image is padded where it is smaller.
enum : int { kHeight, kWidth, kMode, kFill };

const char* check(const double* p) {
  if (!is_edge(p[kHeight]) || !is_edge(p[kWidth])) return "a crop's size is out of range";
  return check_padding(p[kMode], p + kFill);
}

Size size(const double* p, const double*, Size) { return {as_int(p[kWidth]), as_int(p[kHeight])}; }

Code cut(const double* p, int left, int top, Folder* folder) {
  return fold_crop({left, top, as_int(p[kWidth]), as_int(p[kHeight])}, p[kMode], p + kFill, folder);
}

// torchvision pads by halves, rounded down on the left and top, and rounds a crop's place as
// Python's round(): halves go to the even neighbour, which is nearbyint's default.
int start(int have, int want) {
  if (want > have) return -((want - have) / 2);
  return static_cast<int>(std::nearbyint((have - want) / 2.0));
}

Code fold(const double* p, const double*, Folder* folder) {
  const Size in = folder->size();
  return cut(p, start(in.width, as_int(p[kWidth])), start(in.height, as_int(p[kHeight])), folder);
}

// --- crop_or_pad: the window anywhere in the image, or the image anywhere in the window. v: top
// and left of the window.

int anywhere(RandomStream* random, int free) {
  return free < 0 ? -random->below(1 - free) : random->below(1 + free);
}

Code draw(const double* p, RandomStream* random, Size in, double* v) {
  v[0] = anywhere(random, in.height - as_int(p[kHeight]));
  v[1] = anywhere(random, in.width - as_int(p[kWidth]));
  return Code::kOk;
}

Code fold_anywhere(const double* p, const double* v, Folder* folder) {
  return cut(p, as_int(v[1]), as_int(v[0]), folder);
}

}  // namespace

const Op kCenterCrop = {"center_crop", check, nullptr, nullptr, size, fold};
const Op kCropOrPad = {"crop_or_pad", check, draw, nullptr, size, fold_anywhere};

}  // namespace headrace
