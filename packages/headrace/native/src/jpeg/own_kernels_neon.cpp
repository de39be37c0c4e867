// The kernels for AArch64: one block, or 16 pixels, at a time.
#include "own_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>

#include "own_idct.h"
#include "own_row.h"

namespace headrace::jpeg::own {
namespace {

// How 32-bit sums become 16 bits, as in inverse_dct_block().
struct Pass1 {
  static int16x4_t add(int32x4_t a, int32x4_t b) { return vrshrn_n_s32(vaddq_s32(a, b), kShift1); }
  static int16x4_t sub(int32x4_t a, int32x4_t b) { return vrshrn_n_s32(vsubq_s32(a, b), kShift1); }
};
struct Pass2 {  // their upper halves: the rest of the shift is done where levels become bytes
  static int16x4_t add(int32x4_t a, int32x4_t b) { return vaddhn_s32(a, b); }
  static int16x4_t sub(int32x4_t a, int32x4_t b) { return vsubhn_s32(a, b); }
};

// Four columns of one pass, in the arithmetic of inverse_dct_block().
template <typename Pass>
inline void transform4(const int16x4_t r[8], int16x4_t sum04, int16x4_t difference04, int16x4_t z3,
                       int16x4_t z4, int16x4_t out[8]) {
  const int32x4_t even2 = vmlal_n_s16(vmull_n_s16(r[2], kF0541), r[6], kF0541 - kF1847);
  const int32x4_t even3 = vmlal_n_s16(vmull_n_s16(r[2], kF0541 + kF0765), r[6], kF0541);
  const int32x4_t sum = vshll_n_s16(sum04, 13);
  const int32x4_t difference = vshll_n_s16(difference04, 13);
  const int32x4_t y3 = vmlal_n_s16(vmull_n_s16(z3, kF1175 - kF1961), z4, kF1175);
  const int32x4_t y4 = vmlal_n_s16(vmull_n_s16(z3, kF1175), z4, kF1175 - kF0390);
  const int32x4_t t[4] = {vaddq_s32(sum, even3), vaddq_s32(difference, even2),
                          vsubq_s32(difference, even2), vsubq_s32(sum, even3)};
  const int32x4_t odd[4] = {
      vmlal_n_s16(vmlal_n_s16(y4, r[7], -kF0899), r[1], kF1501 - kF0899),
      vmlal_n_s16(vmlal_n_s16(y3, r[5], -kF2562), r[3], kF3072 - kF2562),
      vmlal_n_s16(vmlal_n_s16(y4, r[5], kF2053 - kF2562), r[3], -kF2562),
      vmlal_n_s16(vmlal_n_s16(y3, r[7], kF0298 - kF0899), r[1], -kF0899),
  };
  for (int i = 0; i < 4; ++i) {
    out[i] = Pass::add(t[i], odd[i]);
    out[7 - i] = Pass::sub(t[i], odd[i]);
  }
}

template <typename Pass>
inline void transform(int16x8_t r[8]) {
  const int16x8_t sum = vaddq_s16(r[0], r[4]), difference = vsubq_s16(r[0], r[4]);
  const int16x8_t z3 = vaddq_s16(r[7], r[3]), z4 = vaddq_s16(r[5], r[1]);
  int16x4_t lo[8], hi[8], out_lo[8], out_hi[8];
  for (int i = 0; i < 8; ++i) {
    lo[i] = vget_low_s16(r[i]);
    hi[i] = vget_high_s16(r[i]);
  }
  transform4<Pass>(lo, vget_low_s16(sum), vget_low_s16(difference), vget_low_s16(z3),
                   vget_low_s16(z4), out_lo);
  transform4<Pass>(hi, vget_high_s16(sum), vget_high_s16(difference), vget_high_s16(z3),
                   vget_high_s16(z4), out_hi);
  for (int i = 0; i < 8; ++i) r[i] = vcombine_s16(out_lo[i], out_hi[i]);
}

inline int16x8_t zip_low64(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s16_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
inline int16x8_t zip_high64(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s16_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

inline void transpose(int16x8_t r[8]) {
  int32x4_t a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = vreinterpretq_s32_s16(vtrn1q_s16(r[i], r[i + 1]));
    a[i + 1] = vreinterpretq_s32_s16(vtrn2q_s16(r[i], r[i + 1]));
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      b[i + j] = vtrn1q_s32(a[i + j], a[i + j + 2]);
      b[i + j + 2] = vtrn2q_s32(a[i + j], a[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = zip_low64(b[i], b[i + 4]);
    r[i + 4] = zip_high64(b[i], b[i + 4]);
  }
}

void transform_one(const int16_t* block, const BlockTarget& target) {
  int16x8_t r[8];
  for (int i = 0; i < 8; ++i)
    r[i] = vmulq_s16(vld1q_s16(block + 8 * i), vld1q_s16(target.quantiser + 8 * i));
  transform<Pass1>(r);
  transpose(r);
  transform<Pass2>(r);
  transpose(r);
  for (int y = 0; y < 8; ++y) {
    const uint8x8_t levels = vreinterpret_u8_s8(vqrshrn_n_s16(r[y], kShift2 - 16));
    vst1_u8(target.samples + static_cast<size_t>(y) * target.stride,
            veor_u8(levels, vdup_n_u8(128)));
  }
}

void inverse_dct(Block* blocks, const uint8_t* extents, const BlockTarget* targets, int count) {
  for (int i = 0; i < count; ++i) {
    const BlockTarget& target = targets[i];
    int16_t* block = blocks[i].coefficient;
    if (extents[i] == 1) {
      const uint8x8_t level = vdup_n_u8(flat_level(block[0], target.quantiser[0]));
      for (size_t y = 0; y < 8; ++y) vst1_u8(target.samples + y * target.stride, level);
      block[0] = 0;
    } else {
      transform_one(block, target);
      std::memset(block, 0, sizeof(Block));
    }
  }
}

constexpr int kStep = 16;  // pixels

struct Colour {
  uint8x8_t red, green, blue;
};

inline int16x8_t centred(uint8x8_t chroma) {
  return vreinterpretq_s16_u16(vsubl_u8(chroma, vdup_n_u8(128)));
}

inline uint8x8_t add_clamped(int16x8_t chroma, uint8x8_t luma) {
  return vqmovun_s16(vaddq_s16(chroma, vreinterpretq_s16_u16(vmovl_u8(luma))));
}

// The factors are those of libjpeg's tables less whole multiples of the input, so that they fit 16
// bits; rounding is the same for every input.
inline Colour convert(uint8x8_t luma, uint8x8_t cb8, uint8x8_t cr8) {
  const int16x8_t cb = centred(cb8), cr = centred(cr8);
  const int16x8_t red = vaddq_s16(cr, vqrdmulhq_n_s16(cr, 13173));
  const int16x8_t blue = vaddq_s16(vaddq_s16(cb, cb), vqrdmulhq_n_s16(cb, -7471));
  const int32x4_t lo = vmlal_n_s16(vmull_n_s16(vget_low_s16(cb), -11277), vget_low_s16(cr), 9367);
  const int32x4_t hi = vmlal_n_s16(vmull_n_s16(vget_high_s16(cb), -11277), vget_high_s16(cr), 9367);
  const int16x8_t green = vsubq_s16(vcombine_s16(vrshrn_n_s32(lo, 15), vrshrn_n_s32(hi, 15)), cr);
  return {add_clamped(red, luma), add_clamped(green, luma), add_clamped(blue, luma)};
}

inline void put16(const uint8_t* luma, uint8x16_t cb, uint8x16_t cr, uint8_t* rgbx) {
  const uint8x16_t y = vld1q_u8(luma);
  const Colour left = convert(vget_low_u8(y), vget_low_u8(cb), vget_low_u8(cr));
  const Colour right = convert(vget_high_u8(y), vget_high_u8(cb), vget_high_u8(cr));
  const uint8x16x4_t pixels = {{vcombine_u8(left.red, right.red),
                                vcombine_u8(left.green, right.green),
                                vcombine_u8(left.blue, right.blue), vdupq_n_u8(255)}};
  vst4q_u8(rgbx, pixels);
}

// Left and right pixels of eight samples, in turn.
inline uint8x16_t weave(uint8x8_t even, uint8x8_t odd) {
  return vcombine_u8(vzip1_u8(even, odd), vzip2_u8(even, odd));
}

inline uint8x16_t across(const uint8_t* at) {
  const uint16x8_t thrice = vmull_u8(vld1_u8(at), vdup_n_u8(3));
  const uint16x8_t left = vaddw_u8(vaddq_u16(thrice, vdupq_n_u16(1)), vld1_u8(at - 1));
  const uint16x8_t right = vaddw_u8(vaddq_u16(thrice, vdupq_n_u16(2)), vld1_u8(at + 1));
  return weave(vshrn_n_u16(left, 2), vshrn_n_u16(right, 2));
}

inline uint16x8_t down(const uint8_t* near, const uint8_t* far) {
  return vaddw_u8(vmull_u8(vld1_u8(near), vdup_n_u8(3)), vld1_u8(far));
}

inline uint8x16_t across_and_down(const uint8_t* near, const uint8_t* far) {
  const uint16x8_t thrice = vmulq_n_u16(down(near, far), 3);
  const uint16x8_t left = vaddq_u16(vaddq_u16(thrice, vdupq_n_u16(8)), down(near - 1, far - 1));
  const uint16x8_t right = vaddq_u16(vaddq_u16(thrice, vdupq_n_u16(7)), down(near + 1, far + 1));
  return weave(vshrn_n_u16(left, 4), vshrn_n_u16(right, 4));
}

// 16 pixels from the even position x on.
inline void step_gray(const RowSamples& in, int x, uint8_t* rgbx) {
  const uint8x16_t y = vld1q_u8(in.luma + x);
  const uint8x16x4_t pixels = {{y, y, y, vdupq_n_u8(255)}};
  vst4q_u8(rgbx, pixels);
}
inline void step_full(const RowSamples& in, int x, uint8_t* rgbx) {
  put16(in.luma + x, vld1q_u8(in.cb + x), vld1q_u8(in.cr + x), rgbx);
}
inline void step_h2v1(const RowSamples& in, int x, uint8_t* rgbx) {
  const int at = x >> 1;
  put16(in.luma + x, across(in.cb + at), across(in.cr + at), rgbx);
}
inline void step_h2v2(const RowSamples& in, int x, uint8_t* rgbx) {
  const int at = x >> 1;
  put16(in.luma + x, across_and_down(in.cb + at, in.cb_far + at),
        across_and_down(in.cr + at, in.cr_far + at), rgbx);
}

}  // namespace

const PixelKernels kNeonPixels = {
    inverse_dct,
    row<kStep, step_gray, &PixelKernels::gray>,
    row<kStep, step_full, &PixelKernels::full>,
    row<kStep, step_h2v1, &PixelKernels::h2v1>,
    row<kStep, step_h2v2, &PixelKernels::h2v2>,
};

}  // namespace headrace::jpeg::own
#endif  // __aarch64__
