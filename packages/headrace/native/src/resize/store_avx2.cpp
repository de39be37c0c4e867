// The store's loops for AVX2. Look-ups gather one value per load: the gather instruction was slower
// where it was measured.
#include "store_kernels.h"

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstring>

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace headrace {
namespace {

constexpr size_t kLine = 64;  // bytes of a cache line: streamed lines must be written whole

ALWAYS_INLINE __m256i load(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

ALWAYS_INLINE void store(uint8_t* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

ALWAYS_INLINE void store_vector(uint8_t* to, __m256i value, bool stream) {
  if (stream) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value);
  } else {
    store(to, value);
  }
}

void rgb(const uint8_t* rgbx, int width, uint8_t* out) {
  const __m256i drop_fourth = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  const __m256i join = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7);
  int x = 0;
  // 24 bytes are meant, 32 written: the next pixels overwrite the rest, so it must be inside the
  // row.
  for (; x + 11 <= width; x += 8, rgbx += 32, out += 24) {
    store(out, _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(load(rgbx), drop_fourth), join));
  }
  for (; x < width; ++x, rgbx += 4, out += 3) std::memcpy(out, rgbx, 3);
}

ALWAYS_INLINE void split32(const uint8_t* rgbx, uint8_t* const out[3], int x) {
  const __m256i by_channel = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i lanes_apart = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i a = _mm256_shuffle_epi8(load(rgbx), by_channel);
  const __m256i b = _mm256_shuffle_epi8(load(rgbx + 32), by_channel);
  const __m256i c = _mm256_shuffle_epi8(load(rgbx + 64), by_channel);
  const __m256i d = _mm256_shuffle_epi8(load(rgbx + 96), by_channel);
  const __m256i rg_ab = _mm256_unpacklo_epi32(a, b), rg_cd = _mm256_unpacklo_epi32(c, d);
  const __m256i bx_ab = _mm256_unpackhi_epi32(a, b), bx_cd = _mm256_unpackhi_epi32(c, d);
  const __m256i red = _mm256_unpacklo_epi64(rg_ab, rg_cd);
  const __m256i green = _mm256_unpackhi_epi64(rg_ab, rg_cd);
  const __m256i blue = _mm256_unpacklo_epi64(bx_ab, bx_cd);
  store(out[0] + x, _mm256_permutevar8x32_epi32(red, lanes_apart));
  store(out[1] + x, _mm256_permutevar8x32_epi32(green, lanes_apart));
  store(out[2] + x, _mm256_permutevar8x32_epi32(blue, lanes_apart));
}

void planes(const uint8_t* rgbx, int width, uint8_t* const out[3]) {
  int x = 0;
  for (; x + 32 <= width; x += 32) split32(rgbx + static_cast<size_t>(x) * 4, out, x);
  if (x == width) return;
  if (width >= 32) {  // the last 32 pixels, some of them again
    split32(rgbx + static_cast<size_t>(width - 32) * 4, out, width - 32);
    return;
  }
  for (; x < width; ++x) {
    for (int c = 0; c < 3; ++c) out[c][x] = rgbx[static_cast<size_t>(x) * 4 + c];
  }
}

// The value of level i of several that were loaded at once, which costs less than a load for each.
template <typename T>
ALWAYS_INLINE T value_of(uint64_t levels, int i, const uint8_t* table) {
  T value;
  std::memcpy(&value, table + (levels >> (8 * i) & 0xff) * sizeof(T), sizeof(T));
  return value;
}

struct Value32 {
  using Type = uint32_t;
  static constexpr size_t kSize = 4;

  static ALWAYS_INLINE __m128i four(const uint8_t* from, const uint8_t* table) {
    uint32_t levels;
    std::memcpy(&levels, from, sizeof(levels));
    __m128i values = _mm_cvtsi32_si128(value_of<int32_t>(levels, 0, table));
    values = _mm_insert_epi32(values, value_of<int32_t>(levels, 1, table), 1);
    values = _mm_insert_epi32(values, value_of<int32_t>(levels, 2, table), 2);
    return _mm_insert_epi32(values, value_of<int32_t>(levels, 3, table), 3);
  }

  static ALWAYS_INLINE __m256i vector(const uint8_t* levels, const uint8_t* table) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(four(levels, table)),
                                   four(levels + 4, table), 1);
  }
};

struct Value16 {
  using Type = uint16_t;
  static constexpr size_t kSize = 2;

  static ALWAYS_INLINE __m128i eight(const uint8_t* from, const uint8_t* table) {
    uint64_t levels;
    std::memcpy(&levels, from, sizeof(levels));
    __m128i values = _mm_cvtsi32_si128(value_of<uint16_t>(levels, 0, table));
    values = _mm_insert_epi16(values, value_of<uint16_t>(levels, 1, table), 1);
    values = _mm_insert_epi16(values, value_of<uint16_t>(levels, 2, table), 2);
    values = _mm_insert_epi16(values, value_of<uint16_t>(levels, 3, table), 3);
    values = _mm_insert_epi16(values, value_of<uint16_t>(levels, 4, table), 4);
    values = _mm_insert_epi16(values, value_of<uint16_t>(levels, 5, table), 5);
    values = _mm_insert_epi16(values, value_of<uint16_t>(levels, 6, table), 6);
    return _mm_insert_epi16(values, value_of<uint16_t>(levels, 7, table), 7);
  }

  static ALWAYS_INLINE __m256i vector(const uint8_t* levels, const uint8_t* table) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(eight(levels, table)),
                                   eight(levels + 8, table), 1);
  }
};

