#include "geometry.h"

#include <algorithm>

namespace headrace {

// `rect` is in coordinates of what is seen: the window, flipped.
void Folder::View::crop(const Rect& rect) {
  window.x += flip_x ? window.w - rect.x - rect.w : rect.x;
  window.y += flip_y ? window.h - rect.y - rect.h : rect.y;
  window.w = rect.w;
  window.h = rect.h;
}

bool Folder::View::whole() const {
  return window.x == 0 && window.y == 0 && window.w == full.width && window.h == full.height;
}

bool Folder::View::inside() const {
  return window.x >= 0 && window.y >= 0 && window.x + window.w <= full.width &&
         window.y + window.h <= full.height;
}

Folder::Folder(Size source) : view_(source) {
  geometry_.crop = {0, 0, source.width, source.height};
  geometry_.job.in_w = geometry_.job.out_w = source.width;
  geometry_.job.in_h = geometry_.job.out_h = source.height;
}

void Folder::flip_x() {
  view_.flip_x = !view_.flip_x;
  untouched_ = false;
}

void Folder::flip_y() {
  view_.flip_y = !view_.flip_y;
  untouched_ = false;
}

Code Folder::crop(const Rect& rect, PaddingMode mode, const uint8_t* fill) {
  const bool pads = rect.x < 0 || rect.y < 0 || rect.x + rect.w > view_.window.w ||
                    rect.y + rect.h > view_.window.h;
  // Padding hides what lies beyond an earlier crop; a window on the image would show it again.
  if (pads && (!view_.whole() || padded_)) return Code::kUnsupported;
  if (pads) {
    padded_ = true;
    geometry_.padding_mode = mode;
    std::copy_n(fill, 3, geometry_.fill);
  }
  view_.crop(rect);
  untouched_ = false;
  return Code::kOk;
}

Code Folder::resize(const Rect& rect, Size out, Filter filter) {
  View seen = view_;
  seen.crop(rect);
  if (resized_ || !view_.inside() || !seen.inside() || rect.w < 1 || rect.h < 1)
    return Code::kUnsupported;
  geometry_.crop = seen.window;
  geometry_.mirror_x = seen.flip_x;
  geometry_.mirror_y = seen.flip_y;
  geometry_.job.in_w = seen.window.w;
  geometry_.job.in_h = seen.window.h;
  geometry_.job.out_w = out.width;
  geometry_.job.out_h = out.height;
  geometry_.job.filter = filter;
  view_ = View(out);
  resized_ = true;
  untouched_ = false;
  return Code::kOk;
}

Code Folder::finish(Geometry* geometry) const {
  Geometry& g = *geometry = geometry_;
  g.output = size();
  g.plane = view_.window;
  g.flip_x = g.job.flip_x = view_.flip_x;
  g.flip_y = g.job.flip_y = view_.flip_y;
  g.identity = !resized_ && view_.whole() && !view_.flip_x && !view_.flip_y;
  g.padded = !view_.inside();
  if (g.padded && g.padding_mode != PaddingMode::kConstant) {
    g.job.flip_x = g.job.flip_y = false;
    g.job.window = {0, 0, g.job.out_w, g.job.out_h};
    return Code::kOk;
  }
  const int x0 = std::max(0, view_.window.x);
  const int y0 = std::max(0, view_.window.y);
  const int x1 = std::min(g.job.out_w, view_.window.x + view_.window.w);
  const int y1 = std::min(g.job.out_h, view_.window.y + view_.window.h);
  if (x0 >= x1 || y0 >= y1) return Code::kUnsupported;
  g.job.window = {x0, y0, x1 - x0, y1 - y0};
  g.place = {view_.flip_x ? view_.window.x + view_.window.w - x1 : x0 - view_.window.x,
             view_.flip_y ? view_.window.y + view_.window.h - y1 : y0 - view_.window.y, x1 - x0,
             y1 - y0};
  return Code::kOk;
}

int padded_index(int i, int size, PaddingMode mode) {
  if (i >= 0 && i < size) return i;
  switch (mode) {
    case PaddingMode::kConstant:
      return -1;
    case PaddingMode::kEdge:
      return i < 0 ? 0 : size - 1;
    case PaddingMode::kReflect: {
      if (size == 1) return 0;
      const int period = 2 * (size - 1);
      const int k = ((i % period) + period) % period;
      return k < size ? k : period - k;
    }
    case PaddingMode::kSymmetric: {
      const int period = 2 * size;
      const int k = ((i % period) + period) % period;
      return k < size ? k : period - 1 - k;
    }
  }
  return -1;
}

}  // namespace headrace
