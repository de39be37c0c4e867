// The loops of OpenCV's arithmetic: part of loops_impl.h, which includes this.
//
// Compilers have fused OpenCV's multiplications and additions, which round once then.

#include "torch_loops_impl.h"  // and the helpers that it shares with these

inline Ints opencv_luma_of(Ints p) {
  return (red(p) * 9798 + green(p) * 19235 + blue(p) * 3735 + (1 << 14)) >> 15;
}

void opencv_luma(uint8_t* row, int width) {
  for_each_pixel(row, width, [](Ints p) { return opencv_luma_of(p) * 0x10101; });
}

uint64_t opencv_sum_luma(const uint8_t* row, int width) {
  return sum_pixels(row, width, [](Ints p) { return opencv_luma_of(p); });
}

void opencv_blend_luma(uint8_t* row, int width, float factor, float rest, bool numkong) {
  for_each_pixel(row, width, [=](Ints p) {
    const Floats gray = to_float(opencv_luma_of(p));
    const auto blended = [=](Ints level) {
      const Floats value = to_float(level);
      const Ints sum = rounded_to_even(numkong ? fused(gray, all(rest), value * factor)
                                               : fused(value, all(factor), gray * rest));
      return smaller(larger(sum, Ints{}), Ints{} + 255);
    };
    return pixel_of(blended(red(p)), blended(green(p)), blended(blue(p)));
  });
}

// --- HSV: hues of 0 to 179 ---

inline Ints divided(Ints value, const int32_t* table, Ints by) {
  Ints factors;
  for (int i = 0; i < kLanes; ++i) factors[i] = table[by[i]];
  return (value * factors + (1 << 11)) >> 12;
}

void opencv_to_hsv(uint8_t* row, int width, const int32_t saturations[256],
                   const int32_t hues[256]) {
  for_each_pixel(row, width, [=](Ints p) {
    const Ints r = red(p), g = green(p), b = blue(p);
    const Ints high = larger(r, larger(g, b)), range = high - smaller(r, smaller(g, b));
    const Ints sixths =
        choose(high == r, g - b, choose(high == g, b - r + 2 * range, r - g + 4 * range));
    const Ints hue = divided(sixths, hues, range);
    return pixel_of(hue + ((hue < 0) & 180), divided(range, saturations, high), high);
  });
}

// OpenCV rounds what it computes pixel by pixel, and truncates what it computes in vectors.
inline Ints opencv_from_hsv(Ints p, bool rounded) {
  const Floats one = all(1.0f);
  const Floats hue = to_float(red(p)), s = to_float(green(p)) * (1.0f / 255.0f),
               v = to_float(blue(p)) * (1.0f / 255.0f);
  constexpr float kScale = 6.0f / 180;
  const Ints sextant = truncated(hue * kScale);  // over 5 for hues over 179
  const Floats part = hue * kScale - to_float(sextant);
  const Floats least = v * (one - s), falling = v * fused(-s, part, one);
  const Floats rising = v * fused(-s, one - part, one);
  const auto level = [=](Floats value) {
    const Floats scaled = value * 255.0f;
    return smaller(larger(rounded ? rounded_to_even(scaled) : truncated(scaled), Ints{}),
                   Ints{} + 255);
  };
  const Ints turn = choose(sextant >= 6, sextant - 6, sextant);
  return in_sextant(turn, level(v), level(falling), level(rising), level(least));
}

void opencv_from_hsv_row(uint8_t* row, int width, bool rounded) {
  for_each_pixel(row, width, [=](Ints p) { return opencv_from_hsv(p, rounded); });
}

// --- rows of warps ---

// The pixels at these places, and what is seen around the source.
inline Ints opencv_pixels_at(const ImageView& source, const OpencvAround& around, Ints x, Ints y) {
  if (around.mode != PaddingMode::kConstant) {
    const Ints outside = (x < 0) | (x >= source.width) | (y < 0) | (y >= source.height);
    int any = 0;
    for (int k = 0; k < kLanes; ++k) any |= outside[k];
    for (int k = 0; any != 0 && k < kLanes; ++k) {
      x[k] = padded_index(x[k], source.width, around.mode);
      y[k] = padded_index(y[k], source.height, around.mode);
    }
  }
  Ints inside;
  const Ints pixels = pixels_at(source, x, y, &inside);
  return choose(inside, pixels, Ints{} + around.fill);
}

// The pixels that `blend` makes of four: upper left, upper right, lower left, lower right.
template <typename Blend>
inline Ints opencv_blended(const ImageView& source, const OpencvAround& around, Ints x, Ints y,
                           const Blend& blend) {
  Ints p[4];
  for (int k = 0; k < 4; ++k) p[k] = opencv_pixels_at(source, around, x + (k & 1), y + (k >> 1));
  const auto channel = [&](Ints (*of)(Ints)) {
    return blend(of(p[0]), of(p[1]), of(p[2]), of(p[3]));
  };
  return pixel_of(channel(red), channel(green), channel(blue));
}

