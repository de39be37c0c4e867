// The own crop decoder: baseline JPEG, only the MCUs that a rectangle needs, bit for bit what
// libjpeg-turbo gives.
#include <algorithm>
#include <cstring>

#include "../cpu.h"
#include "decoder.h"
#include "own_frame.h"
#include "own_kernels.h"
#include "own_scan.h"

namespace headrace::jpeg {
namespace own {
namespace {

const PixelKernels& pixel_kernels() {
#if defined(__x86_64__)
  if (simd_active() != Simd::kScalar) return kAvx2Pixels;
#endif
  return kScalarPixels;
}

const EntropyKernels& entropy_kernels() {
#if defined(__x86_64__)
  if (simd_active() != Simd::kScalar) return kBmi2Entropy;
#endif
  return kPlainEntropy;
}

// The MCUs that a rectangle needs: [left, right) × [top, bottom).
struct Window {
  int left, right, top, bottom;
};

// One pixel beyond the rectangle, as interpolated chroma looks at the next sample.
Window window_of(const Rect& rect, const Frame& frame, const Header& header) {
  const int dx = frame.halves_columns() ? 1 : 0;
  const int dy = frame.halves_rows() ? 1 : 0;
  const int w = 8 * frame.h, h = 8 * frame.v;
  return {std::max(rect.x - dx, 0) / w, (std::min(rect.x + rect.w + dx, header.width) - 1) / w + 1,
          std::max(rect.y - dy, 0) / h,
          (std::min(rect.y + rect.h + dy, header.height) - 1) / h + 1};
}

// The last few rows of MCUs of one component's samples, within the window's columns.
class Plane {
 public:
  static constexpr int kMcuRows = 4;  // a power of two: two under way, one before, one spare
  static constexpr size_t kMargin = 64;

  bool reshape(int width, int rows_per_mcu) {
    stride_ = (static_cast<size_t>(width) + 2 * kMargin + 63) / 64 * 64;
    mask_ = kMcuRows * rows_per_mcu - 1;
    memory_ = buffer_.reserve(stride_ * static_cast<size_t>(mask_ + 1));
    return memory_ != nullptr;
  }
  // Row y of the whole component; sample 0 is the window's first.
  uint8_t* row(int y) const {
    return memory_ + kMargin + static_cast<size_t>(y & mask_) * stride_;
  }
  size_t stride() const { return stride_; }

 private:
  Buffer buffer_;
  uint8_t* memory_ = nullptr;
  size_t stride_ = 0;
  int mask_ = 0;
};

}  // namespace
}  // namespace own
}  // namespace headrace::jpeg
