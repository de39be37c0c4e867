// The resize loops for AVX-512 with VNNI: dot products of four unsigned bytes with four signed
// ones. A weight is split into three signed digits of base 256, so four taps of a pixel cost three
// instructions, and their sums, put together, are exactly the 32-bit sum.
#include "kernels.h"

#if defined(__AVX512VNNI__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers leave the don't-care operands of these intrinsics undefined, and warn about it
// where they are inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace headrace {
namespace {

// Four taps' digits, a byte each, lowest digit first. Holds weights of magnitude below 2 (2^23):
// the largest that any filter and size gives is below 1.5.
struct Packed {
  int8_t digits[3][kTapGroup];
};

// Half a unit of the result, in units of the highest digit.
constexpr int32_t kHalfHigh = 1 << (kWeightBits - 1 - 16);

void pack(const int32_t* weights, size_t groups, uint8_t* packed) {
  // Adding half of each digit's range carries where a digit would be above 127; taking it off again
  // leaves signed digits.
  const __m128i halves = _mm_set1_epi32(0x808080);
  const __m128i by_digit = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, -1, -1, -1, -1);
  for (size_t g = 0; g < groups; ++g, weights += kTapGroup, packed += sizeof(Packed)) {
    const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
    const __m128i digits = _mm_xor_si128(_mm_add_epi32(w, halves), halves);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(packed), _mm_shuffle_epi8(digits, by_digit));
  }
}

struct Weights {
  ALWAYS_INLINE explicit Weights(const uint8_t* packed)
      : low(digit(packed, 0)), middle(digit(packed, 1)), high(digit(packed, 2)) {}

  static ALWAYS_INLINE __m512i digit(const uint8_t* packed, int d) {
    int32_t value;
    std::memcpy(&value, packed + d * kTapGroup, sizeof(value));
    return _mm512_set1_epi32(value);
  }

  __m512i low, middle, high;
};

ALWAYS_INLINE __m128i load16(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

ALWAYS_INLINE void store16(uint8_t* to, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

// Four pixels of each of four rows, one row to a lane.
ALWAYS_INLINE __m512i load_rows(const uint8_t* const in[kRowGroup], size_t offset) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(in[0] + offset)),
                                              load16(in[1] + offset), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(in[2] + offset)),
                                               load16(in[3] + offset), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The weighted sums of four groups of bytes, digit by digit, shifted down to levels.
struct Sums {
  __m512i low = _mm512_setzero_si512();
  __m512i middle = _mm512_setzero_si512();
  __m512i high = _mm512_set1_epi32(kHalfHigh);

  ALWAYS_INLINE void add(__m512i taps, const Weights& w) {
    low = _mm512_dpbusd_epi32(low, taps, w.low);
    middle = _mm512_dpbusd_epi32(middle, taps, w.middle);
    high = _mm512_dpbusd_epi32(high, taps, w.high);
  }

  ALWAYS_INLINE __m512i finish() const {
    const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(high, 8), middle);
    return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), low), kWeightBits);
  }
};

// The same where one group is all.
ALWAYS_INLINE __m512i weigh(__m512i taps, const Weights& w) {
  __m512i sum = _mm512_dpbusd_epi32(_mm512_set1_epi32(kHalfHigh), taps, w.high);
  sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), taps, w.middle);
  sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), taps, w.low);
  return _mm512_srai_epi32(sum, kWeightBits);
}

// Output x of four rows: a dword per channel, a lane per row.
template <bool kOneGroup>
ALWAYS_INLINE __m512i horizontal_pixel(const uint8_t* const in[kRowGroup], const AxisTaps& taps,
                                       int x) {
  const __m512i by_channel =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  size_t offset = static_cast<size_t>(taps.first[x]) * 4;
  if (kOneGroup) {
    return weigh(_mm512_shuffle_epi8(load_rows(in, offset), by_channel),
                 Weights(taps.packed + x * sizeof(Packed)));
  }
  const uint8_t* packed = taps.packed + static_cast<size_t>(x) * taps.groups * sizeof(Packed);
  Sums sums;
  for (int g = 0; g < taps.groups; ++g, offset += 16, packed += sizeof(Packed)) {
    sums.add(_mm512_shuffle_epi8(load_rows(in, offset), by_channel), Weights(packed));
  }
  return sums.finish();
}

// Outputs a to d of four rows, 16 bytes for each row.
template <bool kOneGroup>
ALWAYS_INLINE __m512i horizontal_block(const uint8_t* const in[kRowGroup], const AxisTaps& taps,
                                       int a, int b, int c, int d) {
  const __m512i ab = _mm512_packs_epi32(horizontal_pixel<kOneGroup>(in, taps, a),
                                        horizontal_pixel<kOneGroup>(in, taps, b));
  const __m512i cd = _mm512_packs_epi32(horizontal_pixel<kOneGroup>(in, taps, c),
                                        horizontal_pixel<kOneGroup>(in, taps, d));
  return _mm512_packus_epi16(ab, cd);
}