// As OpenCV 4 limits places.
inline Ints limited(Ints place) { return larger(smaller(place, Ints{} + 32767), Ints{} - 32768); }

void opencv_warp_fixed(const ImageView& source, const OpencvAround& around, bool linear,
                       const int32_t* xs, const int32_t* ys, int count, uint32_t* out) {
  for (int i = 0; i < count; i += kLanes) {
    Ints x, y;
    std::memcpy(&x, xs + i, kVectorBytes);
    std::memcpy(&y, ys + i, kVectorBytes);
    Ints pixels;
    if (linear) {
      const Ints fx = x & 31, fy = y & 31;
      const Ints a = (32 - fx) * (32 - fy), b = fx * (32 - fy), c = (32 - fx) * fy, d = fx * fy;
      pixels = opencv_blended(source, around, limited(x >> 5), limited(y >> 5),
                              [&](Ints p, Ints q, Ints r, Ints s) {
                                return (p * a + q * b + r * c + s * d + 512) >> 10;
                              });
    } else {
      pixels = opencv_pixels_at(source, around, limited(x), limited(y));
    }
    store_pixels(pixels, i, count, out);
  }
}

// A plane's height over the columns of a row. In the last ones the sum is rounded otherwise.
inline Floats opencv_plane(const float m[3], float y, Floats column, bool last) {
  const float row = y * m[1];
  return last ? fused(column, all(m[0]), all(row)) + m[2]
              : fused(column, all(m[0]), all(row + m[2]));
}

void opencv_warp_floats(const ImageView& source, const OpencvAround& around, const OpencvRow& row,
                        int begin, int end, bool last, uint32_t* out) {
  // What is further outside looks the same.
  const auto bounded = [](Floats place) {
    place = place > 1e6f ? all(1e6f) : place;
    return place > -1e6f ? place : all(-1e6f);
  };
  Ints lanes;
  for (int k = 0; k < kLanes; ++k) lanes[k] = k;
  for (int i = begin; i < end; i += kLanes) {
    const Floats column = to_float(lanes + i);
    Floats x = opencv_plane(row.m, row.y, column, last);
    Floats y = opencv_plane(row.m + 3, row.y, column, last);
    if (row.perspective) {
      const Floats depth = opencv_plane(row.m + 6, row.y, column, last);
      x /= depth;
      y /= depth;
    }
    x = bounded(x);
    y = bounded(y);
    Ints pixels;
    if (row.linear) {
      const Ints left = floor_of(x), top = floor_of(y);
      const Floats fx = x - to_float(left), fy = y - to_float(top);
      const auto between = [](Floats part, Floats from, Floats to) {
        return fused(part, to - from, from);
      };
      pixels = opencv_blended(source, around, left, top, [&](Ints p, Ints q, Ints r, Ints s) {
        const Floats upper = between(fx, to_float(p), to_float(q));
        const Floats lower = between(fx, to_float(r), to_float(s));
        return smaller(larger(rounded_to_even(between(fy, upper, lower)), Ints{}), Ints{} + 255);
      });
    } else {
      pixels = opencv_pixels_at(source, around, rounded_to_even(x), rounded_to_even(y));
    }
    store_pixels(pixels, i, end, out);
  }
}

// --- a Gaussian blur with weights of 8 bits ---

void opencv_blur_row(const uint8_t* __restrict padded, const uint16_t* __restrict weights, int size,
                     int width, uint16_t* __restrict out) {
  const int middle = size / 2;
  for (int i = 0; i < 4 * width; ++i)
    out[i] = static_cast<uint16_t>(padded[i + 4 * middle] * weights[middle]);
  for (int k = 0; k < middle; ++k) {
    const uint8_t *left = padded + 4 * k, *right = padded + 4 * (size - 1 - k);
    const uint16_t weight = weights[k];
    if (weight == 0) continue;
    for (int i = 0; i < 4 * width; ++i)
      out[i] = static_cast<uint16_t>(out[i] + (left[i] + right[i]) * weight);
  }
}

void opencv_blur_column(const uint16_t* const* rows, const uint16_t* weights, int size, int width,
                        uint32_t* __restrict sums, uint8_t* __restrict out) {
  const int middle = size / 2;
  const uint16_t* const own = rows[middle];
  for (int i = 0; i < 4 * width; ++i) sums[i] = uint32_t{own[i]} * weights[middle] + (1u << 15);
  for (int k = 0; k < middle; ++k) {
    const uint16_t *above = rows[k], *below = rows[size - 1 - k];
    const uint32_t weight = weights[k];
    if (weight == 0) continue;
    for (int i = 0; i < 4 * width; ++i) sums[i] += (uint32_t{above[i]} + below[i]) * weight;
  }
  for (int i = 0; i < 4 * width; ++i)
    out[i] = static_cast<uint8_t>(std::min<uint32_t>(sums[i] >> 16, 255));
}

