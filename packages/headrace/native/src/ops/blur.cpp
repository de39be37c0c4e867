// Blurs: torchvision's, which is torch's convolution, and Pillow's, which repeats a box.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

// Half of the distance between floats around `value`: what one rounding is off by at most.
float half_step(float value) {
  int exponent;
  std::frexp(value, &exponent);
  return std::ldexp(1.0f, exponent - 25);
}

// Taps at either end of a kernel whose weights are too small to matter within the tolerance below.
int negligible_taps(const float* kernel, int size) {
  int taps = 0;
  while (taps < size / 2 && std::max(kernel[taps], kernel[size - 1 - taps]) < 1e-9f) ++taps;
  return taps;
}

// How far the chain of float32 additions may be from the true sum, and the separable sum too, for
// any image. A level counts 255 at most; an addition errs by half a step, or by what it adds.
float tolerance_of(const float* products, int size_x, int size_y) {
  float sum = 0.0f, error = 0.0f;
  for (int i = 0; i < size_x * size_y; ++i) {
    const float term = 255.0f * products[i];
    sum += term;
    error += std::min(half_step(sum), term);
  }
  // Separable: up to three roundings for each pair of taps on each axis. The weights' own errors:
  // each of the products is rounded, the two halves of a kernel may differ in their last bits, and
  // negligible taps are left out.
  const int taps = size_x / 2 + size_y / 2 + 2;  // of the two halves
  const auto roundings = static_cast<float>(3 * taps);
  return error * 1.01f + roundings * half_step(255.0f) + 1e-4f;
}

// padded[i] is the index in [0, size) that a reflection about the edge pixels shows at i - reach.
void reflect(int size, int reach, int* padded) {
  for (int i = 0; i < size + 2 * reach; ++i) {
    const int at = std::abs(i - reach);
    padded[i] = at < size ? at : 2 * (size - 1) - at;
  }
}

// A row of pixels as floats, `reach` more of them on each side, where `columns` says.
void pad_row(const uint8_t* row, int width, int reach, const int* columns, float* padded) {
  for (int i = 0; i < 4 * width; ++i) padded[4 * reach + i] = row[i];
  for (int i = 0; i < reach; ++i) {
    for (const int x : {i, reach + width + i}) {
      for (int c = 0; c < 4; ++c) padded[4 * x + c] = row[4 * columns[x] + c];
    }
  }
}

// Pillow's approximation of a Gaussian: the radius of a box that is applied `passes` times.
float box_radius(float radius, int passes) {
  const float variance = radius * radius / static_cast<float>(passes);
  const auto length = static_cast<float>(std::sqrt(12.0 * static_cast<double>(variance) + 1.0));
  const auto whole = static_cast<float>(std::floor((static_cast<double>(length) - 1.0) / 2.0));
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  return whole + part;
}

// One box blur along the columns.
void blur_columns(const ImageView& in, float float_radius, uint32_t* sums, const ImageView& out) {
  const int radius = static_cast<int>(float_radius), bytes = 4 * in.width, last = in.height - 1;
  const auto weight = static_cast<uint32_t>(16777216.0f / (float_radius * 2 + 1));
  const uint32_t edge_weight = ((1u << 24) - (static_cast<uint32_t>(radius) * 2 + 1) * weight) / 2;
  // The window around row -1, whose outer rows repeat the edges.
  const int inner = std::min(radius, in.height);
  for (int i = 0; i < bytes; ++i) {
    sums[i] = in.row(0)[i] * static_cast<uint32_t>(radius + 1) +
              in.row(last)[i] * static_cast<uint32_t>(radius - inner);
  }
  for (int y = 0; y < inner; ++y) {
    for (int i = 0; i < bytes; ++i) sums[i] += in.row(y)[i];
  }
  for (int y = 0; y <= last; ++y) {
    active_loops().box_row(
        sums, in.row(std::max(y - radius - 1, 0)),
        in.row(static_cast<int>(std::min<int64_t>(int64_t{y} + radius, last))),
        in.row(static_cast<int>(std::min<int64_t>(int64_t{y} + radius + 1, last))), bytes, weight,
        edge_weight, out.row(y));
  }
}

}  // namespace

