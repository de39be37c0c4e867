// The loops of loops.h, for the instruction set of the file that includes this, which names its
// table HEADRACE_LOOPS. They are written so that compilers vectorize them; what they do not manage
// is written with intrinsics beside its portable form.
//
// Where Pillow computes in double, most loops need float or integers only. Each such place was
// compared with Pillow's formula for all of its inputs (native/tests/test_ops.cpp does so again).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "loops.h"
#include "vectors.h"

namespace headrace::ops {
namespace {

inline Ints luma_of(Ints p) {
  return (red(p) * 19595 + green(p) * 38470 + blue(p) * 7471 + 0x8000) >> 16;
}

// Image.blend of one channel: from `level` towards `value`, clipped and truncated.
inline Ints blend(Ints level, Ints value, float factor) {
  const Ints blended = truncated(to_float(level) + to_float(value - level) * factor);
  return smaller(larger(blended, Ints{}), Ints{} + 255);
}
inline Ints blend_pixels(Ints level, Ints p, float factor) {
  return pixel_of(blend(level, red(p), factor), blend(level, green(p), factor),
                  blend(level, blue(p), factor));
}

void blend_level(uint8_t* row, int width, int level, float factor) {
  for_each_pixel(row, width, [=](Ints p) { return blend_pixels(Ints{} + level, p, factor); });
}

void blend_luma(uint8_t* row, int width, float factor) {
  for_each_pixel(row, width, [=](Ints p) { return blend_pixels(luma_of(p), p, factor); });
}

// Image.blend: `to` becomes what lies `factor` of the way from `from` to it.
void blend_rows(const uint8_t* from, uint8_t* to, int width, float factor) {
  for (int x = 0; x < width; x += kLanes) {
    Ints a, b;
    std::memcpy(&a, from + 4 * x, kVectorBytes);
    std::memcpy(&b, to + 4 * x, kVectorBytes);
    b = pixel_of(blend(red(a), red(b), factor), blend(green(a), green(b), factor),
                 blend(blue(a), blue(b), factor));
    std::memcpy(to + 4 * x, &b, size_t{4} * std::min(kLanes, width - x));
  }
}

void luma(uint8_t* row, int width) {
  for_each_pixel(row, width, [](Ints p) { return luma_of(p) * 0x10101; });
}

uint64_t sum_luma(const uint8_t* row, int width) {
  return sum_pixels(row, width, [](Ints p) { return luma_of(p); });
}

void permute(uint8_t* row, int width, const int order[3]) {
  const int r = 8 * order[0], g = 8 * order[1], b = 8 * order[2];
  for_each_pixel(row, width,
                 [=](Ints p) { return pixel_of(p >> r & 0xFF, p >> g & 0xFF, p >> b & 0xFF); });
}

// round(value * (1 - share / 65025)), where `share` is a product of two numbers up to 255.
inline Ints faded(Ints value, Ints share) {
  return truncated(to_float(value * (65025 - share)) * (1 / 65025.0f) + 0.5f);
}

// The pixel of a sixth of the circle of hues: its highest channel, those that fall or rise along
// the sixth, and the lowest. Sextant 6 is 0.
inline Ints in_sextant(Ints sextant, Ints high, Ints falling, Ints rising, Ints least) {
  const Ints in0 = (sextant == 0) | (sextant == 6), in1 = sextant == 1, in2 = sextant == 2;
  const Ints in3 = sextant == 3, in4 = sextant == 4, in5 = sextant == 5;
  return pixel_of(choose(in0 | in5, high, choose(in1, falling, choose(in4, rising, least))),
                  choose(in1 | in2, high, choose(in3, falling, choose(in0, rising, least))),
                  choose(in3 | in4, high, choose(in5, falling, choose(in2, rising, least))));
}

// To HSV and back, with the hue moved by `shift`.
inline Ints with_hue_shifted(Ints p, int shift) {
  const Ints r = red(p), g = green(p), b = blue(p);
  const Ints high = larger(r, larger(g, b)), low = smaller(r, smaller(g, b));
  const Ints chroma = high - low, one = Ints{} + 1;
  // The hue in sixths of the circle is base + up / chroma - down / chroma, and one of the two
  // quotients is 0 or 1.
  const Ints from_red = r == high, from_green = g == high;
  const Ints up = high - choose(from_red, b, choose(from_green, r, g));
  const Ints down = high - choose(from_red, g, choose(from_green, b, r));
  const Ints base = ~from_red & (4 + 2 * from_green);
  const Ints from_up = down == chroma;
  const Ints sign = from_up | one;
  const Floats quotient = to_float(choose(from_up, up, down)) / to_float(larger(chroma, one));
  Floats turn = (to_float(base + sign) - to_float(sign) * quotient) / 6.0f;
  turn += to_float(from_red & (g < b) & 1);  // where it is negative
  const Ints hue = (truncated(turn * 255.0f) + shift) & 0xFF;
  const Ints saturation = truncated(to_float(chroma) / to_float(larger(high, one)) * 255.0f);

  const Ints sextant = (hue * 6 + 1) * 257 >> 16;  // hue * 6 / 255
  const Ints rest = hue * 6 - sextant * 255;
  const Ints least = faded(high, saturation * 255);
  const Ints falling = faded(high, saturation * rest);
  const Ints rising = faded(high, saturation * (255 - rest));
  return in_sextant(sextant, high, falling, rising, least);
}

void shift_hue(uint8_t* row, int width, int shift) {
  for_each_pixel(row, width, [=](Ints p) { return with_hue_shifted(p, shift); });
}

#if defined(__AVX512VBMI__)
// A table of 256 bytes in four registers.
struct ByteTable {
  explicit ByteTable(const uint8_t* table)
      : quarter{_mm512_loadu_si512(table), _mm512_loadu_si512(table + 64),
                _mm512_loadu_si512(table + 128), _mm512_loadu_si512(table + 192)} {}

