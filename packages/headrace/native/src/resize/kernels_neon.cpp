// The resize loops for NEON: pixels widened to 32 bits, multiplied and added.
#include "kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>

namespace headrace {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

void pack(const int32_t* weights, size_t groups, uint8_t* packed) {
  std::memcpy(packed, weights, groups * kTapGroup * sizeof(int32_t));
}

// Sixteen bytes widened to 32 bits, four at a time.
struct Wide {
  explicit Wide(const uint8_t* from) {
    const uint8x16_t bytes = vld1q_u8(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    quarter[0] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low)));
    quarter[1] = vreinterpretq_s32_u32(vmovl_high_u16(low));
    quarter[2] = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high)));
    quarter[3] = vreinterpretq_s32_u32(vmovl_high_u16(high));
  }
  int32x4_t quarter[4];
};

uint8x16_t to_levels(int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
  const int16x8_t ab = vcombine_s16(vqmovn_s32(vshrq_n_s32(a, kWeightBits)),
                                    vqmovn_s32(vshrq_n_s32(b, kWeightBits)));
  const int16x8_t cd = vcombine_s16(vqmovn_s32(vshrq_n_s32(c, kWeightBits)),
                                    vqmovn_s32(vshrq_n_s32(d, kWeightBits)));
  return vcombine_u8(vqmovun_s16(ab), vqmovun_s16(cd));
}

// Output x of one row: a sum per channel.
int32x4_t horizontal_pixel(const uint8_t* in, const AxisTaps& taps, int x) {
  const uint8_t* pixels = in + static_cast<size_t>(taps.first[x]) * 4;
  const auto* weights = reinterpret_cast<const int32_t*>(taps.packed) +
                        static_cast<size_t>(x) * taps.groups * kTapGroup;
  int32x4_t sum = vdupq_n_s32(kHalf);
  for (int g = 0; g < taps.groups; ++g, pixels += 16, weights += kTapGroup) {
    const Wide wide(pixels);
    const int32x4_t w = vld1q_s32(weights);
    sum = vmlaq_laneq_s32(sum, wide.quarter[0], w, 0);
    sum = vmlaq_laneq_s32(sum, wide.quarter[1], w, 1);
    sum = vmlaq_laneq_s32(sum, wide.quarter[2], w, 2);
    sum = vmlaq_laneq_s32(sum, wide.quarter[3], w, 3);
  }
  return sum;
}

void horizontal_row(const uint8_t* in, uint8_t* out, const AxisTaps& taps) {
  int x = 0;
  for (; x + 4 <= taps.outputs; x += 4) {
    vst1q_u8(out + static_cast<size_t>(x) * 4,
             to_levels(horizontal_pixel(in, taps, x), horizontal_pixel(in, taps, x + 1),
                       horizontal_pixel(in, taps, x + 2), horizontal_pixel(in, taps, x + 3)));
  }
  for (; x < taps.outputs; ++x) {
    const int32x4_t sum = horizontal_pixel(in, taps, x);
    uint8_t levels[16];
    vst1q_u8(levels, to_levels(sum, sum, sum, sum));
    std::memcpy(out + static_cast<size_t>(x) * 4, levels, 4);
  }
}

void horizontal(const uint8_t* const in[kRowGroup], uint8_t* const out[kRowGroup],
                const AxisTaps& taps) {
  for (int row = 0; row < kRowGroup; ++row) {
    if (row == 0 || out[row] != out[row - 1]) horizontal_row(in[row], out[row], taps);
  }
}

uint8x16_t vertical_block(const uint8_t* const* rows, const int32_t* weights, int count,
                          size_t offset) {
  int32x4_t sums[4];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(kHalf);
  for (int t = 0; t < count; ++t) {
    const Wide wide(rows[t] + offset);
    for (int i = 0; i < 4; ++i) sums[i] = vmlaq_n_s32(sums[i], wide.quarter[i], weights[t]);
  }
  return to_levels(sums[0], sums[1], sums[2], sums[3]);
}

void vertical(const uint8_t* const* rows, const uint8_t* packed, int count, int width,
              uint8_t* out) {
  const auto* weights = reinterpret_cast<const int32_t*>(packed);
  const size_t size = static_cast<size_t>(width) * 4;
  size_t offset = 0;
  for (; offset + 16 <= size; offset += 16) {
    vst1q_u8(out + offset, vertical_block(rows, weights, count, offset));
  }
  if (offset == size) return;
  uint8_t levels[16];
  vst1q_u8(levels, vertical_block(rows, weights, count, offset));
  std::memcpy(out + offset, levels, size - offset);
}

}  // namespace

const ResizeKernels kNeonResize = {kTapGroup * sizeof(int32_t), pack, horizontal, vertical};

}  // namespace headrace
#endif  // __aarch64__
