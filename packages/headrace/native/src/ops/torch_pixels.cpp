// What torchvision makes of uint8 tensors, in the arithmetic of torch's CPU kernels.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

// Integers up to this are exact in float32, however they are added up.
constexpr uint64_t kExact = uint64_t{1} << 24;
// torch adds in 16 chains or more. In an image of this many pixels no chain exceeds kExact, so that
// only the additions that join chains and threads round: fewer than kJoined.
constexpr int64_t kMostSummed = int64_t{1} << 20;
constexpr double kJoined = 64;

TorchBlend blend_by(double factor, bool v2) {
  const double bounded = std::clamp(factor, -1e6, 1e6);  // all is clipped beyond
  return {static_cast<float>(bounded), static_cast<float>(1.0 - bounded), v2};
}

float blended(float value, float other, const TorchBlend& blend) {
  const float scaled = value * blend.factor;
  return blend.v2 ? std::fma(other, blend.rest, scaled) : scaled + other * blend.rest;
}

uint8_t clipped(float value) {
  return static_cast<uint8_t>(std::min(std::max(value, 0.0f), 255.0f));
}

// How far torch's sum of integers may be from theirs, which is `sum`.
double rounding_of(uint64_t sum) {
  if (sum <= kExact) return 0;
  int exponent;
  std::frexp(static_cast<double>(sum), &exponent);
  return kJoined * std::ldexp(1.0, exponent - 25);
}

void copy_clipped(const uint8_t* from, const uint8_t levels[256], uint8_t* to) {
  for (int c = 0; c < 3; ++c) to[c] = levels[from[c]];
}

}  // namespace

Code LevelTable::append_torch_contrast(const ImageView& image, double factor, bool v2) {
  const int64_t count = int64_t{image.width} * image.height;
  if (count > kMostSummed) return Code::kUnsupported;
  uint64_t sum = 0;
  for (int y = 0; y < image.height; ++y)
    sum += active_loops().torch_sum_luma(image.row(y), image.width, v2);
  const double exact = static_cast<double>(sum), error = rounding_of(sum);
  const float low = static_cast<float>(exact - error) / static_cast<float>(count);
  const float high = static_cast<float>(exact + error) / static_cast<float>(count);
  const TorchBlend blend = blend_by(factor, v2);
  // torch does not fuse the values at an image's end that fill no vector.
  const TorchBlend unfused{blend.factor, blend.rest, false};
  for (auto& channel : level) {
    for (uint8_t& each : channel) {
      const auto value = static_cast<float>(each);
      each = clipped(blended(value, low, blend));
      for (const float mean : {low, high})
        for (const TorchBlend& rounding : {blend, unfused})
          if (each != clipped(blended(value, mean, rounding))) return Code::kUnsupported;
    }
  }
  return Code::kOk;
}

void torch_grayscale(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) active_loops().torch_luma(image.row(y), image.width);
}

void torch_saturation(const ImageView& image, double factor, bool v2) {
  const TorchBlend blend = blend_by(factor, v2);
  for (int y = 0; y < image.height; ++y)
    active_loops().torch_blend_luma(image.row(y), image.width, blend);
}

const ColourArithmetic kTorchColour = {
    [](const ImageView& image, double factor) {
      LevelTable table;
      const Code code = table.append_torch_contrast(image, factor, true);
      if (code == Code::kOk) look_up(image, table);
      return code;
    },
    [](const ImageView& image, double factor) { torch_saturation(image, factor, true); },
    [](const ImageView& image, double factor) {
      const auto shift = static_cast<float>(factor);
      for (int y = 0; y < image.height; ++y)
        active_loops().torch_shift_hue(image.row(y), image.width, shift);
    }};

void torch_sharpness(const ImageView& source, double factor, bool v2, const ImageView& out) {
  const int last_x = source.width - 1, last_y = source.height - 1;
  const TorchBlend blend = blend_by(factor, v2);
  uint8_t edge[256];  // v1 blends the pixels at the edges with themselves
  for (int level = 0; level < 256; ++level) {
    const auto value = static_cast<float>(level);
    edge[level] = v2 ? static_cast<uint8_t>(level) : clipped(blended(value, value, blend));
  }
  const bool blends = last_x >= 2 && last_y >= 2;
  for (int y = 0; y <= last_y; ++y) {
    const uint8_t* row = source.row(y);
    uint8_t* to = out.row(y);
    std::memcpy(to, row, size_t{4} * source.width);
    if (!blends) continue;
    if (y == 0 || y == last_y) {
      for (int x = 0; x <= last_x; ++x) copy_clipped(row + 4 * x, edge, to + 4 * x);
      continue;
    }
    active_loops().torch_sharpen(source.row(y - 1), row, source.row(y + 1), source.width, blend,
                                 to);
    for (const int x : {0, last_x}) copy_clipped(row + 4 * x, edge, to + 4 * x);
  }
}

void torch_affine(const ImageView& source, const TorchWarp& warp, const ImageView& out) {
  GridRow row = {};
  const int edges[2] = {source.width, source.height};
  for (int axis = 0; axis < 2; ++axis) {
    for (int k = 0; k < 3; ++k)
      row.theta[axis][k] =
          static_cast<float>(warp.map.m[3 * axis + k]) / static_cast<float>(0.5 * edges[axis]);
    row.half[axis] = static_cast<float>(edges[axis]) / 2;
  }
  row.first = 0.5f * static_cast<float>(1 - out.width);
  row.fill = warp.fill;
  row.v2 = warp.v2;
  row.fused = warp.fused;
  const auto sample =
      warp.filter == Filter::kNearest ? active_loops().grid_nearest : active_loops().grid_bilinear;
  for (int y = 0; y < out.height; ++y) {
    row.y = 0.5f * static_cast<float>(1 - out.height) + static_cast<float>(y);
    sample(source, row, out.width, reinterpret_cast<uint32_t*>(out.row(y)));
  }
}

void mix(const ImageView* images, const float* weights, int count, const ImageView& out) {
  const uint8_t* rows[kMostMixed];
  for (int y = 0; y < out.height; ++y) {
    for (int i = 0; i < count; ++i) rows[i] = images[i].row(y);
    active_loops().mix_rows(rows, weights, count, out.width, out.row(y));
  }
}

}  // namespace headrace::ops