  __m512i operator[](__m512i at) const {
    const __m512i low = _mm512_permutex2var_epi8(quarter[0], at, quarter[1]);
    const __m512i high = _mm512_permutex2var_epi8(quarter[2], at, quarter[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(at), low, high);
  }

  __m512i quarter[4];
};

void look_up(uint8_t* row, int width, const uint8_t levels[3][256]) {
  const ByteTable reds(levels[0]), greens(levels[1]), blues(levels[2]);
  for_each_pixel(row, width, [&](Ints p) {
    const auto at = reinterpret_cast<__m512i>(p);
    const __m512i two = _mm512_mask_blend_epi8(0x2222222222222222, reds[at], greens[at]);
    return reinterpret_cast<Ints>(_mm512_mask_blend_epi8(0x4444444444444444, two, blues[at]));
  });
}
#else
void look_up(uint8_t* row, int width, const uint8_t levels[3][256]) {
  for (int x = 0; x < width; ++x, row += 4) {
    const uint8_t pixel[4] = {levels[0][row[0]], levels[1][row[1]], levels[2][row[2]], 0};
    std::memcpy(row, pixel, 4);
  }
}
#endif

// Sums of two channels of a pixel, 16 bits for each.
struct PairSums {
  Ints red_blue = {};
  Ints green = {};

