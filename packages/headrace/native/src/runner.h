// Runs a program: from the decoded pixels to those that are stored.
#pragma once

#include "geometry.h"
#include "headrace.h"
#include "image.h"
#include "ops/op.h"
#include "program.h"
#include "resize/resize.h"
#include "status.h"

namespace headrace {

// Keeps its memory from image to image; one instance serves one thread.
class Runner {
 public:
  // Where the pixels that the program reads are to be put: those of `source_rect(program)`.
  ImageView input(const Program& program);
  // Of the source image.
  static Rect source_rect(const Program& program);

  // What becomes of the pixels in input(); `result` is valid until the next call.
  Code run(const Program& program, const hr_pipeline& pipeline, const hr_draw* draws,
           ImageView* result);

 private:
  Code render(const Pass& pass, const PillowRules& rules, const ImageView& source);

  Resizer resizer_;
  Canvas canvas_;
  Image resized_;  // before it is padded
};

}  // namespace headrace
