// Rows of pixels by steps of whole vectors. Internal linkage, as each file that includes this is
// compiled for another instruction set.
#pragma once

#include <cstring>

#include "own_kernels.h"

namespace headrace::jpeg::own {
namespace {

// `step` makes kStep pixels from an even one on; `scalar` is what does the same one by one.
template <int kStep, void (*step)(const RowSamples&, int, uint8_t*),
          RowKernel PixelKernels::*scalar>
void row(const RowSamples& in, int first, int count, uint8_t* rgbx) {
  if ((first & 1) != 0) {
    (kScalarPixels.*scalar)(in, first++, 1, rgbx);
    rgbx += 4;
    --count;
  }
  for (; count >= kStep; count -= kStep, first += kStep, rgbx += 4 * kStep) step(in, first, rgbx);
  if (count > 0) {
    uint8_t rest[4 * kStep];
    step(in, first, rest);
    std::memcpy(rgbx, rest, 4 * static_cast<size_t>(count));
  }
}

}  // namespace
}  // namespace headrace::jpeg::own