  void add(const uint8_t* pixels, int weight) {
    Ints p;
    std::memcpy(&p, pixels, kVectorBytes);
    red_blue += (p & 0xFF00FF) * weight;
    green += (p >> 8 & 0xFF) * weight;
  }
};

// ImageFilter.SMOOTH, 1 1 1 / 1 5 1 / 1 1 1 over 13, rounded. Pillow sums in float, but no sum is
// near enough to .5 for that to matter.
inline Ints smoothed(Ints sum) { return (sum + 6) * 5042 >> 16; }  // (sum + 6) / 13

// Pixels 1 to width - 2 of `out`: blend(smoothed, level) of each channel of `row`.
template <typename Blend>
inline void sharpen_row(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
                        uint8_t* out, const Blend& blend) {
  for (int x = 1; x < width - 1; x += kLanes) {
    PairSums sums;
    for (const uint8_t* line : {above + 4 * x, row + 4 * x, below + 4 * x}) {
      sums.add(line - 4, 1);
      sums.add(line, line == row + 4 * x ? 5 : 1);
      sums.add(line + 4, 1);
    }
    Ints p;
    std::memcpy(&p, row + 4 * x, kVectorBytes);
    p = pixel_of(blend(smoothed(sums.red_blue & 0xFFFF), red(p)),
                 blend(smoothed(sums.green), green(p)),
                 blend(smoothed(sums.red_blue >> 16 & 0xFFFF), blue(p)));
    std::memcpy(out + 4 * x, &p, std::min<size_t>(kVectorBytes, size_t{4} * (width - 1 - x)));
  }
}

void sharpen(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
             float factor, uint8_t* out) {
  sharpen_row(above, row, below, width, out,
              [=](Ints smooth, Ints level) { return blend(smooth, level, factor); });
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
  return {static_cast<double>(p & 0xFF), static_cast<double>(p >> 8 & 0xFF),
          static_cast<double>(p >> 16 & 0xFF)};
}
inline uint32_t truncated(double v) {
  return static_cast<uint32_t>(std::min(std::max(v, 0.0), 255.0));
}
inline uint32_t truncated(Channels c) {
  return truncated(c.r) | truncated(c.g) << 8 | truncated(c.b) << 16;
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

inline Floats load_floats(const float* from) {
  Floats v;
  std::memcpy(&v, from, kVectorBytes);
  return v;
}

// The sum of rows 0 to last, one float after the other: opposite rows share one weight.
template <typename Row>
inline Floats symmetric_sum(const Row& row, const float* kernel, int last) {
  const int middle = last / 2;
  Floats sum = load_floats(row(middle)) * kernel[middle];
  for (int i = 0; i < middle; ++i)
    sum += (load_floats(row(i)) + load_floats(row(last - i))) * kernel[i];
  return sum;
}

void convolve_row(const float* padded, const float* kernel, int size, int width, float* out) {
  for (int i = 0; i < 4 * width; i += kLanes) {
    const auto tap_row = [=](int tap) { return padded + i + 4 * tap; };
    const Floats sum = symmetric_sum(tap_row, kernel, size - 1);
    std::memcpy(out + i, &sum, kVectorBytes);
  }
}

// Values of one row that are computed together: one chain of dependent additions alone would leave
// the processor waiting.
constexpr int kChains = 8;

// Values that wait until there are enough of them for all chains.
struct Doubtful {
  void add(int byte) {
    bytes[count++] = byte;
    if (count == kChains) finish();
  }

  void finish() {
    if (count == 0) return;
    std::fill(bytes + count, bytes + kChains, bytes[0]);
    float total[kChains] = {};
    const float* product = job.products;
    for (int i = 0; i < job.size_y; ++i) {
      const float* row = job.padded[i];
      for (int j = 0; j < job.size_x; ++j, ++product, row += 4) {
        for (int k = 0; k < kChains; ++k) total[k] = std::fma(row[bytes[k]], *product, total[k]);
      }
    }
    for (int k = 0; k < kChains; ++k)
      out[bytes[k]] = static_cast<uint8_t>(static_cast<int>(std::nearbyint(total[k])));
    count = 0;
  }

  const GaussianRow& job;
  uint8_t* out;
  int bytes[kChains];
  int count;
};

void gaussian_row(const GaussianRow& job, int width, uint8_t* out) {
  Doubtful doubtful = {job, out, {}, 0};
  const float* const* rows = job.convolved + job.skipped;
  const int last = job.size_y - 1 - 2 * job.skipped;
  for (int i = 0; i < 4 * width; i += kLanes) {
    const auto row = [=](int tap) { return rows[tap] + i; };
    const Floats sum = symmetric_sum(row, job.kernel_y + job.skipped, last);
    const Ints rounded = truncated(sum + 0.5f);  // no sum is negative
    // From the nearest half, which decides how a value is rounded.
    const Floats from_half = sum - to_float(truncated(sum)) - 0.5f;
    const Ints unsure = (from_half < job.tolerance) & (from_half > -job.tolerance);
    const auto levels =
        __builtin_convertvector(rounded, uint8_t __attribute__((vector_size(kLanes))));
    const int count = std::min(kLanes, 4 * width - i);
    std::memcpy(out + i, &levels, count);
    int any = 0;
    for (int k = 0; k < kLanes; ++k) any |= unsure[k];
    if (any == 0) continue;
    for (int k = 0; k < count; ++k)
      if (unsure[k] != 0 && (k & 3) != 3) doubtful.add(i + k);
  }
  doubtful.finish();
}

void box_row(uint32_t* __restrict sums, const uint8_t* __restrict before,
             const uint8_t* __restrict last, const uint8_t* __restrict after, int bytes,
             uint32_t weight, uint32_t edge_weight, uint8_t* __restrict out) {
  for (int i = 0; i < bytes; ++i) {
    sums[i] += static_cast<uint32_t>(last[i] - before[i]);
    const uint32_t edges = static_cast<uint32_t>(before[i] + after[i]);
    out[i] = static_cast<uint8_t>((sums[i] * weight + edges * edge_weight + (1u << 23)) >> 24);
  }
}

#include "opencv_loops_impl.h"

}  // namespace

const Loops HEADRACE_LOOPS = {blend_level,
                              blend_luma,
                              blend_rows,
                              luma,
                              permute,
                              shift_hue,
                              look_up,
                              sum_luma,
                              torch_blend_luma,
                              torch_luma,
                              torch_shift_hue,
                              torch_sum_luma,
                              sharpen,
                              nearest,
                              bilinear,
                              bicubic,
                              gather,
                              convolve_row,
                              gaussian_row,
                              box_row,
                              torch_sharpen,
                              grid_bilinear,
                              grid_nearest,
                              mix_rows,
                              opencv_luma,
                              opencv_sum_luma,
                              opencv_blend_luma,
                              opencv_to_hsv,
                              opencv_from_hsv_row,
                              opencv_warp_fixed,
                              opencv_warp_floats,
                              opencv_blur_row,
                              opencv_blur_column,
                              opencv_filter_row,
                              opencv_filter_column};

}  // namespace headrace::ops
