#include "geometry.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

struct Size {
  int width;
  int height;
};

// Python's round(): halves go to the even neighbour, which is nearbyint's default.
int round_half_even(double value) { return static_cast<int>(std::nearbyint(value)); }

// torchvision's rule: int(size * long / short), in double precision, truncated. Edges of 0, which
// every caller refuses, where one would be longer than kMaxEdge.
Size shorter_edge_size(const hr_step& step, Size in) {
  const int64_t shorter = std::min(in.width, in.height);
  const int64_t longer = std::max(in.width, in.height);
  const auto scaled = [](int64_t edge, int64_t by, int64_t of) {
    return static_cast<int64_t>(static_cast<double>(edge * by) / static_cast<double>(of));
  };
  int64_t new_short = step.height;
  int64_t new_long = scaled(new_short, longer, shorter);
  if (step.max_size > 0 && new_long > step.max_size) {
    new_short = scaled(step.max_size, new_short, new_long);
    new_long = step.max_size;
  }
  if (new_long > kMaxEdge) return {0, 0};
  const auto narrow = static_cast<int>(new_short), wide = static_cast<int>(new_long);
  return in.width <= in.height ? Size{narrow, wide} : Size{wide, narrow};
}

struct Padding {
  int left, top, right, bottom;
};

Padding total_padding(const hr_step& step, Size in) {
  Padding pad = {step.padding[0], step.padding[1], step.padding[2], step.padding[3]};
  if (step.pad_if_needed) {
    const int short_x = std::max(0, step.width - (in.width + pad.left + pad.right));
    const int short_y = std::max(0, step.height - (in.height + pad.top + pad.bottom));
    pad = {pad.left + short_x, pad.top + short_y, pad.right + short_x, pad.bottom + short_y};
  }
  return pad;
}

// The window of a CenterCrop, which may leave the input: torchvision pads by halves, rounded down
// on the left and top.
Rect center_window(const hr_step& step, Size in) {
  const auto start = [](int have, int want) {
    return want > have ? -((want - have) / 2) : round_half_even((have - want) / 2.0);
  };
  return {start(in.width, step.width), start(in.height, step.height), step.width, step.height};
}

void central_crop(const hr_step& step, Size in, hr_draw* draw) {
  const double in_ratio = static_cast<double>(in.width) / in.height;
  const double low = std::min(step.ratio[0], step.ratio[1]);
  const double high = std::max(step.ratio[0], step.ratio[1]);
  int w = in.width, h = in.height;
  if (in_ratio < low) {
    h = round_half_even(w / low);
  } else if (in_ratio > high) {
    w = round_half_even(h * high);
  }
  // A floor division, as in Python: h can exceed the height by rounding.
  const auto half = [](int value) { return value >= 0 ? value / 2 : -((-value + 1) / 2); };
  *draw = {{half(in.height - h), half(in.width - w), h, w}};
}

// torchvision's RandomResizedCrop.get_params: ten tries, then the central crop; the same float32
// and double steps.
void draw_resized_crop(const hr_step& step, RandomStream* random, Size in, hr_draw* draw) {
  const double area = static_cast<double>(in.width) * in.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random->uniform(step.scale[0], step.scale[1]);
    const double aspect = std::exp(random->uniform(step.log_ratio[0], step.log_ratio[1]));
    const double w = std::nearbyint(std::sqrt(target * aspect));
    const double h = std::nearbyint(std::sqrt(target / aspect));
    if (0 < w && w <= in.width && 0 < h && h <= in.height) {
      const int top = random->below(in.height - static_cast<int>(h) + 1);
      const int left = random->below(in.width - static_cast<int>(w) + 1);
      *draw = {{top, left, static_cast<int>(h), static_cast<int>(w)}};
      return;
    }
  }
  central_crop(step, in, draw);
}

Code draw_random_crop(const hr_step& step, RandomStream* random, Size in, hr_draw* draw) {
  const Padding pad = total_padding(step, in);
  const int free_x = in.width + pad.left + pad.right - step.width;
  const int free_y = in.height + pad.top + pad.bottom - step.height;
  if (free_x < 0 || free_y < 0) return Code::kUnsupported;
  const int top = random->below(free_y + 1);
  const int left = random->below(free_x + 1);
  *draw = {{top, left, 0, 0}};
  return Code::kOk;
}

