// What several pixel ops have in common.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>

#include "kernels.h"
#include "op.h"

namespace headrace {

// As Python's random.uniform.
inline double uniform(RandomStream* random, double low, double high) {
  return low + (high - low) * random->unit();
}

// 1 or 0, as torch.rand(1) < p says.
inline double happens(RandomStream* random, double p) { return random->unit() < p ? 1 : 0; }

// Of a set of operations.
inline bool has_bit(double bits, int kind) { return (as_int(bits) >> kind & 1) != 0; }

// One of two filters; `other` is -1 where there is none.
inline double draw_filter(double filter, double other, RandomStream* random) {
  return other >= 0 && random->below(2) == 1 ? other : filter;
}

// --- Ops that are applied with a probability, p[0]: v[0] is 1 where they are. ---

inline const char* check_chance(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a probability must be 0 to 1";
}

inline Code draw_chance(const double* p, RandomStream* random, Size, double* v) {
  v[0] = happens(random, p[0]);
  return Code::kOk;
}

inline bool not_applied(const double*, const double* v) { return v[0] == 0; }

// The three channels in an order that torch.randperm(3) draws.
inline void draw_channels(RandomStream* random, double* v) {
  int order[3] = {0, 1, 2};
  random->shuffle(order, 3);
  std::copy_n(order, 3, v);
}

// v: the channels of the image that become red, green and blue.
inline Code permute_channels(const double* v, Canvas* canvas) {
  for (int c = 0; c < 3; ++c)
    if (!whole_between(v[c], 0, 2)) return Code::kUnsupported;
  const int order[3] = {as_int(v[0]), as_int(v[1]), as_int(v[2])};
  ops::permute_channels(canvas->image(), order);
  return Code::kOk;
}

// Red, green and blue of what fills the outside.
inline const char* check_fill(const double* fill) {
  for (int c = 0; c < 3; ++c)
    if (!whole_between(fill[c], 0, 255)) return "a fill must be three levels of 0 to 255";
  return nullptr;
}

inline const char* check_padding(double mode, const double* fill) {
  if (!whole_between(mode, 0, static_cast<int>(PaddingMode::kSymmetric)))
    return "a padding mode is unknown";
  return check_fill(fill);
}

// sides: left, top, right and bottom in pixels, of which negative ones are cut off.
inline const char* check_sides(const double* sides, double mode, const double* fill) {
  for (int i = 0; i < 4; ++i)
    if (!whole_between(sides[i], -kMaxEdge, kMaxEdge)) return "padding is out of range";
  // What is mirrored is the rest of the image then, of which a window shows more.
  const auto range = std::minmax_element(sides, sides + 4);
  if (mode != 0 && *range.first < 0 && *range.second > 0)
    return "an image is padded with its own pixels, and cut";
  return check_padding(mode, fill);
}

inline void read_fill(const double* fill, uint8_t out[3]) {
  for (int c = 0; c < 3; ++c) out[c] = static_cast<uint8_t>(fill[c]);
}

// A crop that is padded where it leaves the image.
inline Code fold_crop(const Rect& rect, double mode, const double* fill, Folder* folder) {
  uint8_t rgb[3];
  read_fill(fill, rgb);
  return folder->crop(rect, static_cast<PaddingMode>(as_int(mode)), rgb);
}

inline const char* check_warp(double filter, const double* fill) {
  const bool known = filter == 0 || filter == 2 || filter == 3;
  return known ? check_fill(fill) : "a warp's filter must be nearest, bilinear or bicubic";
}

// A look-up that depends on how many pixels have each level: append(table, counts).
template <typename Append>
Code append_counted(const Append& append, Canvas* canvas) {
  int64_t counts[3][256];
  ops::LevelTable* levels = canvas->levels();
  ops::count_levels(canvas->unfinished(), counts);
  std::invoke(append, levels, counts);
  return Code::kOk;
}

// The same of uint8 tensors, in torchvision's v1 or v2.
inline Code append_torch_autocontrast(bool v2, Canvas* canvas) {
  return append_counted(
      [v2](ops::LevelTable* table, const int64_t(&counts)[3][256]) {
        table->append_torch_autocontrast(counts, v2);
      },
      canvas);
}

// images[0] becomes the image, and the next `count` what change(0), change(1), … make of it, each
// of the image itself; `images` has room for kMostMixed.
template <typename Change>
Code change_copies(int count, Canvas* canvas, ImageView* images, const Change& change) {
  const Size size = {canvas->image().width, canvas->image().height};
  const auto copy = [&](const ImageView& from, const ImageView& to) {
    for (int y = 0; y < size.height; ++y)
      std::memcpy(to.row(y), from.row(y), size_t{4} * static_cast<size_t>(size.width));
  };
  for (int i = 0; i <= count; ++i) {
    images[i] = canvas->extra(static_cast<size_t>(i), size.width, size.height);
    if (images[i].data == nullptr) return Code::kOutOfMemory;
  }
  copy(canvas->image(), images[0]);
  for (int i = 0; i < count; ++i) {
    if (i > 0) copy(images[0], canvas->image());
    const Code code = change(i);
    if (code != Code::kOk) return code;
    copy(canvas->image(), images[i + 1]);
  }
  return Code::kOk;
}

// The image becomes the sum of `count` images with these weights, 0 to 1 each.
inline Code mix_images(const ImageView* images, const double* weights, int count, Canvas* canvas) {
  float rounded[ops::kMostMixed];
  for (int i = 0; i < count; ++i) {
    if (!between(weights[i], 0, 1)) return Code::kUnsupported;
    rounded[i] = static_cast<float>(weights[i]);
  }
  ops::mix(images, rounded, count, canvas->image());
  return Code::kOk;
}

inline Code sharpen_canvas(double factor, Canvas* canvas) {
  return canvas->redraw([=](const ImageView& image, const ImageView& out) {
    ops::adjust_sharpness(image, factor, out);
    return Code::kOk;
  });
}

// Pillow's GaussianBlur.
inline Code blur_canvas(double radius_x, double radius_y, Canvas* canvas) {
  return canvas->redraw([=](const ImageView& image, const ImageView& out) {
    return canvas->blur()->pillow_gaussian(image, radius_x, radius_y, out);
  });
}

inline Code rotate_canvas(const ops::Rotation& rotation, double filter, const double* fill,
                          Canvas* canvas) {
  return canvas->redraw(
      rotation.width, rotation.height, [&](const ImageView& image, const ImageView& out) {
        uint8_t rgb[3];
        read_fill(fill, rgb);
        ops::rotate(image, rotation, static_cast<Filter>(as_int(filter)), rgb, out);
        return Code::kOk;
      });
}

// The image, warped to that size.
inline Code warp_canvas(const ops::Map& map, double filter, const double* fill, Size size,
                        Canvas* canvas) {
  return canvas->redraw(size.width, size.height, [&](const ImageView& image, const ImageView& out) {
    uint8_t rgb[3];
    read_fill(fill, rgb);
    ops::warp(image, map, static_cast<Filter>(as_int(filter)), rgb, out);
    return Code::kOk;
  });
}

// The same within its size.
inline Code warp_canvas(const ops::Map& map, double filter, const double* fill, Canvas* canvas) {
  const ImageView& image = canvas->image();
  return warp_canvas(map, filter, fill, {image.width, image.height}, canvas);
}

}  // namespace headrace
