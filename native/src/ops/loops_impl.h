// The loops of loops.h, for the instruction set of the file that includes this, which names its
// table HEADRACE_LOOPS. They are written so that compilers vectorize them; what they do not manage
// is written with intrinsics beside its portable form.
//
// Where Pillow computes in double, most loops need float or integers only. Each such place was
// compared with Pillow's formula for all of its inputs (native/tests/test_ops.cpp does so again).
#include <algorithm>
#include <cstring>

#include "loops.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headrace::ops {
namespace {

inline uint32_t pixel_of(int r, int g, int b) {
  return static_cast<uint32_t>(r | g << 8 | b << 16);
}
inline int red(uint32_t p) { return static_cast<int>(p & 0xFF); }
inline int green(uint32_t p) { return static_cast<int>(p >> 8 & 0xFF); }
inline int blue(uint32_t p) { return static_cast<int>(p >> 16 & 0xFF); }
inline int luma_of(uint32_t p) {
  return (red(p) * 19595 + green(p) * 38470 + blue(p) * 7471 + 0x8000) >> 16;
}

// Image.blend of one value: from `level` towards `value`, truncated.
inline int blend(int level, int value, float factor) {
  const float blended = static_cast<float>(level) + factor * static_cast<float>(value - level);
  return static_cast<int>(std::min(std::max(blended, 0.0f), 255.0f));
}

void blend_level(uint8_t* row, int width, int level, float factor) {
  for (int i = 0; i < 4 * width; ++i) row[i] = static_cast<uint8_t>(blend(level, row[i], factor));
}

void blend_luma(uint8_t* row, int width, float factor) {
  auto* pixels = reinterpret_cast<uint32_t*>(row);
  for (int x = 0; x < width; ++x) {
    const uint32_t p = pixels[x];
    const int level = luma_of(p);
    pixels[x] = pixel_of(blend(level, red(p), factor), blend(level, green(p), factor),
                         blend(level, blue(p), factor));
  }
}

void luma(uint8_t* row, int width) {
  auto* pixels = reinterpret_cast<uint32_t*>(row);
  for (int x = 0; x < width; ++x) pixels[x] = static_cast<uint32_t>(luma_of(pixels[x])) * 0x10101u;
}

uint64_t sum_luma(const uint8_t* row, int width) {
  const auto* pixels = reinterpret_cast<const uint32_t*>(row);
  uint32_t sum = 0;  // of at most 2^20 pixels (kMaxEdge)
  for (int x = 0; x < width; ++x) sum += static_cast<uint32_t>(luma_of(pixels[x]));
  return sum;
}

void permute(uint8_t* row, int width, const int order[3]) {
  auto* pixels = reinterpret_cast<uint32_t*>(row);
  const int r = 8 * order[0], g = 8 * order[1], b = 8 * order[2];
  for (int x = 0; x < width; ++x) {
    const uint32_t p = pixels[x];
    pixels[x] = (p >> r & 0xFF) | (p >> g & 0xFF) << 8 | (p >> b & 0xFF) << 16;
  }
}

// round(value * (1 - share / 65025)), where `share` is a product of two numbers up to 255.
inline int faded(int value, int share) {
  return static_cast<int>(static_cast<float>(value * (65025 - share)) * (1 / 65025.0f) + 0.5f);
}

// To HSV and back, with the hue moved by `shift`.
inline uint32_t with_hue_shifted(uint32_t p, int shift) {
  const int r = red(p), g = green(p), b = blue(p);
  const int high = std::max(r, std::max(g, b)), low = std::min(r, std::min(g, b));
  const int chroma = high - low;
  const float divisor = static_cast<float>(std::max(chroma, 1));
  // The hue in sixths of the circle is base + up / chroma - down / chroma, and one of the two
  // quotients is 0 or 1.
  const bool from_red = r == high, from_green = g == high;
  const int up = high - (from_red ? b : from_green ? r : g);
  const int down = high - (from_red ? g : from_green ? b : r);
  const float base = from_red ? 0.0f : from_green ? 2.0f : 4.0f;
  const float quotient = static_cast<float>(down == chroma ? up : down) / divisor;
  float turn = (down == chroma ? base - 1.0f + quotient : base + 1.0f - quotient) / 6.0f;
  turn += turn < 0.0f ? 1.0f : 0.0f;
  const int hue = (static_cast<int>(turn * 255.0f) + shift) & 0xFF;
  const float share = static_cast<float>(chroma) / static_cast<float>(std::max(high, 1));
  const int saturation = static_cast<int>(share * 255.0f);

  const int sextant = hue * 6 / 255, rest = hue * 6 - sextant * 255;
  const int s = sextant == 6 ? 0 : sextant;
  const int v = high;
  const int least = faded(v, saturation * 255);
  const int falling = faded(v, saturation * rest);
  const int rising = faded(v, saturation * (255 - rest));
  const int out_r = s == 0 || s == 5 ? v : s == 1 ? falling : s == 4 ? rising : least;
  const int out_g = s == 1 || s == 2 ? v : s == 3 ? falling : s == 0 ? rising : least;
  const int out_b = s == 3 || s == 4 ? v : s == 5 ? falling : s == 2 ? rising : least;
  return pixel_of(out_r, out_g, out_b);
}

void shift_hue(uint8_t* row, int width, int shift) {
  auto* pixels = reinterpret_cast<uint32_t*>(row);
  for (int x = 0; x < width; ++x) pixels[x] = with_hue_shifted(pixels[x], shift);
}

void look_up(uint8_t* row, int width, const uint8_t levels[3][256]) {
  for (int x = 0; x < width; ++x, row += 4) {
    row[0] = levels[0][row[0]];
    row[1] = levels[1][row[1]];
    row[2] = levels[2][row[2]];
  }
}

// ImageFilter.SMOOTH, 1 1 1 / 1 5 1 / 1 1 1 over 13, rounded. Pillow sums in float, but no sum is
// near enough to .5 for that to matter.
void sharpen(const uint8_t* __restrict above, const uint8_t* __restrict row,
             const uint8_t* __restrict below, int width, float factor, uint8_t* __restrict out) {
  for (int i = 4; i < 4 * (width - 1); ++i) {
    const int sum = above[i - 4] + above[i] + above[i + 4] + row[i - 4] + 5 * row[i] + row[i + 4] +
                    below[i - 4] + below[i] + below[i + 4];
    const int smooth = static_cast<int>(static_cast<uint32_t>(sum + 6) * 5042u >> 16);
    out[i] = static_cast<uint8_t>(blend(smooth, row[i], factor));
  }
}

inline bool is_inside(const ImageView& source, double x, double y) {
  return x >= 0.0 && x < source.width && y >= 0.0 && y < source.height;
}

inline const uint32_t* pixel_row(const ImageView& source, int y) {
  return reinterpret_cast<const uint32_t*>(source.row(y));
}

void nearest(const ImageView& source, const double* x, const double* y, int count, uint32_t* out) {
  for (int i = 0; i < count; ++i) {
    if (!is_inside(source, x[i], y[i])) continue;
    out[i] = pixel_row(source, static_cast<int>(y[i]))[static_cast<int>(x[i])];
  }
}

// Coordinates stay within 16 bits before the point and are never negative; sums wrap where the
// row ends.
void gather(const ImageView& source, int32_t x, int32_t y, int32_t dx, int32_t dy, int count,
            uint32_t* out) {
  auto at_x = static_cast<uint32_t>(x), at_y = static_cast<uint32_t>(y);
  const auto step_x = static_cast<uint32_t>(dx), step_y = static_cast<uint32_t>(dy);
  int i = 0;
#if defined(__AVX2__)
  if (source.stride * static_cast<size_t>(source.height) <= INT32_MAX) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i stride = _mm256_set1_epi32(static_cast<int>(source.stride));
    const __m256i next_x = _mm256_set1_epi32(static_cast<int>(8 * step_x));
    const __m256i next_y = _mm256_set1_epi32(static_cast<int>(8 * step_y));
    __m256i xs =
        _mm256_add_epi32(_mm256_set1_epi32(x), _mm256_mullo_epi32(lanes, _mm256_set1_epi32(dx)));
    __m256i ys =
        _mm256_add_epi32(_mm256_set1_epi32(y), _mm256_mullo_epi32(lanes, _mm256_set1_epi32(dy)));
    for (; i + 8 <= count; i += 8) {
      const __m256i rows = _mm256_mullo_epi32(_mm256_srli_epi32(ys, 16), stride);
      const __m256i columns = _mm256_slli_epi32(_mm256_srli_epi32(xs, 16), 2);
      const __m256i pixels = _mm256_i32gather_epi32(reinterpret_cast<const int*>(source.data),
                                                    _mm256_add_epi32(rows, columns), 1);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), pixels);
      xs = _mm256_add_epi32(xs, next_x);
      ys = _mm256_add_epi32(ys, next_y);
    }
    at_x += static_cast<uint32_t>(i) * step_x;
    at_y += static_cast<uint32_t>(i) * step_y;
  }