template <typename Value>
void lookup(const uint8_t* levels, size_t count, const void* table_start, void* out_start,
            bool stream) {
  constexpr size_t kPerLine = kLine / Value::kSize;
  const auto* table = static_cast<const uint8_t*>(table_start);
  auto* out = static_cast<uint8_t*>(out_start);
  size_t head = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine / Value::kSize;
  stream = stream && reinterpret_cast<uintptr_t>(out) % Value::kSize == 0;
  if (!stream) head = 0;
  if (head > count) head = count;
  lookup_one_by_one<typename Value::Type>(levels, head, table, out, false);
  size_t i = head;
  for (; i + kPerLine <= count; i += kPerLine) {
    const __m256i a = Value::vector(levels + i, table);
    const __m256i b = Value::vector(levels + i + kPerLine / 2, table);
    store_vector(out + i * Value::kSize, a, stream);
    store_vector(out + i * Value::kSize + 32, b, stream);
  }
  lookup_one_by_one<typename Value::Type>(levels + i, count - i, table, out + i * Value::kSize,
                                          false);
}

// Eight elements of each plane become three vectors; in each, every element has one plane that it
// comes from.
void interleave32(const void* const planes[3], size_t count, void* out_start, bool stream) {
  const auto* red = static_cast<const uint8_t*>(planes[0]);
  const auto* green = static_cast<const uint8_t*>(planes[1]);
  const auto* blue = static_cast<const uint8_t*>(planes[2]);
  auto* out = static_cast<uint8_t*>(out_start);
  stream = stream && reinterpret_cast<uintptr_t>(out) % kLine == 0;
  const __m256i spread[3] = {_mm256_setr_epi32(0, 0, 0, 1, 1, 1, 2, 2),
                             _mm256_setr_epi32(2, 3, 3, 3, 4, 4, 4, 5),
                             _mm256_setr_epi32(5, 5, 6, 6, 6, 7, 7, 7)};
  size_t i = 0;
  for (; i + 8 <= count; i += 8, out += 96) {
    const __m256i r = load(red + i * 4), g = load(green + i * 4), b = load(blue + i * 4);
    __m256i rs[3], gs[3], bs[3];
    for (int v = 0; v < 3; ++v) {
      rs[v] = _mm256_permutevar8x32_epi32(r, spread[v]);
      gs[v] = _mm256_permutevar8x32_epi32(g, spread[v]);
      bs[v] = _mm256_permutevar8x32_epi32(b, spread[v]);
    }
    // Bits of the masks: the elements that are green (then blue).
    store_vector(out, _mm256_blend_epi32(_mm256_blend_epi32(rs[0], gs[0], 0x92), bs[0], 0x24),
                 stream);
    store_vector(out + 32, _mm256_blend_epi32(_mm256_blend_epi32(rs[1], gs[1], 0x24), bs[1], 0x49),
                 stream);
    store_vector(out + 64, _mm256_blend_epi32(_mm256_blend_epi32(rs[2], gs[2], 0x49), bs[2], 0x92),
                 stream);
  }
  const void* const rest[3] = {red + i * 4, green + i * 4, blue + i * 4};
  interleave_one_by_one<uint32_t>(rest, count - i, out, false);
}

ALWAYS_INLINE __m128i load16(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

void interleave16(const void* const planes[3], size_t count, void* out_start, bool stream) {
  const auto* red = static_cast<const uint8_t*>(planes[0]);
  const auto* green = static_cast<const uint8_t*>(planes[1]);
  const auto* blue = static_cast<const uint8_t*>(planes[2]);
  auto* out = static_cast<uint8_t*>(out_start);
  stream = stream && reinterpret_cast<uintptr_t>(out) % kLine == 0;
  // By the 16-bit elements of three vectors: which element of red, green and blue belongs there;
  // -1: another plane's.
  const __m128i pick[3][3] = {
      {_mm_setr_epi8(0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1, 4, 5, -1, -1),
       _mm_setr_epi8(-1, -1, 0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1, 4, 5),
       _mm_setr_epi8(-1, -1, -1, -1, 0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1)},
      {_mm_setr_epi8(-1, -1, 6, 7, -1, -1, -1, -1, 8, 9, -1, -1, -1, -1, 10, 11),
       _mm_setr_epi8(-1, -1, -1, -1, 6, 7, -1, -1, -1, -1, 8, 9, -1, -1, -1, -1),
       _mm_setr_epi8(4, 5, -1, -1, -1, -1, 6, 7, -1, -1, -1, -1, 8, 9, -1, -1)},
      {_mm_setr_epi8(-1, -1, -1, -1, 12, 13, -1, -1, -1, -1, 14, 15, -1, -1, -1, -1),
       _mm_setr_epi8(10, 11, -1, -1, -1, -1, 12, 13, -1, -1, -1, -1, 14, 15, -1, -1),
       _mm_setr_epi8(-1, -1, 10, 11, -1, -1, -1, -1, 12, 13, -1, -1, -1, -1, 14, 15)}};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i r = load16(red + i * 2), g = load16(green + i * 2), b = load16(blue + i * 2);
    for (int v = 0; v < 3; ++v, out += 16) {
      const __m128i rg =
          _mm_or_si128(_mm_shuffle_epi8(r, pick[v][0]), _mm_shuffle_epi8(g, pick[v][1]));
      const __m128i triples = _mm_or_si128(rg, _mm_shuffle_epi8(b, pick[v][2]));
      if (stream) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(out), triples);
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out), triples);
      }
    }
  }
  const void* const rest[3] = {red + i * 2, green + i * 2, blue + i * 2};
  interleave_one_by_one<uint16_t>(rest, count - i, out, false);
}

void publish() { _mm_sfence(); }

}  // namespace

const StoreKernels kAvx2Store = {rgb,          planes,       lookup<Value16>, lookup<Value32>,
                                 interleave16, interleave32, publish};

}  // namespace headrace
#endif  // __AVX2__
