// The order of the work: which passes run, over which rows, and what is kept between images.
#include "resize.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "coefficients.h"
#include "kernels.h"

namespace headrace {
namespace {

constexpr int kLongestSide = 1 << 24;  // Pillow computes with float32 sizes: beyond, they are not exact
constexpr int kKeptAxes = 8;

AxisJob x_axis(const ResizeJob& job) {
  return {job.in_w, job.out_w, job.filter, {job.window.x, job.window.w}, job.flip_x};
}

AxisJob y_axis(const ResizeJob& job) {
  return {job.in_h, job.out_h, job.filter, {job.window.y, job.window.h}, job.flip_y};
}

// Pillow 13 compares what the axes lose. Before it, only images over 100 times higher than wide were shrunk vertically
// first, and that by Image.resize itself.
bool vertical_first(const ResizeJob& job, const PillowRules& rules) {
  const int64_t shrink_y = static_cast<int64_t>(job.in_h) - job.out_h;
  const int64_t shrink_x = static_cast<int64_t>(job.in_w) - job.out_w;
  if (shrink_y <= 0) return false;
  return rules.vertical_first_allowed ? shrink_y > 2 * shrink_x
                                      : job.in_h > static_cast<int64_t>(job.in_w) * 100;
}

bool valid_axis(int in, int out, int start, int count) {
  return in > 0 && in <= kLongestSide && out > 0 && out <= kLongestSide && start >= 0 &&
         count > 0 && count <= out - start;
}

bool valid(const ResizeJob& job) {
  return valid_axis(job.in_w, job.out_w, job.window.x, job.window.w) &&
         valid_axis(job.in_h, job.out_h, job.window.y, job.window.h) &&
         job.filter >= Filter::kNearest && job.filter <= Filter::kHamming;
}

const ResizeKernels& active_kernels() {
  switch (simd_active()) {
#if defined(__x86_64__)
    case Simd::kAvx512: return kAvx512Resize;
    case Simd::kAvx2: return kAvx2Resize;
#elif defined(__aarch64__)
    case Simd::kNeon: return kNeonResize;
#endif
    default: return kScalarResize;
  }
}

void copy_row(const uint8_t* in, uint8_t* out, int width, bool flip) {
  if (!flip) {
    std::memcpy(out, in, static_cast<size_t>(width) * 4);
    return;
  }
  for (int x = 0; x < width; ++x) std::memcpy(out + x * 4, in + (width - 1 - x) * 4, 4);
}

void mirror_row(uint8_t* row, int width) {
  for (int left = 0, right = width - 1; left < right; ++left, --right) {
    uint8_t pixel[4];
    std::memcpy(pixel, row + left * 4, 4);
    std::memcpy(row + left * 4, row + right * 4, 4);
    std::memcpy(row + right * 4, pixel, 4);
  }
}

}  // namespace

Rect resize_footprint(const ResizeJob& job, const PillowRules&) {
  if (!valid(job)) return {};
  const Span x = axis_footprint(x_axis(job));
  const Span y = axis_footprint(y_axis(job));
  return {x.first, y.first, x.count, y.count};
}

namespace {

// The taps of one direction's last few images: folders of equal sizes find theirs here.
class AxisCache {
 public:
  Code find(const AxisJob& job, const ResizeKernels& kernels, const AxisTaps** taps) {
    for (const Axis& axis : axes_) {
      if (axis.serves(job, kernels)) {
        *taps = &axis.taps();
        return Code::kOk;
      }
    }
    Axis& oldest = axes_[next_];
    next_ = (next_ + 1) % kKeptAxes;
    *taps = &oldest.taps();
    return oldest.prepare(job, kernels);
  }

 private:
  Axis axes_[kKeptAxes];
  int next_ = 0;
};

}  // namespace

struct Resizer::State {
  AxisCache x_axes, y_axes;
  Buffer positions;  // of nearest
  Buffer rows;       // between the passes
  Buffer pointers;   // to the rows under one output's taps

