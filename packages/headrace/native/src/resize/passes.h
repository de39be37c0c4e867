// The passes of a resize over whole rows: in which order rows are computed, and where they wait.
#pragma once

#include <cstdint>

#include "../image.h"
#include "../status.h"
#include "coefficients.h"
#include "kernels.h"
#include "resize.h"

namespace headrace {

// Memory that is kept from image to image.
struct PassBuffers {
  Buffer positions;  // of nearest
  Buffer rows;       // between the passes
  Buffer pointers;   // to the rows under one output's taps
};

void copy_rows(const ResizeJob& job, const ConstImageView& source, const ImageView& out);
Code nearest_rows(const ResizeJob& job, const AxisJob& x, const AxisJob& y, const Rect& footprint,
                  const ConstImageView& source, PassBuffers* buffers, const ImageView& out);

// The passes of the filters with taps. `source` starts at the axes' footprints.
class Passes {
 public:
  Passes(const ResizeKernels& kernels, const ResizeJob& job, const ConstImageView& source,
         PassBuffers* buffers, const ImageView& out)
      : kernels_(kernels), job_(job), source_(source), buffers_(buffers), out_(out) {}

  void horizontal(const AxisTaps& x);
  Code vertical(const AxisTaps& y);
  Code horizontal_then_vertical(const AxisTaps& x, const AxisTaps& y);
  Code vertical_then_horizontal(const AxisTaps& x, const AxisTaps& y);

 private:
  const ResizeKernels& kernels_;
  const ResizeJob& job_;
  ConstImageView source_;
  PassBuffers* buffers_;
  ImageView out_;
};

}  // namespace headrace
