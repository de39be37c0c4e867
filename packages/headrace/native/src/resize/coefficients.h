// The taps of one axis of a resize: which source pixels each output reads, and their fixed-point
// weights.
#pragma once

#include <cstdint>

#include "../image.h"
#include "../status.h"
#include "kernels.h"
#include "resize.h"

namespace headrace {

// A range of source pixels along one axis.
struct Span {
  int first = 0;
  int count = 0;
};

// One axis of a resize and the outputs that are wanted of it.
struct AxisJob {
  int in = 0;   // source pixels along the axis
  int out = 0;  // pixels of the whole result along the axis
  Filter filter = Filter::kBilinear;
  Span window;        // the wanted outputs
  bool flip = false;  // mirror the window

  bool operator==(const AxisJob& other) const {
    return in == other.in && out == other.out && filter == other.filter &&
           window.first == other.window.first && window.count == other.window.count &&
           flip == other.flip;
  }
};

// The source pixels that the outputs of `job` read. An axis that keeps its length is not resampled:
// its window itself.
Span axis_footprint(const AxisJob& job);

// the taps of `job` for one variant of the kernels, counted from the start of axis_footprint(job).
// Reused from job to job.
class Axis {
 public:
  // Any filter but the nearest ones, and job.in != job.out. kOk or kOutOfMemory.
  Code prepare(const AxisJob& job, const ResizeKernels& kernels);

  const AxisTaps& taps() const { return taps_; }
  bool serves(const AxisJob& job, const ResizeKernels& kernels) const {
    return kernels_ == &kernels && job_ == job;
  }

 private:
  // Weights before grouping; those of output i start at i * stride.
  struct Arrays {
    int32_t* first = nullptr;
    int32_t* count = nullptr;
    int32_t* weights = nullptr;
    double* unrounded = nullptr;  // of one output
    size_t stride = 0;
  };

  int compute_weights(Span footprint, const Arrays& arrays) const;
  void align_groups(int extent, int groups, const Arrays& arrays, int32_t* grouped) const;

  AxisJob job_;
  const ResizeKernels* kernels_ = nullptr;  // whose form the weights have; nullptr: none prepared
  AxisTaps taps_;
  Buffer first_, count_, packed_;
  Buffer weights_, unrounded_, grouped_;  // scratch
};

// Fills `positions` with the source position of each wanted output of a nearest resize, less
// `origin`; -1 where Pillow's accumulated position falls off the source and leaves the pixel black.
void nearest_positions(const AxisJob& job, int origin, int32_t* positions);

}  // namespace headrace
