// What a resize job needs: which part of the source, which passes, in which order.
#include "resize.h"

#include <new>

#include "coefficients.h"
#include "kernels.h"
#include "opencv.h"
#include "passes.h"

namespace headrace {
namespace {

constexpr int kLongestSide =
    1 << 24;  // Pillow computes with float32 sizes: beyond, they are not exact
constexpr int kKeptAxes = 8;

AxisJob x_axis(const ResizeJob& job) {
  return {job.in_w, job.out_w, job.filter, {job.window.x, job.window.w}, job.flip_x};
}

AxisJob y_axis(const ResizeJob& job) {
  return {job.in_h, job.out_h, job.filter, {job.window.y, job.window.h}, job.flip_y};
}

bool valid_axis(const AxisJob& axis) {
  return axis.in > 0 && axis.in <= kLongestSide && axis.out > 0 && axis.out <= kLongestSide &&
         axis.window.first >= 0 && axis.window.count > 0 &&
         axis.window.count <= axis.out - axis.window.first;
}

bool valid(const ResizeJob& job) {
  return valid_axis(x_axis(job)) && valid_axis(y_axis(job)) && job.filter >= Filter::kNearest &&
         static_cast<int>(job.filter) <= kLastFilter;
}

bool changes_size(const ResizeJob& job) { return job.in_w != job.out_w || job.in_h != job.out_h; }

// Pillow 13 compares what the axes lose. Before it, only images over 100 times higher than wide
// were shrunk vertically first, and that by Image.resize itself. torch never does.
bool vertical_first(const ResizeJob& job, const PillowRules& rules) {
  if (is_torchs(job.filter)) return false;
  const int64_t shrink_y = static_cast<int64_t>(job.in_h) - job.out_h;
  const int64_t shrink_x = static_cast<int64_t>(job.in_w) - job.out_w;
  if (shrink_y <= 0) return false;
  return rules.vertical_first_allowed ? shrink_y > 2 * shrink_x
                                      : job.in_h > static_cast<int64_t>(job.in_w) * 100;
}

const ResizeKernels& active_kernels() {
  switch (simd_active()) {
#if defined(__x86_64__)
    case Simd::kAvx512:
      return kAvx512Resize;
    case Simd::kAvx2:
      return kAvx2Resize;
#elif defined(__aarch64__)
    case Simd::kNeon:
      return kNeonResize;
#endif
    default:
      return kScalarResize;
  }
}

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

// The same for both orders of the passes: they read the same pixels.
Rect resize_footprint(const ResizeJob& job, const PillowRules&) {
  if (!valid(job)) return {};
  if (is_opencvs(job.filter) && changes_size(job)) return opencv_footprint(job);
  const Span x = axis_footprint(x_axis(job));
  const Span y = axis_footprint(y_axis(job));
  return {x.first, y.first, x.count, y.count};
}

struct Resizer::State {
  AxisCache x_axes, y_axes;
  PassBuffers buffers;
  OpencvResizer opencv;
};

Resizer::Resizer() : state_(new(std::nothrow) State) {}
Resizer::~Resizer() = default;

Code Resizer::run(const ResizeJob& job, const PillowRules& rules, const Rect& footprint,
                  const ConstImageView& source, const ImageView& out) {
  if (state_ == nullptr) return Code::kOutOfMemory;
  if (!valid(job)) return Code::kInvalidArgument;
  const Rect needed = resize_footprint(job, rules);
  if (footprint.x != needed.x || footprint.y != needed.y || footprint.w != needed.w ||
      footprint.h != needed.h || source.width < needed.w || source.height < needed.h ||
      out.width < job.window.w || out.height < job.window.h) {
    return Code::kInvalidArgument;
  }
  const AxisJob x_job = x_axis(job), y_job = y_axis(job);
  if (!changes_size(job)) {
    copy_rows(job, source, out);
    return Code::kOk;
  }
  if (is_opencvs(job.filter)) return state_->opencv.run(job, footprint, source, out);
  const bool need_x = job.in_w != job.out_w, need_y = job.in_h != job.out_h;
  if (is_nearest(job.filter)) {
    return nearest_rows(job, x_job, y_job, footprint, source, &state_->buffers, out);
  }
  const ResizeKernels& kernels = active_kernels();
  const AxisTaps *x = nullptr, *y = nullptr;
  Code code = Code::kOk;
  if (need_x) code = state_->x_axes.find(x_job, kernels, &x);
  if (need_y && code == Code::kOk) code = state_->y_axes.find(y_job, kernels, &y);
  if (code != Code::kOk) return code;
  Passes passes(kernels, job, source, &state_->buffers, out);
  if (x == nullptr) return passes.vertical(*y);
  if (y != nullptr) {
    return vertical_first(job, rules) ? passes.vertical_then_horizontal(*x, *y)
                                      : passes.horizontal_then_vertical(*x, *y);
  }
  passes.horizontal(*x);
  return Code::kOk;
}

}  // namespace headrace