Code draw_step(const hr_step& step, const RandomKey& key, uint32_t number, Size in, hr_draw* draw) {
  RandomStream random(key, number);
  *draw = {};
  switch (step.kind) {
    case HR_RANDOM_RESIZED_CROP:
      draw_resized_crop(step, &random, in, draw);
      return Code::kOk;
    case HR_RANDOM_CROP:
      return draw_random_crop(step, &random, in, draw);
    case HR_HORIZONTAL_FLIP:
    case HR_VERTICAL_FLIP:
      draw->value[0] = random.uniform(0.0f, 1.0f) < static_cast<float>(step.p);
      return Code::kOk;
    default:
      return Code::kOk;
  }
}

Size output_size(const hr_step& step, Size in) {
  switch (step.kind) {
    case HR_RESIZE_SHORTER:
      return shorter_edge_size(step, in);
    case HR_HORIZONTAL_FLIP:
    case HR_VERTICAL_FLIP:
      return in;
    default:
      return {step.width, step.height};
  }
}

// The steps so far, as a window on an image and two flips of it. `full` is the image; the window
// may leave it.
struct View {
  Size full;
  Rect window;
  bool flip_x = false;
  bool flip_y = false;

  explicit View(Size size) : full(size), window{0, 0, size.width, size.height} {}

  // `r` is in coordinates of what is seen: the window, flipped.
  void crop(const Rect& r) {
    window.x += flip_x ? window.w - r.x - r.w : r.x;
    window.y += flip_y ? window.h - r.y - r.h : r.y;
    window.w = r.w;
    window.h = r.h;
  }
  bool whole() const {
    return window.x == 0 && window.y == 0 && window.w == full.width && window.h == full.height;
  }
  bool inside() const {
    return window.x >= 0 && window.y >= 0 && window.x + window.w <= full.width &&
           window.y + window.h <= full.height;
  }
};

class Folder {
 public:
  Folder(Size source, Geometry* geometry) : geometry_(geometry), view_(source) {}

  Code apply(const hr_step& step, const hr_draw& draw) {
    const Size in = {view_.window.w, view_.window.h};
    switch (step.kind) {
      case HR_HORIZONTAL_FLIP:
        view_.flip_x ^= draw.value[0] != 0;
        return Code::kOk;
      case HR_VERTICAL_FLIP:
        view_.flip_y ^= draw.value[0] != 0;
        return Code::kOk;
      case HR_CENTER_CROP:
        return window_crop(center_window(step, in), HR_CONSTANT, nullptr);
      case HR_RANDOM_CROP: {
        const Padding pad = total_padding(step, in);
        const Rect rect = {draw.value[1] - pad.left, draw.value[0] - pad.top, step.width,
                           step.height};
        return window_crop(rect, step.padding_mode, step.fill);
      }
      case HR_RANDOM_RESIZED_CROP:
        view_.crop({draw.value[1], draw.value[0], draw.value[3], draw.value[2]});
        return resize(step, {step.width, step.height});
      case HR_RESIZE:
      case HR_RESIZE_SHORTER:
        return resize(step, output_size(step, in));
      default:
        return Code::kInvalidArgument;
    }
  }

  Code finish(const hr_pipeline& pipeline) {
    if (!resized_) start_window();
    if (view_.window.w != pipeline.width || view_.window.h != pipeline.height)
      return Code::kUnsupported;
    Geometry& g = *geometry_;
    g.plane = view_.window;
    g.flip_x = g.job.flip_x = view_.flip_x;
    g.flip_y = g.job.flip_y = view_.flip_y;
    g.padded = !view_.inside();
    if (g.padded && g.padding_mode != HR_CONSTANT) {
      g.job.flip_x = g.job.flip_y = false;
      g.job.window = {0, 0, g.job.out_w, g.job.out_h};
      return Code::kOk;
    }
    const int x0 = std::max(0, view_.window.x);
    const int y0 = std::max(0, view_.window.y);
    const int x1 = std::min(g.job.out_w, view_.window.x + view_.window.w);
    const int y1 = std::min(g.job.out_h, view_.window.y + view_.window.h);
    if (x0 >= x1 || y0 >= y1) return Code::kUnsupported;  // only padding is seen
    g.job.window = {x0, y0, x1 - x0, y1 - y0};
    g.place = {view_.flip_x ? view_.window.x + view_.window.w - x1 : x0 - view_.window.x,
               view_.flip_y ? view_.window.y + view_.window.h - y1 : y0 - view_.window.y, x1 - x0,
               y1 - y0};
    return Code::kOk;
  }

