#include <algorithm>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters; sides in pixels, of which negative ones are cut off.
enum : int { kLeft, kTop, kRight, kBottom, kMode, kFill };

const char* check(const double* p) {
  for (const int side : {kLeft, kTop, kRight, kBottom}) {
    if (!whole_between(p[side], -kMaxEdge, kMaxEdge)) return "padding is out of range";
  }
  // What is mirrored is the rest of the image then, of which a window shows more.
  const auto range = std::minmax_element(p + kLeft, p + kMode);
  if (p[kMode] != 0 && *range.first < 0 && *range.second > 0)
    return "an image is padded with its own pixels, and cut";
  return check_padding(p[kMode], p + kFill);
}

Size size(const double* p, const double*, Size in) {
  return {in.width + as_int(p[kLeft]) + as_int(p[kRight]),
          in.height + as_int(p[kTop]) + as_int(p[kBottom])};
}

Code fold(const double* p, const double* v, Folder* folder) {
  const Size padded = size(p, v, folder->size());
  uint8_t fill[3];
  read_fill(p + kFill, fill);
  return folder->crop({-as_int(p[kLeft]), -as_int(p[kTop]), padded.width, padded.height},
                      static_cast<PaddingMode>(as_int(p[kMode])), fill);
}

}  // namespace

const Op kPad = {"pad", check, nullptr, nullptr, size, fold};

}  // namespace headrace