// The memory of a blur: `size_y` rows of each kind in a ring, by the row of the source, and the
// rows that one output row covers.
struct Blur::Rings {
  size_t padded_row, convolved_row;  // floats; rows have room for one vector more
  float* padded;
  float* convolved;
  float* products;
  const float** padded_rows;
  const float** convolved_rows;
  int* columns;
  int* rows;
};

bool Blur::reserve(const ImageView& source, int size_x, int size_y, Rings* rings) {
  const size_t x = static_cast<size_t>(size_x), y = static_cast<size_t>(size_y);
  const size_t padded_width = static_cast<size_t>(source.width) + x - 1;
  const size_t padded_height = static_cast<size_t>(source.height) + y - 1;
  rings->padded_row = 4 * padded_width + 16;
  rings->convolved_row = 4 * static_cast<size_t>(source.width) + 16;
  const size_t floats = y * (rings->padded_row + rings->convolved_row) + x * y;
  uint8_t* memory = rows_.reserve(2 * y * sizeof(float*) + floats * sizeof(float) +
                                  (padded_width + padded_height) * sizeof(int));
  if (memory == nullptr) return false;
  rings->padded_rows = reinterpret_cast<const float**>(memory);
  rings->convolved_rows = rings->padded_rows + y;
  rings->padded = reinterpret_cast<float*>(rings->convolved_rows + y);
  rings->convolved = rings->padded + y * rings->padded_row;
  rings->products = rings->convolved + y * rings->convolved_row;
  rings->columns = reinterpret_cast<int*>(rings->products + x * y);
  rings->rows = rings->columns + padded_width;
  return true;
}

Code Blur::gaussian(const ImageView& source, const float* kernel_x, int size_x,
                    const float* kernel_y, int size_y, const ImageView& out) {
  const int reach_x = size_x / 2, reach_y = size_y / 2;
  if (reach_x >= source.width || reach_y >= source.height) return Code::kUnsupported;
  Rings rings;
  if (!reserve(source, size_x, size_y, &rings)) return Code::kOutOfMemory;
  for (int i = 0; i < size_y; ++i) {
    for (int j = 0; j < size_x; ++j) rings.products[i * size_x + j] = kernel_y[i] * kernel_x[j];
  }
  reflect(source.width, reach_x, rings.columns);
  reflect(source.height, reach_y, rings.rows);
  const int skipped_x = negligible_taps(kernel_x, size_x);
  const GaussianRow job = {rings.padded_rows,
                           rings.convolved_rows,
                           kernel_y,
                           rings.products,
                           size_x,
                           size_y,
                           negligible_taps(kernel_y, size_y),
                           tolerance_of(rings.products, size_x, size_y)};
  // Source rows come in their order; those that a reflection shows stay in the ring long enough.
  int done = 0;
  for (int y = 0; y < source.height; ++y) {
    for (; done <= std::min(y + reach_y, source.height - 1); ++done) {
      float* padded = rings.padded + static_cast<size_t>(done % size_y) * rings.padded_row;
      pad_row(source.row(done), source.width, reach_x, rings.columns, padded);
      active_loops().convolve_row(
          padded + 4 * skipped_x, kernel_x + skipped_x, size_x - 2 * skipped_x, source.width,
          rings.convolved + static_cast<size_t>(done % size_y) * rings.convolved_row);
    }
    for (int i = 0; i < size_y; ++i) {
      const auto place = static_cast<size_t>(rings.rows[y + i] % size_y);
      rings.padded_rows[i] = rings.padded + place * rings.padded_row;
      rings.convolved_rows[i] = rings.convolved + place * rings.convolved_row;
    }
    active_loops().gaussian_row(job, source.width, out.row(y));
  }
  return Code::kOk;
}

Code Blur::repeated_box(const ImageView& source, float radius_x, float radius_y, int passes,
                        const ImageView& out) {
  const int longest = std::max(source.width, source.height);
  auto* sums = reinterpret_cast<uint32_t*>(rows_.reserve(size_t{16} * longest));
  if (sums == nullptr) return Code::kOutOfMemory;
  // A row's blur is a column's in the turned image. Rows first, as Pillow does.
  ImageView upright = source;
  if (radius_x != 0) {
    ImageView from = turned_[0].reshape(source.height, source.width);
    ImageView to = turned_[1].reshape(source.height, source.width);
    if (from.data == nullptr || to.data == nullptr) return Code::kOutOfMemory;
    turn(source, 1, from);
    for (int i = 0; i < passes; ++i, std::swap(from, to)) blur_columns(from, radius_x, sums, to);
    turn(from, 3, out);
    upright = out;
  }
  if (radius_y != 0) {
    ImageView to = turned_[0].reshape(source.width, source.height);
    ImageView other = turned_[1].reshape(source.width, source.height);
    if (to.data == nullptr || other.data == nullptr) return Code::kOutOfMemory;
    for (int i = 0; i < passes; ++i, std::swap(to, other)) {
      blur_columns(upright, radius_y, sums, to);
      upright = to;
    }
  }
  if (upright.data != out.data) turn(upright, 0, out);
  return Code::kOk;
}