 private:
  Code window_crop(const Rect& rect, int32_t mode, const int32_t* fill) {
    const bool pads = rect.x < 0 || rect.y < 0 || rect.x + rect.w > view_.window.w ||
                      rect.y + rect.h > view_.window.h;
    // Padding hides what lies beyond an earlier crop; a window on the image would show it again.
    if (pads && (!view_.whole() || padded_)) return Code::kUnsupported;
    if (pads) {
      padded_ = true;
      geometry_->padding_mode = mode;
      for (int c = 0; c < 3; ++c)
        geometry_->fill[c] = fill == nullptr ? 0 : static_cast<uint8_t>(fill[c]);
    }
    view_.crop(rect);
    return Code::kOk;
  }

  Code resize(const hr_step& step, Size out) {
    if (resized_ || !view_.inside() || view_.window.w < 1 || view_.window.h < 1)
      return Code::kUnsupported;
    if (out.width < 1 || out.height < 1) return Code::kUnsupported;
    Geometry& g = *geometry_;
    g.crop = view_.window;
    g.mirror_x = view_.flip_x;
    g.mirror_y = view_.flip_y;
    g.job.in_w = g.crop.w;
    g.job.in_h = g.crop.h;
    g.job.out_w = out.width;
    g.job.out_h = out.height;
    g.job.filter = static_cast<Filter>(step.filter);
    view_ = View(out);
    resized_ = true;
    return Code::kOk;
  }

  // No step resizes: the image itself is what the window looks at.
  void start_window() {
    Geometry& g = *geometry_;
    const Size full = view_.full;  // crops and flips so far are the window's own
    g.crop = {0, 0, full.width, full.height};
    g.job.in_w = g.job.out_w = full.width;
    g.job.in_h = g.job.out_h = full.height;
    g.job.filter = Filter::kBilinear;
  }

  Geometry* geometry_;
  View view_;
  bool resized_ = false;
  bool padded_ = false;
};

}  // namespace

Code draw_steps(const hr_pipeline& pipeline, const RandomKey& key, int width, int height,
                hr_draw* draws) {
  Size size = {width, height};
  for (int32_t i = 0; i < pipeline.step_count; ++i) {
    const Code code = draw_step(pipeline.steps[i], key, static_cast<uint32_t>(i), size, &draws[i]);
    if (code != Code::kOk) return code;
    size = output_size(pipeline.steps[i], size);
    if (size.width < 1 || size.height < 1) return Code::kUnsupported;
  }
  return Code::kOk;
}

Code fold_steps(const hr_pipeline& pipeline, const hr_draw* draws, int width, int height,
                Geometry* geometry) {
  *geometry = Geometry();
  Folder folder({width, height}, geometry);
  for (int32_t i = 0; i < pipeline.step_count; ++i) {
    const Code code = folder.apply(pipeline.steps[i], draws[i]);
    if (code != Code::kOk) return code;
  }
  return folder.finish(pipeline);
}

int padded_index(int i, int size, int32_t padding_mode) {
  if (i >= 0 && i < size) return i;
  switch (padding_mode) {
    case HR_EDGE:
      return i < 0 ? 0 : size - 1;
    case HR_REFLECT: {
      if (size == 1) return 0;
      const int period = 2 * (size - 1);
      const int k = ((i % period) + period) % period;
      return k < size ? k : period - k;
    }
    case HR_SYMMETRIC: {
      const int period = 2 * size;
      const int k = ((i % period) + period) % period;
      return k < size ? k : period - 1 - k;
    }
    default:
      return -1;
  }
}

}  // namespace headrace