// --- the same in float32 ---

// Which sums of a row OpenCV computes in vectors of `vector` values, with fused multiply-adds.
class Fusing {
 public:
  Fusing(const OpencvValues& values, int width, int vector)
      : channels_(values.channels), end_(channels_ * width / vector * vector) {
    for (int k = 0; k < kLanes; ++k) {
      const int channel = channels_ == 1 ? 0 : values.blue_first ? 2 - k % 4 : k % 4;
      numbers_[k] = channels_ * (k / 4) + channel;
    }
  }

  // Of the values from i on, of 4 for each pixel: whether all are fused, and each of them.
  bool all(int i) const { return channels_ * ((i + kLanes) / 4) <= end_; }
  Ints each(int i) const { return numbers_ + channels_ * (i / 4) < end_; }

 private:
  int channels_, end_;
  Ints numbers_;
};

struct FilterSum {
  Floats fused_sum = {}, plain_sum = {};

  void add(Floats value, float weight, bool is_fused) {
    fused_sum = fused(value, all(weight), fused_sum);
    if (!is_fused) plain_sum += value * weight;
  }
  Floats total(const Fusing& fusing, int i, bool is_fused) const {
    return is_fused ? fused_sum : choose(fusing.each(i), fused_sum, plain_sum);
  }
};

// So many sums at once keep the processor busy: each waits for its last product.
constexpr int kSums = 4;

// One tap after the other.
void opencv_filter_row(const uint8_t* padded, const OpencvFilter& filter, int width,
                       float* __restrict levels, float* out) {
  const Fusing fusing(filter.values, width, 32);
  for (int i = 0; i < 4 * (width + filter.size - 1); ++i) levels[i] = padded[i];
  int i = 0;
  for (; i + kSums * kLanes <= 4 * width && fusing.all(i + (kSums - 1) * kLanes);
       i += kSums * kLanes) {
    Floats sums[kSums] = {};
    for (int k = 0; k < filter.size; ++k)
      for (int j = 0; j < kSums; ++j)
        sums[j] =
            fused(load_floats(levels + i + j * kLanes + 4 * k), all(filter.weights[k]), sums[j]);
    std::memcpy(out + i, sums, sizeof sums);
  }
  for (; i < 4 * width; i += kLanes) {
    const bool is_fused = fusing.all(i);
    FilterSum sum;
    for (int k = 0; k < filter.size; ++k)
      sum.add(load_floats(levels + i + 4 * k), filter.weights[k], is_fused);
    const Floats total = sum.total(fusing, i, is_fused);
    std::memcpy(out + i, &total, kVectorBytes);
  }
}

inline void store_rounded(Floats sum, int count, uint8_t* out) {
  const Ints rounded = smaller(rounded_to_even(sum), Ints{} + 255);
  const auto levels =
      __builtin_convertvector(rounded, uint8_t __attribute__((vector_size(kLanes))));
  std::memcpy(out, &levels, static_cast<size_t>(std::min(kLanes, count)));
}

// The middle first, then pairs of rows.
void opencv_filter_column(const float* const* rows, const OpencvFilter& filter, int width,
                          uint8_t* out) {
  const Fusing fusing(filter.values, width, 4);
  const int middle = filter.size / 2;
  const auto pair = [=](int k, int i) {
    return load_floats(rows[middle - k] + i) + load_floats(rows[middle + k] + i);
  };
  int i = 0;
  for (; i + kSums * kLanes <= 4 * width && fusing.all(i + (kSums - 1) * kLanes);
       i += kSums * kLanes) {
    Floats sums[kSums];
    for (int j = 0; j < kSums; ++j)
      sums[j] = load_floats(rows[middle] + i + j * kLanes) * filter.weights[middle];
    for (int k = 1; k <= middle; ++k)
      for (int j = 0; j < kSums; ++j)
        sums[j] = fused(pair(k, i + j * kLanes), all(filter.weights[middle + k]), sums[j]);
    for (int j = 0; j < kSums; ++j) store_rounded(sums[j], kLanes, out + i + j * kLanes);
  }
  for (; i < 4 * width; i += kLanes) {
    const bool is_fused = fusing.all(i);
    FilterSum sum;
    sum.add(load_floats(rows[middle] + i), filter.weights[middle], is_fused);
    for (int k = 1; k <= middle; ++k) sum.add(pair(k, i), filter.weights[middle + k], is_fused);
    store_rounded(sum.total(fusing, i, is_fused), 4 * width - i, out + i);
  }
}
