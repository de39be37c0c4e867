// Pillow's Image.resize, or torch's or OpenCV's, bit for bit, of a window of the result: separable,
// fixed-point coefficients, rounding to uint8 between the passes (opencv.h: without it).
#pragma once

#include <cstdint>
#include <memory>

#include "../image.h"
#include "../status.h"

namespace headrace {

// Part of the C ABI: the values of PIL.Image.Resampling, and then those of torch's resize of uint8
// tensors, which rounds weights to 15 bits, goes horizontally first, and picks other nearest
// pixels, and those of OpenCV's.
enum class Filter : int32_t {
  kNearest = 0,
  kLanczos = 1,
  kBilinear = 2,
  kBicubic = 3,
  kBox = 4,
  kHamming = 5,
  kTorchNearest = 6,
  kTorchBilinear = 7,  // these antialiased
  kTorchBicubic = 8,
  kTorchLanczos = 9,
  kOpencvNearest = 10,
  kOpencvLinear = 11,
  kOpencvArea = 12,
};

constexpr int kLastFilter = 12;

inline bool is_opencvs(Filter filter) { return filter >= Filter::kOpencvNearest; }
inline bool is_torchs(Filter filter) {
  return filter >= Filter::kTorchNearest && !is_opencvs(filter);
}
inline bool is_nearest(Filter filter) {
  return filter == Filter::kNearest || filter == Filter::kTorchNearest;
}

// Which Pillow the result must equal: 13.0 changed the order of the passes (its PR 9549).
struct PillowRules {
  bool vertical_first_allowed = true;  // Pillow >= 13
};

// A resize of a source of in_w × in_h to out_w × out_h, of which only `window` (inside the result,
// non-empty) is wanted.
struct ResizeJob {
  int in_w = 0, in_h = 0;
  int out_w = 0, out_h = 0;
  Filter filter = Filter::kBilinear;
  Rect window;
  bool flip_x = false;  // mirror the window: its columns are written right to left
  bool flip_y = false;  // its rows bottom to top
};

// The part of the source that `job` reads: a caller decodes only that.
Rect resize_footprint(const ResizeJob& job, const PillowRules& rules);

// Keeps coefficients and intermediate rows from image to image; one instance serves one thread.
class Resizer {
 public:
  Resizer();
  ~Resizer();
  Resizer(const Resizer&) = delete;
  Resizer& operator=(const Resizer&) = delete;

  // `source` holds exactly the pixels of `footprint` == resize_footprint(job, rules). Writes
  // job.window.w × job.window.h RGBX pixels to `out`. `source` may be read for 4 rows and
  // Buffer::kPadding bytes past its end.
  Code run(const ResizeJob& job, const PillowRules& rules, const Rect& footprint,
           const ConstImageView& source, const ImageView& out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
