// Inverse DCT of two blocks at a time: one in each 128-bit lane.
#include <immintrin.h>

#include <cstring>

#include "own_idct.h"
#include "own_kernels.h"

namespace headrace::jpeg::own {
namespace {

// Factors of an interleaved pair of 16-bit inputs.
inline __m256i pair(int first, int second) {
  return _mm256_set1_epi32(static_cast<int>((static_cast<uint32_t>(second) << 16) |
                                            (static_cast<uint32_t>(first) & 0xFFFF)));
}

// 32-bit values of the lower and the upper four columns of each lane.
struct Wide {
  __m256i lo, hi;
};

inline Wide operator+(Wide a, Wide b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline Wide operator-(Wide a, Wide b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}

inline Wide interleave(__m256i a, __m256i b) {
  return {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}
inline Wide dot(Wide ab, int first, int second) {
  const __m256i factors = pair(first, second);
  return {_mm256_madd_epi16(ab.lo, factors), _mm256_madd_epi16(ab.hi, factors)};
}

// x × 2^13, and half of what `shift` will drop.
template <int shift>
inline Wide scale_and_round(__m256i x) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
  return {_mm256_add_epi32(_mm256_srai_epi32(_mm256_unpacklo_epi16(zero, x), 3), half),
          _mm256_add_epi32(_mm256_srai_epi32(_mm256_unpackhi_epi16(zero, x), 3), half)};
}

template <int shift>
inline __m256i descale(Wide x) {
  return _mm256_packs_epi32(_mm256_srai_epi32(x.lo, shift), _mm256_srai_epi32(x.hi, shift));
}

// One pass over all columns of both blocks; r[i] is row i.
template <int shift>
inline void transform(__m256i r[8]) {
  const Wide in26 = interleave(r[2], r[6]);
  const Wide even2 = dot(in26, kF0541, kF0541 - kF1847);
  const Wide even3 = dot(in26, kF0541 + kF0765, kF0541);
  const Wide sum = scale_and_round<shift>(_mm256_add_epi16(r[0], r[4]));
  const Wide difference = scale_and_round<shift>(_mm256_sub_epi16(r[0], r[4]));

  const Wide z34 = interleave(_mm256_add_epi16(r[7], r[3]), _mm256_add_epi16(r[5], r[1]));
  const Wide y3 = dot(z34, kF1175 - kF1961, kF1175);
  const Wide y4 = dot(z34, kF1175, kF1175 - kF0390);
  const Wide in71 = interleave(r[7], r[1]);
  const Wide in53 = interleave(r[5], r[3]);
  const Wide odd0 = dot(in71, -kF0899, kF1501 - kF0899) + y4;
  const Wide odd1 = dot(in53, -kF2562, kF3072 - kF2562) + y3;
  const Wide odd2 = dot(in53, kF2053 - kF2562, -kF2562) + y4;
  const Wide odd3 = dot(in71, kF0298 - kF0899, -kF0899) + y3;

  const Wide t0 = sum + even3, t3 = sum - even3;
  const Wide t1 = difference + even2, t2 = difference - even2;
  r[0] = descale<shift>(t0 + odd0);
  r[7] = descale<shift>(t0 - odd0);
  r[1] = descale<shift>(t1 + odd1);
  r[6] = descale<shift>(t1 - odd1);
  r[2] = descale<shift>(t2 + odd2);
  r[5] = descale<shift>(t2 - odd2);
  r[3] = descale<shift>(t3 + odd3);
  r[4] = descale<shift>(t3 - odd3);
}

inline void transpose(__m256i r[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi32(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi32(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi32(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    r[2 * i] = _mm256_unpacklo_epi64(b[i], b[i + 4]);
    r[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 4]);
  }
}

// Columns of 16-bit levels around 0 to rows of bytes, two rows to a lane of out[].
inline void to_rows(const __m256i c[8], __m256i out[4]) {
  const __m256i p0 = _mm256_packs_epi16(c[0], c[4]), p1 = _mm256_packs_epi16(c[1], c[5]);
  const __m256i p2 = _mm256_packs_epi16(c[2], c[6]), p3 = _mm256_packs_epi16(c[3], c[7]);
  const __m256i q0 = _mm256_unpacklo_epi8(p0, p1), q1 = _mm256_unpackhi_epi8(p0, p1);
  const __m256i q2 = _mm256_unpacklo_epi8(p2, p3), q3 = _mm256_unpackhi_epi8(p2, p3);
  const __m256i s0 = _mm256_unpacklo_epi16(q0, q2), s1 = _mm256_unpackhi_epi16(q0, q2);
  const __m256i s2 = _mm256_unpacklo_epi16(q1, q3), s3 = _mm256_unpackhi_epi16(q1, q3);
  const __m256i centre = _mm256_set1_epi8(-128);
  out[0] = _mm256_xor_si256(_mm256_unpacklo_epi32(s0, s2), centre);
  out[1] = _mm256_xor_si256(_mm256_unpackhi_epi32(s0, s2), centre);
  out[2] = _mm256_xor_si256(_mm256_unpacklo_epi32(s1, s3), centre);
  out[3] = _mm256_xor_si256(_mm256_unpackhi_epi32(s1, s3), centre);
}

inline void store_two_rows(__m128i rows, uint8_t* out, size_t stride) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), rows);
  _mm_storeh_pd(reinterpret_cast<double*>(out + stride), _mm_castsi128_pd(rows));
}

inline __m256i load_both(const int16_t* a, const int16_t* b, int row) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(a) + row)),
      _mm_load_si128(reinterpret_cast<const __m128i*>(b) + row), 1);
}

