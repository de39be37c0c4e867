// What native code knows of one transform: how its parameters are checked, what it draws, and what
// it does to an image. docs/adding-a-transform.md leads through it.
#pragma once

#include <cstdint>
#include <deque>

#include "../geometry.h"
#include "../image.h"
#include "../random.h"
#include "../status.h"
#include "kernels.h"

namespace headrace {

// The image that pixel ops work on, and a second one that they may write to instead.
class Canvas {
 public:
  // What the image is, after the look-ups that wait for it.
  const ImageView& image() {
    if (levels_wait_) ops::look_up(image_, levels_);
    levels_wait_ = false;
    return image_;
  }

  // Look-ups to append to: consecutive ones are done at once. They see `unfinished()` pixels.
  ops::LevelTable* levels() {
    if (!levels_wait_) levels_ = ops::LevelTable();
    levels_wait_ = true;
    return &levels_;
  }
  const ImageView& unfinished() const { return image_; }

  // hr_op::data of the op that runs.
  const float* data() const { return data_; }
  void set_data(const float* data) { data_ = data; }

  ops::Blur* blur() { return &blur_; }

  // Memory for further images, by number, which nothing else writes to while an op runs; as
  // `spare`.
  ImageView extra(size_t number, int width, int height) {
    while (extras_.size() <= number) extras_.emplace_back();
    return extras_[number].reshape(width, height);
  }

  // Memory for another image, of undefined pixels; data is nullptr where memory is short. It may be
  // asked for again until it is shown.
  ImageView spare(int width, int height) {
    spare_ = images_[1 - current_].reshape(width, height);
    return spare_;
  }

  // Another image of that size: what draw(image, out), a Code, makes of this one.
  template <typename Draw>
  Code redraw(int width, int height, const Draw& draw) {
    const ImageView from = image(), out = spare(width, height);
    if (out.data == nullptr) return Code::kOutOfMemory;
    const Code code = draw(from, out);
    if (code == Code::kOk) show_spare();
    return code;
  }

  // The same of this one's size.
  template <typename Draw>
  Code redraw(const Draw& draw) {
    return redraw(image_.width, image_.height, draw);
  }

  // The spare becomes the image.
  void show_spare() {
    current_ = 1 - current_;
    image_ = spare_;
    levels_wait_ = false;
  }

 private:
  Image images_[2];
  ImageView image_, spare_;
  int current_ = 0;
  ops::LevelTable levels_;
  bool levels_wait_ = false;
  const float* data_ = nullptr;
  ops::Blur blur_;
  std::deque<Image> extras_;
};

// Every function is given the op's parameters `p` and, but for check and draw, what was drawn, `v`;
// both are arrays of HR_PARAMS and HR_DRAWS numbers. A null function means what is said beside it.
//
// An op has either `fold`, where it only moves pixels, resizes or pads by the rules of Folder, or
// `pixels`, or `order`, where it holds other ops.
struct Op {
  const char* name;

  // A sentence that says what is wrong with the parameters; nullptr: nothing. Whatever passes must
  // be safe to run. Null: every finite parameter is.
  const char* (*check)(const double* p) = nullptr;

  // Draws for an input of `in`, from a stream of the op's own; all draws are 0 before.
  // kUnsupported: torchvision raises an error for such an input. Null: nothing is drawn.
  Code (*draw)(const double* p, RandomStream* random, Size in, double* v) = nullptr;

  // Whether what was drawn leaves every input as it is. Null: never.
  bool (*idle)(const double* p, const double* v) = nullptr;

  // The output's size; edges below 1 refuse the input. Null: the input's.
  Size (*size)(const double* p, const double* v, Size in) = nullptr;

  // kUnsupported: what was folded before has to be done first.
  Code (*fold)(const double* p, const double* v, Folder* folder) = nullptr;

  // Changes canvas->image(), or shows a spare of the size that `size` says.
  Code (*pixels)(const double* p, const double* v, Canvas* canvas) = nullptr;

  // Which of the `count` ops inside are applied: their positions, in order, into out[count];
  // returns how many.
  int (*order)(const double* p, const double* v, int count, int* out) = nullptr;

  // How many numbers of hr_op::data it needs. Null: none.
  int64_t (*data_count)(const double* p) = nullptr;

  // `draw` for what depends on those numbers.
  Code (*draw_with_data)(const double* p, const float* data, RandomStream* random, Size in,
                         double* v) = nullptr;
};

// Op `id`, which is its place in the table; nullptr past the last.
const Op* find_op(int32_t id);

// The place of the op of this name in the table; -1: there is none.
int32_t find_op_id(const char* name);

// --- for checks ---

inline bool between(double value, double low, double high) { return value >= low && value <= high; }

inline bool whole_between(double value, double low, double high) {
  return between(value, low, high) && value == static_cast<double>(static_cast<int64_t>(value));
}

inline bool is_edge(double value) { return whole_between(value, 1, kMaxEdge); }

inline bool is_filter(double value) { return whole_between(value, 0, kLastFilter); }

inline int as_int(double value) { return static_cast<int>(value); }

}  // namespace headrace