template <bool kOneGroup>
void horizontal_outputs(const uint8_t* const in_rows[kRowGroup], uint8_t* const out[kRowGroup],
                        const AxisTaps& axis) {
  const AxisTaps taps = axis;  // copies, which stores through `out` cannot change
  const uint8_t* const in[kRowGroup] = {in_rows[0], in_rows[1], in_rows[2], in_rows[3]};
  uint8_t* const out0 = out[0];
  uint8_t* const out1 = out[1];
  uint8_t* const out2 = out[2];
  uint8_t* const out3 = out[3];
  int x = 0;
  for (; x + 4 <= taps.outputs; x += 4) {
    const __m512i rows = horizontal_block<kOneGroup>(in, taps, x, x + 1, x + 2, x + 3);
    const size_t offset = static_cast<size_t>(x) * 4;
    store16(out0 + offset, _mm512_castsi512_si128(rows));
    store16(out1 + offset, _mm512_extracti32x4_epi32(rows, 1));
    store16(out2 + offset, _mm512_extracti32x4_epi32(rows, 2));
    store16(out3 + offset, _mm512_extracti32x4_epi32(rows, 3));
  }
  if (x == taps.outputs) return;
  // The last one to three: computed as four, the last repeated, and stored in part.
  const int last = taps.outputs - 1;
  uint8_t levels[kRowGroup * 16];
  _mm512_storeu_si512(levels, horizontal_block<kOneGroup>(in, taps, x, x + 1 < last ? x + 1 : last,
                                                          x + 2 < last ? x + 2 : last, last));
  for (int r = 0; r < kRowGroup; ++r) {
    std::memcpy(out[r] + static_cast<size_t>(x) * 4, levels + r * 16,
                static_cast<size_t>(taps.outputs - x) * 4);
  }
}

void horizontal(const uint8_t* const in[kRowGroup], uint8_t* const out[kRowGroup],
                const AxisTaps& taps) {
  if (taps.groups == 1) {
    horizontal_outputs<true>(in, out, taps);
  } else {
    horizontal_outputs<false>(in, out, taps);
  }
}

// 16 pixels of four rows: the four bytes that are weighed together side by side.
struct Columns {
  ALWAYS_INLINE Columns(const uint8_t* const* rows, size_t offset) {
    const __m512i a = _mm512_loadu_si512(rows[0] + offset),
                  b = _mm512_loadu_si512(rows[1] + offset);
    const __m512i c = _mm512_loadu_si512(rows[2] + offset),
                  d = _mm512_loadu_si512(rows[3] + offset);
    const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
    q0 = _mm512_unpacklo_epi16(ab_low, cd_low);
    q1 = _mm512_unpackhi_epi16(ab_low, cd_low);
    q2 = _mm512_unpacklo_epi16(ab_high, cd_high);
    q3 = _mm512_unpackhi_epi16(ab_high, cd_high);
  }
  __m512i q0, q1, q2, q3;  // packing the sums undoes this order
};

template <bool kOneGroup>
ALWAYS_INLINE __m512i vertical_block(const uint8_t* const* rows, const uint8_t* packed, int groups,
                                     size_t offset) {
  if (kOneGroup) {
    const Weights w(packed);
    const Columns columns(rows, offset);
    return _mm512_packus_epi16(_mm512_packs_epi32(weigh(columns.q0, w), weigh(columns.q1, w)),
                               _mm512_packs_epi32(weigh(columns.q2, w), weigh(columns.q3, w)));
  }
  Sums s0, s1, s2, s3;
  for (int g = 0; g < groups; ++g, rows += kTapGroup, packed += sizeof(Packed)) {
    const Weights w(packed);
    const Columns columns(rows, offset);
    s0.add(columns.q0, w);
    s1.add(columns.q1, w);
    s2.add(columns.q2, w);
    s3.add(columns.q3, w);
  }
  return _mm512_packus_epi16(_mm512_packs_epi32(s0.finish(), s1.finish()),
                             _mm512_packs_epi32(s2.finish(), s3.finish()));
}

template <bool kOneGroup>
void vertical_outputs(const uint8_t* const* all_rows, const uint8_t* packed, int groups,
                      size_t size, uint8_t* out) {
  // Copies, which stores through `out` cannot change.
  const uint8_t* const four[kTapGroup] = {all_rows[0], all_rows[1], all_rows[2], all_rows[3]};
  const uint8_t* const* rows = kOneGroup ? four : all_rows;
  uint8_t weights[sizeof(Packed)];
  std::memcpy(weights, packed, sizeof(weights));
  if (kOneGroup) packed = weights;
  size_t offset = 0;
  for (; offset + 64 <= size; offset += 64) {
    _mm512_storeu_si512(out + offset, vertical_block<kOneGroup>(rows, packed, groups, offset));
  }
  if (offset == size) return;
  const __mmask64 rest = ~0ull >> (64 - (size - offset));
  _mm512_mask_storeu_epi8(out + offset, rest,
                          vertical_block<kOneGroup>(rows, packed, groups, offset));
}

void vertical(const uint8_t* const* rows, const uint8_t* packed, int count, int width,
              uint8_t* out) {
  const int groups = (count + kTapGroup - 1) / kTapGroup;
  const size_t size = static_cast<size_t>(width) * 4;
  if (groups == 1) {
    vertical_outputs<true>(rows, packed, 1, size, out);
  } else {
    vertical_outputs<false>(rows, packed, groups, size, out);
  }
}

}  // namespace

const ResizeKernels kAvx512Resize = {sizeof(Packed), pack, horizontal, vertical};

}  // namespace headrace
#endif  // __AVX512VNNI__
