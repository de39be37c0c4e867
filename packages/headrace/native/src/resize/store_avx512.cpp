// The store's look-ups for AVX-512 with VBMI, which looks bytes up in tables held in registers: a
// table of 256 values is kept as one table of bytes for each byte of the values. They alone gain by
// AVX-512: all else is AVX2's.
#include "store_kernels.h"

#if defined(__AVX512VBMI__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers leave the don't-care operands of these intrinsics undefined, and warn about it
// where they are inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace headrace {
namespace {

constexpr size_t kBlock = 64;  // levels looked up at a time; also the bytes of a cache line

ALWAYS_INLINE __m512i load(const uint8_t* from) { return _mm512_loadu_si512(from); }

ALWAYS_INLINE __mmask64 first_bytes(size_t count) { return count == 0 ? 0 : ~0ull >> (64 - count); }

// 64 elements of four bytes, taken apart: byte b of element i becomes byte i of bytes[b].
struct Split {
  ALWAYS_INLINE explicit Split(const uint8_t* from) {
    const __m512i by_byte =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i lanes_apart =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i a = _mm512_shuffle_epi8(load(from), by_byte);
    const __m512i b = _mm512_shuffle_epi8(load(from + 64), by_byte);
    const __m512i c = _mm512_shuffle_epi8(load(from + 128), by_byte);
    const __m512i d = _mm512_shuffle_epi8(load(from + 192), by_byte);
    const __m512i ab01 = _mm512_unpacklo_epi32(a, b), cd01 = _mm512_unpacklo_epi32(c, d);
    const __m512i ab23 = _mm512_unpackhi_epi32(a, b), cd23 = _mm512_unpackhi_epi32(c, d);
    bytes[0] = _mm512_permutexvar_epi32(lanes_apart, _mm512_unpacklo_epi64(ab01, cd01));
    bytes[1] = _mm512_permutexvar_epi32(lanes_apart, _mm512_unpackhi_epi64(ab01, cd01));
    bytes[2] = _mm512_permutexvar_epi32(lanes_apart, _mm512_unpacklo_epi64(ab23, cd23));
    bytes[3] = _mm512_permutexvar_epi32(lanes_apart, _mm512_unpackhi_epi64(ab23, cd23));
  }
  __m512i bytes[4];
};

// One byte of each of the 256 values.
struct ByteTable {
  __m512i quarter[4];

  ALWAYS_INLINE __m512i at(__m512i levels, __mmask64 upper_half) const {
    return _mm512_mask_blend_epi8(upper_half,
                                  _mm512_permutex2var_epi8(quarter[0], levels, quarter[1]),
                                  _mm512_permutex2var_epi8(quarter[2], levels, quarter[3]));
  }
};

struct Value32 {
  static constexpr size_t kSize = 4;
  static constexpr int kVectors = 4;

  explicit Value32(const uint8_t* table) {
    for (int q = 0; q < 4; ++q) {
      const Split split(table + q * 256);
      for (int b = 0; b < 4; ++b) bytes[b].quarter[q] = split.bytes[b];
    }
  }

  ALWAYS_INLINE void at(__m512i levels, __m512i values[kVectors]) const {
    // In the order that the unpacking below undoes.
    levels = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), levels);
    const __mmask64 upper = _mm512_movepi8_mask(levels);
    const __m512i b0 = bytes[0].at(levels, upper), b1 = bytes[1].at(levels, upper);
    const __m512i b2 = bytes[2].at(levels, upper), b3 = bytes[3].at(levels, upper);
    const __m512i low01 = _mm512_unpacklo_epi8(b0, b1), high01 = _mm512_unpackhi_epi8(b0, b1);
    const __m512i low23 = _mm512_unpacklo_epi8(b2, b3), high23 = _mm512_unpackhi_epi8(b2, b3);
    values[0] = _mm512_unpacklo_epi16(low01, low23);
    values[1] = _mm512_unpackhi_epi16(low01, low23);
    values[2] = _mm512_unpacklo_epi16(high01, high23);
    values[3] = _mm512_unpackhi_epi16(high01, high23);
  }

  ByteTable bytes[4];
};

struct Value16 {
  static constexpr size_t kSize = 2;
  static constexpr int kVectors = 2;

  explicit Value16(const uint8_t* table) {
    const __m512i low_of_pairs = _mm512_set1_epi16(0x00ff);
    for (int q = 0; q < 4; ++q) {
      const __m512i a = load(table + q * 128), b = load(table + q * 128 + 64);
      const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
      bytes[0].quarter[q] = _mm512_permutexvar_epi64(
          in_order, _mm512_packus_epi16(_mm512_and_si512(a, low_of_pairs),
                                        _mm512_and_si512(b, low_of_pairs)));
      bytes[1].quarter[q] = _mm512_permutexvar_epi64(
          in_order, _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8)));
    }
  }

  ALWAYS_INLINE void at(__m512i levels, __m512i values[kVectors]) const {
    // In the order that the unpacking below undoes.
    levels = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), levels);
    const __mmask64 upper = _mm512_movepi8_mask(levels);
    const __m512i b0 = bytes[0].at(levels, upper), b1 = bytes[1].at(levels, upper);
    values[0] = _mm512_unpacklo_epi8(b0, b1);
    values[1] = _mm512_unpackhi_epi8(b0, b1);
  }

  ByteTable bytes[2];
};

// At most one block: from masked levels to masked values.
template <typename Value>
ALWAYS_INLINE void lookup_part(const Value& value, const uint8_t* levels, size_t count,
                               uint8_t* out) {
  __m512i values[Value::kVectors];
  value.at(_mm512_maskz_loadu_epi8(first_bytes(count), levels), values);
  for (size_t bytes = count * Value::kSize, v = 0; bytes > 0; ++v) {
    const size_t part = bytes < 64 ? bytes : 64;
    _mm512_mask_storeu_epi8(out + v * 64, first_bytes(part), values[v]);
    bytes -= part;
  }
}

template <typename Value>
void lookup(const uint8_t* levels, size_t count, const void* table, void* out_start, bool stream) {
  const Value value(static_cast<const uint8_t*>(table));
  auto* out = static_cast<uint8_t*>(out_start);
  const size_t past_line = reinterpret_cast<uintptr_t>(out) % 64;
  stream = stream && past_line % Value::kSize == 0;
  if (stream && past_line != 0) {
    size_t head = (64 - past_line) / Value::kSize;
    if (head > count) head = count;
    lookup_part(value, levels, head, out);
    levels += head;
    count -= head;
    out += head * Value::kSize;
  }
  for (; count >= kBlock; count -= kBlock, levels += kBlock, out += kBlock * Value::kSize) {
    __m512i values[Value::kVectors];
    value.at(load(levels), values);
    for (int v = 0; v < Value::kVectors; ++v) {
      if (stream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(out + v * 64), values[v]);
      } else {
        _mm512_storeu_si512(out + v * 64, values[v]);
      }
    }
  }
  if (count > 0) lookup_part(value, levels, count, out);
}

}  // namespace

const Lookup kAvx512Lookup16 = lookup<Value16>;
const Lookup kAvx512Lookup32 = lookup<Value32>;

}  // namespace headrace
#endif  // __AVX512VBMI__
