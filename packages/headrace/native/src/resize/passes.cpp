#include "passes.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

size_t row_stride(int width) { return (static_cast<size_t>(width) * 4 + 63) / 64 * 64; }

void copy_row(const uint8_t* in, uint8_t* out, int width, bool flip) {
  if (!flip) {
    std::memcpy(out, in, static_cast<size_t>(width) * 4);
    return;
  }
  in += static_cast<size_t>(width) * 4;
  for (int x = 0; x < width; ++x, out += 4) std::memcpy(out, in -= 4, 4);
}

void mirror_row(uint8_t* row, int width) {
  uint8_t* right = row + static_cast<size_t>(width - 1) * 4;
  for (uint8_t* left = row; left < right; left += 4, right -= 4)
    std::swap_ranges(left, left + 4, right);
}

void pick_pixels(const uint8_t* from, const int32_t* columns, int width, uint8_t* to) {
  for (int x = 0; x < width; ++x, to += 4) {
    if (columns[x] < 0) {
      std::memset(to, 0, 4);
    } else {
      std::memcpy(to, from + static_cast<size_t>(columns[x]) * 4, 4);
    }
  }
}

// Rows [first, end) of `source` through the horizontal pass. Row y goes to out_row(y); the last row
// stands in for those that the last group lacks.
template <typename OutRow>
void horizontal_rows(const AxisTaps& x, const ResizeKernels& kernels, const ConstImageView& source,
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
  const uint8_t* packed = y.packed + static_cast<size_t>(output) * y.groups * kernels.group_bytes;
  kernels.vertical(pointers, packed, y.count[output], width, out);
}

const uint8_t** reserve_pointers(Buffer* buffer, const AxisTaps& y) {
  const size_t count = static_cast<size_t>(y.groups) * kTapGroup;
  return reinterpret_cast<const uint8_t**>(buffer->reserve(count * sizeof(uint8_t*)));
}

}  // namespace

void copy_rows(const ResizeJob& job, const ConstImageView& source, const ImageView& out) {
  const int height = job.window.h;
  for (int y = 0; y < height; ++y) {
    copy_row(source.row(job.flip_y ? height - 1 - y : y), out.row(y), job.window.w, job.flip_x);
  }
}

Code nearest_rows(const ResizeJob& job, const AxisJob& x, const AxisJob& y, const Rect& footprint,
                  const ConstImageView& source, PassBuffers* buffers, const ImageView& out) {
  const size_t width = job.window.w, height = job.window.h;
  auto* columns =
      reinterpret_cast<int32_t*>(buffers->positions.reserve((width + height) * sizeof(int32_t)));
  if (columns == nullptr) return Code::kOutOfMemory;
  int32_t* lines = columns + width;
  nearest_positions(x, footprint.x, columns);
  nearest_positions(y, footprint.y, lines);
  for (int row = 0; row < job.window.h; ++row) {
    if (lines[row] < 0) {
      std::memset(out.row(row), 0, width * 4);
    } else {
      pick_pixels(source.row(lines[row]), columns, job.window.w, out.row(row));
    }
  }
  return Code::kOk;
}

void Passes::horizontal(const AxisTaps& x) {
  const int height = job_.window.h;
  horizontal_rows(x, kernels_, source_, 0, height,
                  [&](int row) { return out_.row(job_.flip_y ? height - 1 - row : row); });
}

Code Passes::vertical(const AxisTaps& y) {
  const uint8_t** taps = reserve_pointers(&buffers_->pointers, y);
  if (taps == nullptr) return Code::kOutOfMemory;
  const int width = job_.window.w;
  for (int output = 0; output < y.outputs; ++output) {
    uint8_t* out = out_.row(output);
    vertical_row(y, output, kernels_, taps, width, out, [&](int row) { return source_.row(row); });
    if (job_.flip_x) mirror_row(out, width);
  }
  return Code::kOk;
}

// Each row passes horizontally just before the first output that needs it, into a ring that holds
// one output's reach.
Code Passes::horizontal_then_vertical(const AxisTaps& x, const AxisTaps& y) {
  const size_t stride = row_stride(x.outputs);
  const int ring = std::min(y.reach + 2 * kRowGroup, y.extent);
  const uint8_t** taps = reserve_pointers(&buffers_->pointers, y);
  uint8_t* kept = buffers_->rows.reserve(stride * ring);
  if (taps == nullptr || kept == nullptr) return Code::kOutOfMemory;
  const auto ring_row = [&](int row) { return kept + (row % ring) * stride; };
  int done = 0;
  for (int i = 0; i < y.outputs; ++i) {
    const int output = job_.flip_y ? y.outputs - 1 - i : i;
    while (done < y.first[output] + y.count[output]) {
      const int end = std::min(done + kRowGroup, y.extent);
      horizontal_rows(x, kernels_, source_, done, end, ring_row);
      done = end;
    }
    vertical_row(y, output, kernels_, taps, x.outputs, out_.row(output), ring_row);
  }
  return Code::kOk;
}

Code Passes::vertical_then_horizontal(const AxisTaps& x, const AxisTaps& y) {
  const size_t stride = row_stride(x.extent);
  const uint8_t** taps = reserve_pointers(&buffers_->pointers, y);
  uint8_t* kept = buffers_->rows.reserve(stride * kRowGroup);
  if (taps == nullptr || kept == nullptr) return Code::kOutOfMemory;
  const ImageView group{kept, stride, x.extent, kRowGroup};
  for (int start = 0; start < y.outputs; start += kRowGroup) {
    const int count = std::min(kRowGroup, y.outputs - start);
    for (int i = 0; i < count; ++i) {
      vertical_row(y, start + i, kernels_, taps, x.extent, group.row(i),
                   [&](int row) { return source_.row(row); });
    }
    horizontal_rows(x, kernels_, group, 0, count, [&](int i) { return out_.row(start + i); });
  }
  return Code::kOk;
}

}  // namespace headrace
