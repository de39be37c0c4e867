#include <cmath>

#include "ops.h"

namespace headrace {
namespace {

constexpr uint8_t kBlack[3] = {};

// p: height, width.
const char* check(const double* p) {
  return is_edge(p[0]) && is_edge(p[1]) ? nullptr : "a crop's size is out of range";
}

Size size(const double* p, const double*, Size) { return {as_int(p[1]), as_int(p[0])}; }

// torchvision pads by halves, rounded down on the left and top, and rounds a crop's place as
// Python's round(): halves go to the even neighbour, which is nearbyint's default.
int start(int have, int want) {
  if (want > have) return -((want - have) / 2);
  return static_cast<int>(std::nearbyint((have - want) / 2.0));
}

Code fold(const double* p, const double*, Folder* folder) {
  const Size in = folder->size();
  const int height = as_int(p[0]), width = as_int(p[1]);
  return folder->crop({start(in.width, width), start(in.height, height), width, height},
                      PaddingMode::kConstant, kBlack);
}

}  // namespace

const Op kCenterCrop = {"center_crop", check, nullptr, nullptr, size, fold};

}  // namespace headrace