Code Blur::pillow_gaussian(const ImageView& source, double radius_x, double radius_y,
                           const ImageView& out) {
  constexpr int kPasses = 3;
  return repeated_box(source, box_radius(static_cast<float>(radius_x), kPasses),
                      box_radius(static_cast<float>(radius_y), kPasses), kPasses, out);
}

template <typename Value, typename Scratch, typename Row, typename Column>
Code Blur::filter(const ImageView& source, int size_x, int size_y, const Row& row,
                  const Column& column, const ImageView& out) {
  constexpr size_t kVector = 16;  // values that may be written past a row
  const int width = source.width, height = source.height, reach = size_x / 2;
  const size_t values = size_t{4} * static_cast<size_t>(width);
  const size_t padded_size = values + size_t{8} * static_cast<size_t>(reach);
  const auto ring = static_cast<size_t>(size_y);
  uint8_t* memory =
      rows_.reserve((padded_size + kVector) * sizeof(Scratch) + ring * sizeof(Value*) +
                    ring * (values + kVector) * sizeof(Value) + padded_size);
  if (memory == nullptr) return Code::kOutOfMemory;
  auto* const scratch = reinterpret_cast<Scratch*>(memory);
  auto* const rows = reinterpret_cast<const Value**>(scratch + padded_size + kVector);
  auto* const kept = reinterpret_cast<Value*>(rows + ring);
  uint8_t* const padded = reinterpret_cast<uint8_t*>(kept + ring * (values + kVector));
  const auto at = [&](int y) { return kept + static_cast<size_t>(y) % ring * (values + kVector); };
  int done = 0;
  for (int y = 0; y < height; ++y) {
    for (; done <= std::min(y + size_y / 2, height - 1); ++done) {
      const auto* from = reinterpret_cast<const uint32_t*>(source.row(done));
      auto* to = reinterpret_cast<uint32_t*>(padded);
      std::memcpy(to + reach, from, values);
      for (int i = 1; i <= reach; ++i) {
        to[reach - i] = from[padded_index(-i, width, PaddingMode::kReflect)];
        to[reach + width - 1 + i] = from[padded_index(width - 1 + i, width, PaddingMode::kReflect)];
      }
      row(padded, scratch, at(done));
    }
    for (int k = 0; k < size_y; ++k)
      rows[k] = at(padded_index(y - size_y / 2 + k, height, PaddingMode::kReflect));
    column(rows, scratch, out.row(y));
  }
  return Code::kOk;
}

Code Blur::opencv(const ImageView& source, const uint16_t* weights_x, int size_x,
                  const uint16_t* weights_y, int size_y, const ImageView& out) {
  const Loops& loops = active_loops();
  return filter<uint16_t, uint32_t>(
      source, size_x, size_y,
      [&](const uint8_t* padded, uint32_t*, uint16_t* kept) {
        loops.opencv_blur_row(padded, weights_x, size_x, source.width, kept);
      },
      [&](const uint16_t* const* rows, uint32_t* sums, uint8_t* to) {
        loops.opencv_blur_column(rows, weights_y, size_y, source.width, sums, to);
      },
      out);
}

Code Blur::opencv_filter(const ImageView& source, const OpencvFilter& x, const OpencvFilter& y,
                         const ImageView& out) {
  const Loops& loops = active_loops();
  return filter<float, float>(
      source, x.size, y.size,
      [&](const uint8_t* padded, float* levels, float* kept) {
        loops.opencv_filter_row(padded, x, source.width, levels, kept);
      },
      [&](const float* const* rows, float*, uint8_t* to) {
        loops.opencv_filter_column(rows, y, source.width, to);
      },
      out);
}

}  // namespace headrace::ops