  Code copy(const ResizeJob& job, const ImageView& source, const ImageView& out);
  Code nearest(const ResizeJob& job, const Rect& footprint, const ImageView& source,
               const ImageView& out);
  Code horizontal_only(const AxisTaps& x, const ResizeKernels& kernels, const ResizeJob& job,
                       const ImageView& source, const ImageView& out);
  Code vertical_only(const AxisTaps& y, const ResizeKernels& kernels, const ResizeJob& job,
                     const ImageView& source, const ImageView& out);
  Code horizontal_then_vertical(const AxisTaps& x, const AxisTaps& y, const ResizeKernels& kernels,
                                const ResizeJob& job, const ImageView& source,
                                const ImageView& out);
  Code vertical_then_horizontal(const AxisTaps& x, const AxisTaps& y, const ResizeKernels& kernels,
                                const ImageView& source, const ImageView& out);
};

Code Resizer::State::copy(const ResizeJob& job, const ImageView& source, const ImageView& out) {
  const int height = job.window.h;
  for (int y = 0; y < height; ++y) {
    copy_row(source.row(job.flip_y ? height - 1 - y : y), out.row(y), job.window.w, job.flip_x);
  }
  return Code::kOk;
}

Code Resizer::State::nearest(const ResizeJob& job, const Rect& footprint, const ImageView& source,
                             const ImageView& out) {
  const int width = job.window.w, height = job.window.h;
  auto* columns = reinterpret_cast<int32_t*>(
      positions.reserve((static_cast<size_t>(width) + height) * sizeof(int32_t)));
  if (columns == nullptr) return Code::kOutOfMemory;
  int32_t* lines = columns + width;
  nearest_positions(x_axis(job), columns);
  nearest_positions(y_axis(job), lines);
  for (int y = 0; y < height; ++y) {
    uint8_t* to = out.row(y);
    if (lines[y] < 0) {
      std::memset(to, 0, static_cast<size_t>(width) * 4);
      continue;
    }
    const uint8_t* from = source.row(lines[y] - footprint.y);
    for (int x = 0; x < width; ++x, to += 4) {
      if (columns[x] < 0) {
        std::memset(to, 0, 4);
      } else {
        std::memcpy(to, from + static_cast<size_t>(columns[x] - footprint.x) * 4, 4);
      }
    }
  }
  return Code::kOk;
}

namespace {

// Rows [first, end) of `source` through the horizontal pass. Row y goes to out_row(y); the last row stands in for those that
// the last group lacks.
template <typename OutRow>
void horizontal_rows(const AxisTaps& x, const ResizeKernels& kernels, const ImageView& source,
                     int first, int end, const OutRow& out_row) {
  for (int y = first; y < end; y += kRowGroup) {
    const uint8_t* in[kRowGroup];
    uint8_t* out[kRowGroup];
    for (int i = 0; i < kRowGroup; ++i) {
      const int row = std::min(y + i, end - 1);
      in[i] = source.row(row);
      out[i] = out_row(row);
    }
    kernels.horizontal(in, out, x);
  }
}

// One output of the vertical pass. row_at(y) is the row y of the axis.
template <typename RowAt>
void vertical_row(const AxisTaps& y, int output, const ResizeKernels& kernels,
                  const uint8_t** pointers, int width, uint8_t* out, const RowAt& row_at) {
  const int taps = y.groups * kTapGroup;
  for (int t = 0; t < taps; ++t) pointers[t] = row_at(std::min(y.first[output] + t, y.extent - 1));
  const size_t packed_bytes = static_cast<size_t>(y.groups) * kernels.group_bytes;
  kernels.vertical(pointers, y.packed + output * packed_bytes, y.groups, y.count[output], width,
                   out);
}

const uint8_t** reserve_pointers(Buffer* buffer, const AxisTaps& y) {
  const size_t count = static_cast<size_t>(y.groups) * kTapGroup;
  return reinterpret_cast<const uint8_t**>(buffer->reserve(count * sizeof(uint8_t*)));
}

}  // namespace

Code Resizer::State::horizontal_only(const AxisTaps& x, const ResizeKernels& kernels,
                                     const ResizeJob& job, const ImageView& source,
                                     const ImageView& out) {
  const int height = job.window.h;
  horizontal_rows(x, kernels, source, 0, height,
                  [&](int y) { return out.row(job.flip_y ? height - 1 - y : y); });
  return Code::kOk;
}

Code Resizer::State::vertical_only(const AxisTaps& y, const ResizeKernels& kernels,
                                   const ResizeJob& job, const ImageView& source,
                                   const ImageView& out) {
  const uint8_t** taps = reserve_pointers(&pointers, y);
  if (taps == nullptr) return Code::kOutOfMemory;
  for (int output = 0; output < y.outputs; ++output) {
    vertical_row(y, output, kernels, taps, job.window.w, out.row(output),
                 [&](int row) { return source.row(row); });
    if (job.flip_x) mirror_row(out.row(output), job.window.w);
  }
  return Code::kOk;
}

// Each row passes horizontally just before the first output that needs it, into a ring that holds one output's taps.
Code Resizer::State::horizontal_then_vertical(const AxisTaps& x, const AxisTaps& y,
                                              const ResizeKernels& kernels, const ResizeJob& job,
                                              const ImageView& source, const ImageView& out) {
  const uint8_t** taps = reserve_pointers(&pointers, y);
  const size_t stride = (static_cast<size_t>(x.outputs) * 4 + 63) / 64 * 64;
  const int ring = std::min(y.reach + 2 * kRowGroup, y.extent);
  uint8_t* kept = rows.reserve(stride * ring);
  if (taps == nullptr || kept == nullptr) return Code::kOutOfMemory;
  const auto ring_row = [&](int row) { return kept + (row % ring) * stride; };
  int done = 0;
  for (int i = 0; i < y.outputs; ++i) {
    const int output = job.flip_y ? y.outputs - 1 - i : i;
    const int needed = y.first[output] + y.count[output];
    while (done < needed) {
      const int end = std::min(done + kRowGroup, y.extent);
      horizontal_rows(x, kernels, source, done, end, ring_row);
      done = end;
    }
    vertical_row(y, output, kernels, taps, x.outputs, out.row(output), ring_row);
  }
  return Code::kOk;
}

Code Resizer::State::vertical_then_horizontal(const AxisTaps& x, const AxisTaps& y,
                                              const ResizeKernels& kernels, const ImageView& source,
                                              const ImageView& out) {
  const uint8_t** taps = reserve_pointers(&pointers, y);
  const size_t stride = (static_cast<size_t>(x.extent) * 4 + 63) / 64 * 64;
  uint8_t* kept = rows.reserve(stride * kRowGroup);
  if (taps == nullptr || kept == nullptr) return Code::kOutOfMemory;
  const ImageView group{kept, stride, x.extent, kRowGroup};
  for (int start = 0; start < y.outputs; start += kRowGroup) {
    const int count = std::min(kRowGroup, y.outputs - start);
    for (int i = 0; i < count; ++i) {
      vertical_row(y, start + i, kernels, taps, x.extent, group.row(i),
                   [&](int row) { return source.row(row); });
    }
    horizontal_rows(x, kernels, group, 0, count, [&](int i) { return out.row(start + i); });
  }
  return Code::kOk;
}

Resizer::Resizer() : state_(new (std::nothrow) State) {}
Resizer::~Resizer() = default;

Code Resizer::run(const ResizeJob& job, const PillowRules& rules, const Rect& footprint,
                  const ImageView& source, const ImageView& out) {
  if (state_ == nullptr) return Code::kOutOfMemory;
  if (!valid(job)) return Code::kInvalidArgument;
  const Rect needed = resize_footprint(job, rules);
  if (footprint.x != needed.x || footprint.y != needed.y || footprint.w != needed.w ||
      footprint.h != needed.h || source.width < needed.w || source.height < needed.h ||
      out.width < job.window.w || out.height < job.window.h) {
    return Code::kInvalidArgument;
  }
  const bool need_x = job.in_w != job.out_w, need_y = job.in_h != job.out_h;
  if (!need_x && !need_y) return state_->copy(job, source, out);
  if (job.filter == Filter::kNearest) return state_->nearest(job, footprint, source, out);

  const ResizeKernels& kernels = active_kernels();
  const AxisTaps *x = nullptr, *y = nullptr;
  Code code = Code::kOk;
  if (need_x) code = state_->x_axes.find(x_axis(job), kernels, &x);
  if (need_y && code == Code::kOk) code = state_->y_axes.find(y_axis(job), kernels, &y);
  if (code != Code::kOk) return code;
  if (y == nullptr) return state_->horizontal_only(*x, kernels, job, source, out);
  if (x == nullptr) return state_->vertical_only(*y, kernels, job, source, out);
  return vertical_first(job, rules)
             ? state_->vertical_then_horizontal(*x, *y, kernels, source, out)
             : state_->horizontal_then_vertical(*x, *y, kernels, job, source, out);
}

}  // namespace headrace
