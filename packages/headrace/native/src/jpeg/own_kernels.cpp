#include "own_kernels.h"

#include <cstring>

#include "own_idct.h"

namespace headrace::jpeg::own {
namespace {

// libjpeg's accurate integer inverse DCT, in the arithmetic of libjpeg-turbo's vector code for this
// architecture, which is what decodes everywhere: 16-bit inputs that wrap, 32-bit sums that wrap.
// Within the range of real coefficients that is the same as its C code; beyond it, architectures
// differ in how sums become 16 bits.

int16_t wrap(int32_t x) { return static_cast<int16_t>(x); }

uint32_t product(int16_t a, int32_t factor) { return static_cast<uint32_t>(a * factor); }

uint8_t level(int32_t x) {
  return static_cast<uint8_t>((x < -128 ? -128 : x > 127 ? 127 : x) + 128);
}

#if defined(__aarch64__)
// The sums lose what is above 16 bits between the passes, and what is below before they are
// rounded.
int16_t after_pass1(uint32_t sum) {
  return wrap(static_cast<int32_t>(sum + (1U << (kShift1 - 1))) >> kShift1);
}
int16_t after_pass2(uint32_t sum) {
  constexpr int kShift = kShift2 - 16;
  const int32_t upper = wrap(static_cast<int32_t>(sum) >> 16);
  return wrap((upper + (1 << (kShift - 1))) >> kShift);
}
#else
int16_t saturate(int32_t x) {
  return static_cast<int16_t>(x < -32768 ? -32768 : x > 32767 ? 32767 : x);
}

// The sums saturate.
int16_t after_pass1(uint32_t sum) {
  return saturate(static_cast<int32_t>(sum + (1U << (kShift1 - 1))) >> kShift1);
}
int16_t after_pass2(uint32_t sum) {
  return saturate(static_cast<int32_t>(sum + (1U << (kShift2 - 1))) >> kShift2);
}
#endif

// Eight values with `step` between them, to eight 32-bit sums, and what `narrow` makes of these.
template <int16_t (*narrow)(uint32_t)>
void transform(const int16_t* in, int step, int16_t* out) {
  const int16_t a1 = in[step], a2 = in[2 * step], a3 = in[3 * step];
  const int16_t a5 = in[5 * step], a6 = in[6 * step], a7 = in[7 * step];
  const uint32_t even2 = product(a2, kF0541) + product(a6, kF0541 - kF1847);
  const uint32_t even3 = product(a2, kF0541 + kF0765) + product(a6, kF0541);
  const uint32_t sum = product(wrap(in[0] + in[4 * step]), 1 << 13);
  const uint32_t difference = product(wrap(in[0] - in[4 * step]), 1 << 13);
  const uint32_t t[4] = {sum + even3, difference + even2, difference - even2, sum - even3};

  const int16_t z3 = wrap(a7 + a3), z4 = wrap(a5 + a1);
  const uint32_t y3 = product(z3, kF1175 - kF1961) + product(z4, kF1175);
  const uint32_t y4 = product(z3, kF1175) + product(z4, kF1175 - kF0390);
  const uint32_t odd[4] = {
      product(a7, -kF0899) + product(a1, kF1501 - kF0899) + y4,
      product(a5, -kF2562) + product(a3, kF3072 - kF2562) + y3,
      product(a5, kF2053 - kF2562) + product(a3, -kF2562) + y4,
      product(a7, kF0298 - kF0899) + product(a1, -kF0899) + y3,
  };
  for (int i = 0; i < 4; ++i) {
    out[i * step] = narrow(t[i] + odd[i]);
    out[(7 - i) * step] = narrow(t[i] - odd[i]);
  }
}

bool only_first_row(const int16_t* block) {
  for (int i = 8; i < 64; ++i)
    if (block[i] != 0) return false;
  return true;
}

void inverse_dct(Block* blocks, const uint8_t* extents, const BlockTarget* targets, int count) {
  for (int i = 0; i < count; ++i) {
    const BlockTarget& target = targets[i];
    int16_t* block = blocks[i].coefficient;
    if (extents[i] == 1) {
      const uint8_t flat = flat_level(block[0], target.quantiser[0]);
      for (int y = 0; y < 8; ++y)
        std::memset(target.samples + static_cast<size_t>(y) * target.stride, flat, 8);
      block[0] = 0;
    } else {
      inverse_dct_block(block, target);
      std::memset(block, 0, sizeof(Block));
    }
  }
}

// The levels of red, green and blue over luma, as libjpeg's tables give them.
uint8_t clamp(int x) { return static_cast<uint8_t>(x < 0 ? 0 : x > 255 ? 255 : x); }

void put_pixel(int luma, int cb, int cr, uint8_t* rgbx) {
  constexpr int kHalf = 1 << 15;
  const int b = cb - 128, r = cr - 128;
  rgbx[0] = clamp(luma + ((91881 * r + kHalf) >> 16));
  rgbx[1] = clamp(luma + ((-22554 * b - 46802 * r + kHalf) >> 16));
  rgbx[2] = clamp(luma + ((116130 * b + kHalf) >> 16));
  rgbx[3] = 255;
}

void gray(const RowSamples& in, int first, int count, uint8_t* rgbx) {
  for (int i = 0; i < count; ++i, rgbx += 4) {
    rgbx[0] = rgbx[1] = rgbx[2] = in.luma[first + i];
    rgbx[3] = 255;
  }
}

void full(const RowSamples& in, int first, int count, uint8_t* rgbx) {
  for (int i = first; i < first + count; ++i, rgbx += 4)
    put_pixel(in.luma[i], in.cb[i], in.cr[i], rgbx);
}

// Triangle filter: 3/4 of the nearer sample, 1/4 of the other, rounded down left, up right.
int between(const uint8_t* samples, int x) {
  const uint8_t* at = samples + (x >> 1);
  return (x & 1) == 0 ? (3 * at[0] + at[-1] + 1) >> 2 : (3 * at[0] + at[1] + 2) >> 2;
}

void h2v1(const RowSamples& in, int first, int count, uint8_t* rgbx) {
  for (int x = first; x < first + count; ++x, rgbx += 4)
    put_pixel(in.luma[x], between(in.cb, x), between(in.cr, x), rgbx);
}

int between(const uint8_t* near, const uint8_t* far, int x) {
  const int at = x >> 1;
  const int side = (x & 1) == 0 ? at - 1 : at + 1;
  const int here = 3 * near[at] + far[at];
  const int there = 3 * near[side] + far[side];
  return (3 * here + there + ((x & 1) == 0 ? 8 : 7)) >> 4;
}

void h2v2(const RowSamples& in, int first, int count, uint8_t* rgbx) {
  for (int x = first; x < first + count; ++x, rgbx += 4)
    put_pixel(in.luma[x], between(in.cb, in.cb_far, x), between(in.cr, in.cr_far, x), rgbx);
}

}  // namespace

void inverse_dct_block(const int16_t* block, const BlockTarget& target) {
  int16_t work[64];
  for (int i = 0; i < 64; ++i) work[i] = wrap(block[i] * target.quantiser[i]);
  if (only_first_row(block)) {
    // libjpeg-turbo's short-cut wraps where the transform may saturate.
    for (int x = 0; x < 8; ++x) {
      const int16_t column = wrap(work[x] * (1 << kPass1Bits));
      for (int y = 0; y < 8; ++y) work[8 * y + x] = column;
    }
  } else {
    for (int x = 0; x < 8; ++x) transform<after_pass1>(work + x, 8, work + x);
  }
  for (int y = 0; y < 8; ++y) {
    int16_t row[8];
    transform<after_pass2>(work + static_cast<ptrdiff_t>(8) * y, 1, row);
    uint8_t* out = target.samples + static_cast<size_t>(y) * target.stride;
    for (int x = 0; x < 8; ++x) out[x] = level(row[x]);
  }
}

uint8_t flat_level(int16_t dc, int16_t quantiser) {
  const int16_t scaled = wrap(wrap(dc * quantiser) * (1 << kPass1Bits));
  return level((scaled + (1 << (kPass1Bits + 2))) >> (kPass1Bits + 3));
}

const PixelKernels& pixel_kernels() {
#if defined(__x86_64__)
  if (simd_active() != Simd::kScalar) return kAvx2Pixels;
#elif defined(__aarch64__)
  if (simd_active() == Simd::kNeon) return kNeonPixels;
#endif
  return kScalarPixels;
}

const PixelKernels kScalarPixels = {inverse_dct, gray, full, h2v1, h2v2};

}  // namespace headrace::jpeg::own
