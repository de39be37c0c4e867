// The inner loops of the augmentations, one set per instruction set, all compiled from
// loops_impl.h. All sets give equal bytes in the first three of a pixel's four.
#pragma once

#include <cstdint>

#include "../image.h"

namespace headrace::ops {

struct Loops {
  // Rows of RGBX pixels, in place.
  void (*blend_level)(uint8_t* row, int width, int level, float factor);
  void (*blend_luma)(uint8_t* row, int width, float factor);
  void (*luma)(uint8_t* row, int width);
  void (*permute)(uint8_t* row, int width, const int order[3]);
  void (*shift_hue)(uint8_t* row, int width, int shift);
  void (*look_up)(uint8_t* row, int width, const uint8_t levels[3][256]);
  uint64_t (*sum_luma)(const uint8_t* row, int width);

  // Pixels 1 to width - 2 of `out`: `row` blended with its smoothed self.
  void (*sharpen)(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
                  float factor, uint8_t* out);

  // One row of a warp: pixel i of `out` from the place (x[i], y[i]) in the source; nothing is
  // written where that is outside.
  using Sample = void (*)(const ImageView& source, const double* x, const double* y, int count,
                          uint32_t* out);
  Sample nearest;
  Sample bilinear;
  Sample bicubic;

  // Pixels from places in 16.16 fixed point, all inside: (x + i dx, y + i dy).
  void (*gather)(const ImageView& source, int32_t x, int32_t y, int32_t dx, int32_t dy, int count,
                 uint32_t* out);
};

const Loops& active_loops();

extern const Loops kScalarLoops;
#if defined(__x86_64__)
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;
#endif

}  // namespace headrace::ops
