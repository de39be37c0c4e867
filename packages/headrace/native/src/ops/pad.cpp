#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters; sides in pixels, of which negative ones are cut off.
enum : int { kLeft, kTop, kRight, kBottom, kMode, kFill };

const char* check(const double* p) { return check_sides(p + kLeft, p[kMode], p + kFill); }

Size size(const double* p, const double*, Size in) {
  return {in.width + as_int(p[kLeft]) + as_int(p[kRight]),
          in.height + as_int(p[kTop]) + as_int(p[kBottom])};
}

Code fold(const double* p, const double* v, Folder* folder) {
  const Size padded = size(p, v, folder->size());
  return fold_crop({-as_int(p[kLeft]), -as_int(p[kTop]), padded.width, padded.height}, p[kMode],
                   p + kFill, folder);
}

}  // namespace

const Op kPad = {"pad", check, nullptr, nullptr, size, fold};

}  // namespace headrace
