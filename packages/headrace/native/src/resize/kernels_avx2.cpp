// The resize loops for AVX2: 16-bit multiply-adds. A weight is split into a low part of 15 bits and
// the rest, so that both fit a signed 16-bit factor and the two sums, put together, are exactly the
// 32-bit sum.
#include "kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstring>

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace headrace {
namespace {

constexpr int kLowBits = 15;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

// The halves of taps 0 and 1, of taps 2 and 3; as pairs of 16 bits, the way the multiply-add takes
// them.
struct Packed {
  int16_t low[kTapGroup];
  int16_t high[kTapGroup];
};

void pack(const int32_t* weights, size_t groups, uint8_t* packed) {
  const __m128i low_mask = _mm_set1_epi32((1 << kLowBits) - 1);
  for (size_t g = 0; g < groups; ++g, weights += kTapGroup, packed += sizeof(Packed)) {
    const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weights));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(packed),
                     _mm_packs_epi32(_mm_and_si128(w, low_mask), _mm_srai_epi32(w, kLowBits)));
  }
}

ALWAYS_INLINE __m256i broadcast(const uint8_t* packed, size_t offset) {
  int32_t value;
  std::memcpy(&value, packed + offset, sizeof(value));
  return _mm256_set1_epi32(value);
}

// Four pixels of one row in the lower lane, of another row in the upper.
ALWAYS_INLINE __m256i load_rows(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

ALWAYS_INLINE __m256i finish(__m256i low, __m256i high) {
  return _mm256_srai_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, kLowBits)), kWeightBits);
}

// Two pixels of two rows, picked out by `order`, times pair `pair` of a group's weights.
ALWAYS_INLINE void add_pair(__m256i rows, __m256i order, const uint8_t* packed, int pair,
                            __m256i* low, __m256i* high) {
  const __m256i words = _mm256_shuffle_epi8(rows, order);
  const __m256i lows = broadcast(packed, offsetof(Packed, low) + pair * 4);
  const __m256i highs = broadcast(packed, offsetof(Packed, high) + pair * 4);
  *low = _mm256_add_epi32(*low, _mm256_madd_epi16(words, lows));
  *high = _mm256_add_epi32(*high, _mm256_madd_epi16(words, highs));
}

// The sums of one output pixel in two pairs of rows: a dword per channel, a lane per row.
struct FourRows {
  __m256i rows01, rows23;
};

template <bool kOneGroup>
ALWAYS_INLINE FourRows horizontal_pixel(const uint8_t* const in[kRowGroup], const AxisTaps& taps,
                                        int x) {
  const __m256i pixels01 = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
  const __m256i pixels23 = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1));
  const int groups = kOneGroup ? 1 : taps.groups;
  const uint8_t* packed = taps.packed + static_cast<size_t>(x) * groups * sizeof(Packed);
  size_t offset = static_cast<size_t>(taps.first[x]) * 4;
  __m256i low01 = _mm256_set1_epi32(kHalf), low23 = low01;
  __m256i high01 = _mm256_setzero_si256(), high23 = high01;
  for (int g = 0; g < groups; ++g, offset += 16, packed += sizeof(Packed)) {
    const __m256i rows01 = load_rows(in[0] + offset, in[1] + offset);
    const __m256i rows23 = load_rows(in[2] + offset, in[3] + offset);
    add_pair(rows01, pixels01, packed, 0, &low01, &high01);
    add_pair(rows23, pixels01, packed, 0, &low23, &high23);
    add_pair(rows01, pixels23, packed, 1, &low01, &high01);
    add_pair(rows23, pixels23, packed, 1, &low23, &high23);
  }
  return {finish(low01, high01), finish(low23, high23)};
}

// Outputs a to d of four rows: two rows in each vector, 16 bytes for each row.
template <bool kOneGroup>
ALWAYS_INLINE FourRows horizontal_block(const uint8_t* const in[kRowGroup], const AxisTaps& taps,
                                        int a, int b, int c, int d) {
  const FourRows pa = horizontal_pixel<kOneGroup>(in, taps, a);
  const FourRows pb = horizontal_pixel<kOneGroup>(in, taps, b);
  const __m256i ab01 = _mm256_packs_epi32(pa.rows01, pb.rows01);
  const __m256i ab23 = _mm256_packs_epi32(pa.rows23, pb.rows23);
  const FourRows pc = horizontal_pixel<kOneGroup>(in, taps, c);
  const FourRows pd = horizontal_pixel<kOneGroup>(in, taps, d);
  return {_mm256_packus_epi16(ab01, _mm256_packs_epi32(pc.rows01, pd.rows01)),
          _mm256_packus_epi16(ab23, _mm256_packs_epi32(pc.rows23, pd.rows23))};
}

