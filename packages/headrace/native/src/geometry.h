// Crops, flips, padding and one resize, folded into one: only the pixels that are wanted are
// decoded and computed.
#pragma once

#include <cstdint>

#include "image.h"
#include "resize/resize.h"
#include "status.h"

namespace headrace {

// The longest edge, in pixels, that an op's result can have.
constexpr int kMaxEdge = 1 << 20;

struct Size {
  int width;
  int height;
};

// Values are parameters of ops: headrace.transforms.random_crop names them in this order.
enum class PaddingMode : int32_t { kConstant = 0, kEdge = 1, kReflect = 2, kSymmetric = 3 };

// The way from a source image to an output. `job.window` and the crop never leave their images.
struct Geometry {
  Rect crop;              // of the source image: what is resized
  bool mirror_x = false;  // the crop is mirrored before it is resized
  bool mirror_y = false;
  ResizeJob job;  // from the crop's size; its window is what the output shows of the result
  Size output = {0, 0};
  bool identity = false;  // the output is the source

  // The output, where it shows more than the window: the place of the window in it, and what fills
  // the rest.
  Rect place;  // x, y of the window in the output
  bool padded = false;
  PaddingMode padding_mode = PaddingMode::kConstant;
  uint8_t fill[3] = {};
  Rect plane;  // the output's rectangle in coordinates of the resized image; leaves it where padded
  bool flip_x =
      false;  // of the output as a whole; job.flip_* say the same for kConstant and no padding
  bool flip_y = false;
};

// Folds one op after another into a Geometry. An op that returns kUnsupported has changed nothing:
// it needs the pixels that the ops before it make.
class Folder {
 public:
  explicit Folder(Size source);

  // Of what is seen now.
  Size size() const { return {view_.window.w, view_.window.h}; }
  bool untouched() const { return untouched_; }

  void flip_x();
  void flip_y();
  // `rect` of what is seen; where it leaves that, `mode` and `fill` (red, green, blue) say what is
  // shown.
  Code crop(const Rect& rect, PaddingMode mode, const uint8_t* fill);
  // `rect` of what is seen, resized.
  Code resize(const Rect& rect, Size out, Filter filter);

  // kUnsupported: nothing but padding is seen.
  Code finish(Geometry* geometry) const;

 private:
  // The ops so far, as a window on an image and two flips of it. `full` is the image; the window
  // may leave it.
  struct View {
    Size full;
    Rect window;
    bool flip_x = false;
    bool flip_y = false;

    explicit View(Size size) : full(size), window{0, 0, size.width, size.height} {}

    void crop(const Rect& rect);
    bool whole() const;
    bool inside() const;
  };

  Geometry geometry_;
  View view_;
  bool untouched_ = true;
  bool resized_ = false;
  bool padded_ = false;
};

// The index in [0, size) that index i of a padded row shows; -1: the fill colour.
int padded_index(int i, int size, PaddingMode mode);

}  // namespace headrace
