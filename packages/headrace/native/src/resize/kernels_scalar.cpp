// The plain form of the resize loops: the reference for the others.
#include <cstring>

#include "kernels.h"

namespace headrace {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t to_level(int32_t sum) {
  const int32_t level = sum >> kWeightBits;
  return static_cast<uint8_t>(level < 0 ? 0 : level > 255 ? 255 : level);
}

void pack(const int32_t* weights, size_t groups, uint8_t* packed) {
  std::memcpy(packed, weights, groups * kTapGroup * sizeof(int32_t));
}

void horizontal_row(const uint8_t* in, uint8_t* out, const AxisTaps& taps) {
  const auto* weights = reinterpret_cast<const int32_t*>(taps.packed);
  for (int x = 0; x < taps.outputs; ++x) {
    const uint8_t* pixel = in + static_cast<size_t>(taps.first[x]) * 4;
    int32_t r = kHalf, g = kHalf, b = kHalf;
    for (int t = 0; t < taps.count[x]; ++t, pixel += 4) {
      r += weights[t] * pixel[0];
      g += weights[t] * pixel[1];
      b += weights[t] * pixel[2];
    }
    out[0] = to_level(r);
    out[1] = to_level(g);
    out[2] = to_level(b);
    out[3] = 0;
    out += 4;
    weights += taps.groups * kTapGroup;
  }
}

void horizontal(const uint8_t* const in[kRowGroup], uint8_t* const out[kRowGroup],
                const AxisTaps& taps) {
  for (int row = 0; row < kRowGroup; ++row) {
    if (row == 0 || out[row] != out[row - 1]) horizontal_row(in[row], out[row], taps);
  }
}

void vertical(const uint8_t* const* rows, const uint8_t* packed, int count, int width,
              uint8_t* out) {
  constexpr int kBlock = 64;  // bytes whose sums stay in cache while the taps go by
  const auto* weights = reinterpret_cast<const int32_t*>(packed);
  for (int start = 0; start < width * 4; start += kBlock) {
    const int size = width * 4 - start < kBlock ? width * 4 - start : kBlock;
    int32_t sums[kBlock];
    for (int i = 0; i < size; ++i) sums[i] = kHalf;
    for (int t = 0; t < count; ++t) {
      const uint8_t* row = rows[t] + start;
      for (int i = 0; i < size; ++i) sums[i] += weights[t] * row[i];
    }
    for (int i = 0; i < size; ++i) out[start + i] = to_level(sums[i]);
  }
}

}  // namespace

const ResizeKernels kScalarResize = {kTapGroup * sizeof(int32_t), pack, horizontal, vertical};

}  // namespace headrace
