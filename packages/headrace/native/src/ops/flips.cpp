#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

template <void (Folder::*flip)()>
Code fold(const double*, const double*, Folder* folder) {
  (folder->*flip)();
  return Code::kOk;
}

}  // namespace

const Op kHorizontalFlip = {"horizontal_flip", check_chance, draw_chance,
                            not_applied,       nullptr,      fold<&Folder::flip_x>};
const Op kVerticalFlip = {"vertical_flip", check_chance, draw_chance,
                          not_applied,     nullptr,      fold<&Folder::flip_y>};

}  // namespace headrace
