#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// v: the channels of the image that become red, green and blue.
Code draw(const double*, RandomStream* random, Size, double* v) {
  draw_channels(random, v);
  return Code::kOk;
}

bool idle(const double*, const double* v) { return v[0] == 0 && v[1] == 1 && v[2] == 2; }

Code pixels(const double*, const double* v, Canvas* canvas) { return permute_channels(v, canvas); }

}  // namespace

const Op kChannelPermutation = {
    "channel_permutation", nullptr, draw, idle, nullptr, nullptr, pixels};

}  // namespace headrace