#endif
  for (; i < count; ++i, at_x += step_x, at_y += step_y) {
    out[i] = pixel_row(source, static_cast<int>(at_y >> 16))[at_x >> 16];
  }
}

// The channels of a pixel in double, as Pillow interpolates them.
#if defined(__AVX2__)
struct Channels {
  __m256d v;
};
inline Channels channels_of(uint32_t pixel) {
  return {_mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(static_cast<int>(pixel))))};
}
inline uint32_t truncated(Channels c) {
  const __m256d low = _mm256_max_pd(c.v, _mm256_setzero_pd());
  const __m128i levels = _mm256_cvttpd_epi32(_mm256_min_pd(low, _mm256_set1_pd(255.0)));
  const __m128i words = _mm_packus_epi32(levels, levels);
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
}
inline Channels operator+(Channels a, Channels b) { return {_mm256_add_pd(a.v, b.v)}; }
inline Channels operator-(Channels a, Channels b) { return {_mm256_sub_pd(a.v, b.v)}; }
inline Channels operator*(Channels a, double b) { return {_mm256_mul_pd(a.v, _mm256_set1_pd(b))}; }
#else
struct Channels {
  double r, g, b;
};
inline Channels channels_of(uint32_t p) {
  return {static_cast<double>(red(p)), static_cast<double>(green(p)), static_cast<double>(blue(p))};
}
inline int truncated(double v) { return static_cast<int>(std::min(std::max(v, 0.0), 255.0)); }
inline uint32_t truncated(Channels c) {
  return pixel_of(truncated(c.r), truncated(c.g), truncated(c.b));
}
inline Channels operator+(Channels a, Channels b) { return {a.r + b.r, a.g + b.g, a.b + b.b}; }
inline Channels operator-(Channels a, Channels b) { return {a.r - b.r, a.g - b.g, a.b - b.b}; }
inline Channels operator*(Channels a, double b) { return {a.r * b, a.g * b, a.b * b}; }
#endif

