#include <algorithm>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters; sides in pixels, of which negative ones are cut off. v: top and left of
// the window, in the padded image.
enum : int { kHeight, kWidth, kLeft, kTop, kRight, kBottom, kPadIfNeeded, kMode, kFill };

const char* check(const double* p) {
  if (!is_edge(p[kHeight]) || !is_edge(p[kWidth])) return "a crop's size is out of range";
  // What was cut off isn't padded again.
  if (p[kPadIfNeeded] != 0 && *std::min_element(p + kLeft, p + kPadIfNeeded) < 0)
    return "a crop's padding is negative, and more where it is needed";
  return check_sides(p + kLeft, p[kMode], p + kFill);
}

struct Padding {
  int left, top, right, bottom;
};

Padding total_padding(const double* p, Size in) {
  Padding pad = {as_int(p[kLeft]), as_int(p[kTop]), as_int(p[kRight]), as_int(p[kBottom])};
  if (p[kPadIfNeeded] != 0) {
    const int short_x = std::max(0, as_int(p[kWidth]) - (in.width + pad.left + pad.right));
    const int short_y = std::max(0, as_int(p[kHeight]) - (in.height + pad.top + pad.bottom));
    pad = {pad.left + short_x, pad.top + short_y, pad.right + short_x, pad.bottom + short_y};
  }
  return pad;
}

Code draw(const double* p, RandomStream* random, Size in, double* v) {
  const Padding pad = total_padding(p, in);
  const int free_x = in.width + pad.left + pad.right - as_int(p[kWidth]);
  const int free_y = in.height + pad.top + pad.bottom - as_int(p[kHeight]);
  if (free_x < 0 || free_y < 0) return Code::kUnsupported;
  v[0] = random->below(free_y + 1);
  v[1] = random->below(free_x + 1);
  return Code::kOk;
}

Size size(const double* p, const double*, Size) { return {as_int(p[kWidth]), as_int(p[kHeight])}; }

Code fold(const double* p, const double* v, Folder* folder) {
  const Padding pad = total_padding(p, folder->size());
  return fold_crop(
      {as_int(v[1]) - pad.left, as_int(v[0]) - pad.top, as_int(p[kWidth]), as_int(p[kHeight])},
      p[kMode], p + kFill, folder);
}

}  // namespace

const Op kRandomCrop = {"random_crop", check, draw, nullptr, size, fold};

}  // namespace headrace
