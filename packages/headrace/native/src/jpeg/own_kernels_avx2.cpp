// Rows of pixels, 32 at a time: chroma interpolation and colour conversion in one go.
#include <immintrin.h>

#include "own_row.h"

namespace headrace::jpeg::own {
namespace {

constexpr int kStep = 32;  // pixels

// 16-bit values of the even and the odd ones of 32 pixels.
struct Halves {
  __m256i even, odd;
};

inline __m256i load32(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
inline __m256i widen16(const uint8_t* at) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline Halves split(__m256i bytes) {
  return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xFF)), _mm256_srli_epi16(bytes, 8)};
}

// Red, green and blue (16 bits, not yet clamped) of one half. The factors are those of libjpeg's
// tables less whole multiples of the input, so that they fit 16 bits; rounding is the same for
// every input.
struct Colour {
  __m256i red, green, blue;
};

inline Colour convert(__m256i luma, __m256i cb, __m256i cr) {
  const __m256i centre = _mm256_set1_epi16(128);
  cb = _mm256_sub_epi16(cb, centre);
  cr = _mm256_sub_epi16(cr, centre);
  const __m256i red = _mm256_add_epi16(cr, _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(13173)));
  const __m256i blue =
      _mm256_add_epi16(_mm256_add_epi16(cb, cb), _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(-7471)));
  // -0.34414 cb + 0.28586 cr, and -cr afterwards: 15 bits of fraction.
  const __m256i factors = _mm256_set1_epi32(static_cast<int>(9367U << 16 | (0x10000U - 11277U)));
  const __m256i half = _mm256_set1_epi32(1 << 14);
  const __m256i lo = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
  const __m256i hi = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
  const __m256i green = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(lo, half), 15),
                                           _mm256_srai_epi32(_mm256_add_epi32(hi, half), 15));
  return {_mm256_add_epi16(luma, red), _mm256_add_epi16(luma, _mm256_sub_epi16(green, cr)),
          _mm256_add_epi16(luma, blue)};
}

inline void store32(__m256i value, uint8_t* at) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), value);
}

// Red, green and blue bytes, in each 128-bit lane those of 8 even and then 8 odd pixels, as RGBX.
inline void store_rgbx(__m256i red, __m256i green, __m256i blue, uint8_t* rgbx) {
  const __m256i opaque = _mm256_set1_epi8(-1);
  const __m256i rg_even = _mm256_unpacklo_epi8(red, green);
  const __m256i rg_odd = _mm256_unpackhi_epi8(red, green);
  const __m256i bx_even = _mm256_unpacklo_epi8(blue, opaque);
  const __m256i bx_odd = _mm256_unpackhi_epi8(blue, opaque);
  const __m256i even_lo = _mm256_unpacklo_epi16(rg_even, bx_even);
  const __m256i even_hi = _mm256_unpackhi_epi16(rg_even, bx_even);
  const __m256i odd_lo = _mm256_unpacklo_epi16(rg_odd, bx_odd);
  const __m256i odd_hi = _mm256_unpackhi_epi16(rg_odd, bx_odd);
  const __m256i p0 = _mm256_unpacklo_epi32(even_lo, odd_lo);  // pixels 0 to 3, 16 to 19
  const __m256i p1 = _mm256_unpackhi_epi32(even_lo, odd_lo);
  const __m256i p2 = _mm256_unpacklo_epi32(even_hi, odd_hi);
  const __m256i p3 = _mm256_unpackhi_epi32(even_hi, odd_hi);
  store32(_mm256_permute2x128_si256(p0, p1, 0x20), rgbx);
  store32(_mm256_permute2x128_si256(p2, p3, 0x20), rgbx + 32);
  store32(_mm256_permute2x128_si256(p0, p1, 0x31), rgbx + 64);
  store32(_mm256_permute2x128_si256(p2, p3, 0x31), rgbx + 96);
}

inline void put32(const uint8_t* luma, Halves cb, Halves cr, uint8_t* rgbx) {
  const Halves y = split(load32(luma));
  const Colour even = convert(y.even, cb.even, cr.even);
  const Colour odd = convert(y.odd, cb.odd, cr.odd);
  store_rgbx(_mm256_packus_epi16(even.red, odd.red), _mm256_packus_epi16(even.green, odd.green),
             _mm256_packus_epi16(even.blue, odd.blue), rgbx);
}

inline Halves interpolate(__m256i left, __m256i here, __m256i right, int round_left,
                          int round_right, int shift) {
  const __m256i thrice = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
  return {_mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(thrice, left),
                                             _mm256_set1_epi16(static_cast<short>(round_left))),
                            shift),
          _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(thrice, right),
                                             _mm256_set1_epi16(static_cast<short>(round_right))),
                            shift)};
}

inline Halves across(const uint8_t* at) {
  return interpolate(widen16(at - 1), widen16(at), widen16(at + 1), 1, 2, 2);
}

inline __m256i down(const uint8_t* near, const uint8_t* far) {
  const __m256i n = widen16(near);
  return _mm256_add_epi16(_mm256_add_epi16(n, _mm256_add_epi16(n, n)), widen16(far));
}

inline Halves across_and_down(const uint8_t* near, const uint8_t* far) {
  return interpolate(down(near - 1, far - 1), down(near, far), down(near + 1, far + 1), 8, 7, 4);
}

// 32 pixels from the even position x on.
inline void step_gray(const RowSamples& in, int x, uint8_t* rgbx) {
  const Halves y = split(load32(in.luma + x));
  const __m256i levels = _mm256_packus_epi16(y.even, y.odd);
  store_rgbx(levels, levels, levels, rgbx);
}
inline void step_full(const RowSamples& in, int x, uint8_t* rgbx) {
  put32(in.luma + x, split(load32(in.cb + x)), split(load32(in.cr + x)), rgbx);
}
inline void step_h2v1(const RowSamples& in, int x, uint8_t* rgbx) {
  const int at = x >> 1;
  put32(in.luma + x, across(in.cb + at), across(in.cr + at), rgbx);
}
inline void step_h2v2(const RowSamples& in, int x, uint8_t* rgbx) {
  const int at = x >> 1;
  put32(in.luma + x, across_and_down(in.cb + at, in.cb_far + at),
        across_and_down(in.cr + at, in.cr_far + at), rgbx);
}

}  // namespace

const PixelKernels kAvx2Pixels = {
    inverse_dct_avx2,
    row<kStep, step_gray, &PixelKernels::gray>,
    row<kStep, step_full, &PixelKernels::full>,
    row<kStep, step_h2v1, &PixelKernels::h2v1>,
    row<kStep, step_h2v2, &PixelKernels::h2v2>,
};

}  // namespace headrace::jpeg::own