// The pixel at or before a place, between pixel centres, and the way from there to the place.
struct Tap {
  explicit Tap(double place)
      : index(place < 0.5 ? -1 : static_cast<int>(place - 0.5)), rest(place - 0.5 - index) {}
  int index;
  double rest;
};

inline int within(int index, int size) { return std::min(std::max(index, 0), size - 1); }

inline Channels linear(Channels a, Channels b, double rest) { return a + (b - a) * rest; }

// The order of the additions is Pillow's.
inline Channels cubic(Channels a, Channels b, Channels c, Channels d, double rest) {
  const Channels second = c - a;
  const Channels third = (a - b) * 2.0 + c - d;
  const Channels fourth = b - a - c + d;
  return b + (second + (third + fourth * rest) * rest) * rest;
}

void bilinear(const ImageView& source, const double* x, const double* y, int count, uint32_t* out) {
  for (int i = 0; i < count; ++i) {
    if (!is_inside(source, x[i], y[i])) continue;
    const Tap column(x[i]), row(y[i]);
    const int left = within(column.index, source.width);
    const int right = within(column.index + 1, source.width);
    Channels lines[2];
    for (int k = 0; k < 2; ++k) {
      const uint32_t* in = pixel_row(source, within(row.index + k, source.height));
      lines[k] = linear(channels_of(in[left]), channels_of(in[right]), column.rest);
    }
    out[i] = truncated(linear(lines[0], lines[1], row.rest));
  }
}

void bicubic(const ImageView& source, const double* x, const double* y, int count, uint32_t* out) {
  for (int i = 0; i < count; ++i) {
    if (!is_inside(source, x[i], y[i])) continue;
    const Tap column(x[i]), row(y[i]);
    int at[4];
    for (int k = 0; k < 4; ++k) at[k] = within(column.index - 1 + k, source.width);
    Channels lines[4];
    for (int k = 0; k < 4; ++k) {
      const uint32_t* in = pixel_row(source, within(row.index - 1 + k, source.height));
      lines[k] = cubic(channels_of(in[at[0]]), channels_of(in[at[1]]), channels_of(in[at[2]]),
                       channels_of(in[at[3]]), column.rest);
    }
    out[i] = truncated(cubic(lines[0], lines[1], lines[2], lines[3], row.rest));
  }
}

}  // namespace

const Loops HEADRACE_LOOPS = {blend_level, blend_luma, luma,    permute,  shift_hue, look_up,
                              sum_luma,    sharpen,    nearest, bilinear, bicubic,   gather};

}  // namespace headrace::ops