ALWAYS_INLINE void store16(uint8_t* to, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

ALWAYS_INLINE void store_block(uint8_t* const out[kRowGroup], size_t offset,
                               const FourRows& block) {
  store16(out[0] + offset, _mm256_castsi256_si128(block.rows01));
  store16(out[1] + offset, _mm256_extracti128_si256(block.rows01, 1));
  store16(out[2] + offset, _mm256_castsi256_si128(block.rows23));
  store16(out[3] + offset, _mm256_extracti128_si256(block.rows23, 1));
}

template <bool kOneGroup>
void horizontal_outputs(const uint8_t* const in_rows[kRowGroup], uint8_t* const out_rows[kRowGroup],
                        const AxisTaps& axis) {
  // Copies, which stores through `out` cannot change.
  const AxisTaps taps = axis;
  const uint8_t* const in[kRowGroup] = {in_rows[0], in_rows[1], in_rows[2], in_rows[3]};
  uint8_t* const out[kRowGroup] = {out_rows[0], out_rows[1], out_rows[2], out_rows[3]};
  int x = 0;
  for (; x + 4 <= taps.outputs; x += 4) {
    store_block(out, static_cast<size_t>(x) * 4,
                horizontal_block<kOneGroup>(in, taps, x, x + 1, x + 2, x + 3));
  }
  if (x == taps.outputs) return;
  // The last one to three: computed as four, the last repeated, and stored in part.
  const int last = taps.outputs - 1;
  uint8_t levels[kRowGroup][16];
  uint8_t* const rows[kRowGroup] = {levels[0], levels[1], levels[2], levels[3]};
  store_block(rows, 0,
              horizontal_block<kOneGroup>(in, taps, x, x + 1 < last ? x + 1 : last,
                                          x + 2 < last ? x + 2 : last, last));
  for (int r = 0; r < kRowGroup; ++r) {
    std::memcpy(out[r] + static_cast<size_t>(x) * 4, levels[r],
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

ALWAYS_INLINE __m256i load(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// The sums of eight pixels in the order of the unpacking, which packing the sums undoes.
struct Columns {
  __m256i low[4], high[4];

  ALWAYS_INLINE Columns() {
    for (int i = 0; i < 4; ++i) {
      low[i] = _mm256_set1_epi32(kHalf);
      high[i] = _mm256_setzero_si256();
    }
  }

  ALWAYS_INLINE void add(int i, __m256i words, __m256i low_weights, __m256i high_weights) {
    low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(words, low_weights));
    high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(words, high_weights));
  }

  // Two rows, times pair `pair` of a group's weights.
  ALWAYS_INLINE void add_rows(__m256i a, __m256i b, const uint8_t* packed, int pair) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i lows = broadcast(packed, offsetof(Packed, low) + pair * 4);
    const __m256i highs = broadcast(packed, offsetof(Packed, high) + pair * 4);
    const __m256i ab_low = _mm256_unpacklo_epi8(a, b), ab_high = _mm256_unpackhi_epi8(a, b);
    add(0, _mm256_unpacklo_epi8(ab_low, zero), lows, highs);
    add(1, _mm256_unpackhi_epi8(ab_low, zero), lows, highs);
    add(2, _mm256_unpacklo_epi8(ab_high, zero), lows, highs);
    add(3, _mm256_unpackhi_epi8(ab_high, zero), lows, highs);
  }

  ALWAYS_INLINE __m256i levels() const {
    return _mm256_packus_epi16(
        _mm256_packs_epi32(finish(low[0], high[0]), finish(low[1], high[1])),
        _mm256_packs_epi32(finish(low[2], high[2]), finish(low[3], high[3])));
  }
};

template <int kPairs>  // 0: as many as `pairs` says
ALWAYS_INLINE __m256i vertical_block(const uint8_t* const* rows, const uint8_t* packed, int pairs,
                                     size_t offset) {
  Columns columns;
  const int count = kPairs > 0 ? kPairs : pairs;
  for (int p = 0; p < count; ++p) {
    columns.add_rows(load(rows[2 * p] + offset), load(rows[2 * p + 1] + offset),
                     packed + (p / 2) * sizeof(Packed), p % 2);
  }
  return columns.levels();
}

template <int kPairs>
void vertical_outputs(const uint8_t* const* all_rows, const uint8_t* packed, int pairs, size_t size,
                      uint8_t* out) {
  // Copies, which stores through `out` cannot change.
  const uint8_t* const four[kTapGroup] = {all_rows[0], all_rows[1], all_rows[2], all_rows[3]};
  const uint8_t* const* rows = kPairs > 0 ? four : all_rows;
  uint8_t weights[sizeof(Packed)];
  std::memcpy(weights, packed, sizeof(weights));
  if (kPairs > 0) packed = weights;
  size_t offset = 0;
  for (; offset + 32 <= size; offset += 32) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + offset),
                        vertical_block<kPairs>(rows, packed, pairs, offset));
  }
  if (offset == size) return;
  uint8_t levels[32];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels),
                      vertical_block<kPairs>(rows, packed, pairs, offset));
  std::memcpy(out + offset, levels, size - offset);
}

void vertical(const uint8_t* const* rows, const uint8_t* packed, int count, int width,
              uint8_t* out) {
  const int pairs = (count + 1) / 2;
  const size_t size = static_cast<size_t>(width) * 4;
  if (pairs == 1) {
    vertical_outputs<1>(rows, packed, 1, size, out);
  } else if (pairs == 2) {
    vertical_outputs<2>(rows, packed, 2, size, out);
  } else {
    vertical_outputs<0>(rows, packed, pairs, size, out);
  }
}

}  // namespace

const ResizeKernels kAvx2Resize = {sizeof(Packed), pack, horizontal, vertical};

}  // namespace headrace
#endif  // __AVX2__
