// FiveCrop and TenCrop: the corners and the middle, one below the other.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// Places of the parameters. kFlipped: whether the same of the mirrored image follow: 0: no, 1:
// mirrored left to right, 2: top to bottom.
enum : int { kHeight, kWidth, kFlipped };

constexpr int kPlaces = 5;

const char* check(const double* p) {
  if (!is_edge(p[kHeight]) || !is_edge(p[kWidth])) return "a crop's size is out of range";
  return whole_between(p[kFlipped], 0, 2) ? nullptr : "a crop's mirroring is unknown";
}

// torchvision raises an error for a crop that is larger than the image.
Code draw(const double* p, RandomStream*, Size in, double*) {
  return p[kHeight] <= in.height && p[kWidth] <= in.width ? Code::kOk : Code::kUnsupported;
}

int views_of(const double* p) { return p[kFlipped] != 0 ? 2 * kPlaces : kPlaces; }

Size size(const double* p, const double*, Size in) {
  if (p[kHeight] > in.height || p[kWidth] > in.width) return {0, 0};
  const double height = p[kHeight] * views_of(p);
  return height <= kMaxEdge ? Size{as_int(p[kWidth]), as_int(height)} : Size{0, 0};
}

// Where the crop of a place starts along one edge; the middle rounds as Python's round().
int start(int place, bool far, int have, int want) {
  if (place == kPlaces - 1) return static_cast<int>(std::nearbyint((have - want) / 2.0));
  return far ? have - want : 0;
}

void copy_row(const uint8_t* from, int left, int width, bool mirrored, int source_width,
              uint8_t* to) {
  const auto* pixels = reinterpret_cast<const uint32_t*>(from);
  if (!mirrored) {
    std::memcpy(to, pixels + left, size_t{4} * static_cast<size_t>(width));
    return;
  }
  const uint32_t* end = pixels + source_width - left;
  std::reverse_copy(end - width, end, reinterpret_cast<uint32_t*>(to));
}

Code pixels(const double* p, const double* v, Canvas* canvas) {
  const ImageView& image = canvas->image();
  const Size in = {image.width, image.height}, out_size = size(p, v, in);
  if (out_size.width == 0) return Code::kUnsupported;
  const ImageView out = canvas->spare(out_size.width, out_size.height);
  if (out.data == nullptr) return Code::kOutOfMemory;
  const int height = as_int(p[kHeight]), width = as_int(p[kWidth]);
  for (int view = 0; view < views_of(p); ++view) {
    const int place = view % kPlaces;
    const bool mirrored = view >= kPlaces, along_y = p[kFlipped] == 2;
    const int left = start(place, place % 2 == 1, in.width, width);
    const int top = start(place, place >= 2, in.height, height);
    for (int y = 0; y < height; ++y) {
      const int row = mirrored && along_y ? in.height - 1 - (top + y) : top + y;
      copy_row(image.row(row), left, width, mirrored && !along_y, in.width,
               out.row(view * height + y));
    }
  }
  canvas->show_spare();
  return Code::kOk;
}

}  // namespace

const Op kMultiCrop = {"multi_crop", check, draw, nullptr, size, nullptr, pixels};

}  // namespace headrace
