// From steps to pixels: what is drawn for one sample, and the steps folded into one crop, one
// resize and one window.
#pragma once

#include "headrace.h"
#include "image.h"
#include "random.h"
#include "resize/resize.h"
#include "status.h"

namespace headrace {

// The longest edge, in pixels, that a step's result can have.
constexpr int kMaxEdge = 1 << 20;

// One sample's way from the decoded image to its output. `job.window` and the crop never leave
// their images.
struct Geometry {
  Rect crop;              // of the source image: what is resized
  bool mirror_x = false;  // the crop is mirrored before it is resized
  bool mirror_y = false;
  ResizeJob job;  // from the crop's size; its window is what the output shows of the result

  // The output, where it shows more than the window: the place of the window in it, and what fills
  // the rest.
  Rect place;  // x, y of the window in the output
  bool padded = false;
  int32_t padding_mode = HR_CONSTANT;
  uint8_t fill[3] = {};
  Rect plane;  // the output's rectangle in coordinates of the resized image; leaves it where padded
  bool flip_x =
      false;  // of the output as a whole; job.flip_* say the same for HR_CONSTANT and no padding
  bool flip_y = false;
};

// Draws the parameters of every step for an image of width × height. draws: [step_count].
// kUnsupported: a crop is larger than its input (torchvision raises for it), or an edge is
// longer than kMaxEdge.
Code draw_steps(const hr_pipeline& pipeline, const RandomKey& key, int width, int height,
                hr_draw* draws);

// kUnsupported: steps that don't fold into one crop, one resize and one window; Pillow does those
// one by one.
Code fold_steps(const hr_pipeline& pipeline, const hr_draw* draws, int width, int height,
                Geometry* geometry);

// The index in [0, size) that index i of a padded row shows; -1: the fill colour.
int padded_index(int i, int size, int32_t padding_mode);

}  // namespace headrace