inline void clear(Block* block) {
  auto* at = reinterpret_cast<__m256i*>(block->coefficient);
  for (int i = 0; i < 4; ++i) _mm256_store_si256(at + i, _mm256_setzero_si256());
}

void transform_two(Block* a, Block* b, const BlockTarget& to_a, const BlockTarget& to_b) {
  __m256i r[8];
  for (int i = 0; i < 8; ++i)
    r[i] = _mm256_mullo_epi16(load_both(a->coefficient, b->coefficient, i),
                              load_both(to_a.quantiser, to_b.quantiser, i));
  // Out of the range of real images (14 bits), the short-cut of inverse_dct_block() matters.
  const __m256i top = _mm256_and_si256(_mm256_add_epi16(r[0], _mm256_set1_epi16(1 << 13)),
                                       _mm256_set1_epi16(-(1 << 14)));
  if (__builtin_expect(!_mm256_testz_si256(top, top), 0)) {
    inverse_dct_block(a->coefficient, to_a);
    if (b != a) inverse_dct_block(b->coefficient, to_b);
    clear(a);
    clear(b);
    return;
  }
  clear(a);
  clear(b);
  transform<kShift1>(r);
  transpose(r);
  transform<kShift2>(r);
  __m256i rows[4];
  to_rows(r, rows);
  for (size_t i = 0; i < 4; ++i) {
    store_two_rows(_mm256_castsi256_si128(rows[i]), to_a.samples + 2 * i * to_a.stride,
                   to_a.stride);
    store_two_rows(_mm256_extracti128_si256(rows[i], 1), to_b.samples + 2 * i * to_b.stride,
                   to_b.stride);
  }
}

inline void fill(Block* block, const BlockTarget& target) {
  uint64_t level = flat_level(block->coefficient[0], target.quantiser[0]);
  level *= 0x0101010101010101U;
  for (size_t y = 0; y < 8; ++y) std::memcpy(target.samples + y * target.stride, &level, 8);
  block->coefficient[0] = 0;
}

}  // namespace

void inverse_dct_avx2(Block* blocks, const uint8_t* extents, const BlockTarget* targets,
                      int count) {
  int waiting = -1;
  for (int i = 0; i < count; ++i) {
    if (extents[i] == 1) {
      fill(blocks + i, targets[i]);
    } else if (waiting < 0) {
      waiting = i;
    } else {
      transform_two(blocks + waiting, blocks + i, targets[waiting], targets[i]);
      waiting = -1;
    }
  }
  if (waiting >= 0)
    transform_two(blocks + waiting, blocks + waiting, targets[waiting], targets[waiting]);
}

}  // namespace headrace::jpeg::own
