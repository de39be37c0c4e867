// OpenCV's resize of uint8 images, bit for bit: fixed-point weights of 11 bits for linear, float32
// sums for area.
#pragma once

#include "../image.h"
#include "../status.h"
#include "resize.h"

namespace headrace {

// The part of the source that a job with one of OpenCV's filters reads.
Rect opencv_footprint(const ResizeJob& job);

// Keeps its memory from image to image; one instance serves one thread.
class OpencvResizer {
 public:
  // As Resizer::run, of a valid job that changes the size.
  Code run(const ResizeJob& job, const Rect& footprint, const ConstImageView& source,
           const ImageView& out);

 private:
  Buffer taps_, rows_;
};

}  // namespace headrace
