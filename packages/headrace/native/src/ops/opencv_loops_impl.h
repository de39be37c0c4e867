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

// --- blends of four pixels ---

// What lies after the last pixel in the arrays was never written.
template <typename Lanes, typename Value>
inline Lanes lanes_of(const Value* values, int count) {
  Lanes lanes{};
  std::memcpy(&lanes, values, sizeof(Value) * std::min(kLanes, count));
  return lanes;
}

template <typename Blend>
inline void blend_corners(const OpencvCorners& corners, int count, uint32_t* out,
                          const Blend& blend) {
  for (int i = 0; i < count; i += kLanes) {
    Ints p[4];
    for (int k = 0; k < 4; ++k) p[k] = lanes_of<Ints>(corners.pixels[k] + i, count - i);
    const Ints pixels = blend(p, i);
    std::memcpy(out + i, &pixels, size_t{4} * std::min(kLanes, count - i));
  }
}

void opencv_blend_fixed(const OpencvCorners& corners, int count, uint32_t* out) {
  blend_corners(corners, count, out, [&](const Ints* p, int i) {
    const Ints fx = lanes_of<Ints>(corners.fixed_x + i, count - i);
    const Ints fy = lanes_of<Ints>(corners.fixed_y + i, count - i);
    const Ints a = (32 - fx) * (32 - fy), b = fx * (32 - fy), c = (32 - fx) * fy, d = fx * fy;
    const auto channel = [&](Ints (*of)(Ints)) {
      return (of(p[0]) * a + of(p[1]) * b + of(p[2]) * c + of(p[3]) * d + 512) >> 10;
    };
    return pixel_of(channel(red), channel(green), channel(blue));
  });
}

void opencv_blend_floats(const OpencvCorners& corners, int count, uint32_t* out) {
  blend_corners(corners, count, out, [&](const Ints* p, int i) {
    const Floats fx = lanes_of<Floats>(corners.x + i, count - i);
    const Floats fy = lanes_of<Floats>(corners.y + i, count - i);
    const auto between = [](Floats part, Floats from, Floats to) {
      return fused(part, to - from, from);
    };
    const auto channel = [&](Ints (*of)(Ints)) {
      const Floats upper = between(fx, to_float(of(p[0])), to_float(of(p[1])));
      const Floats lower = between(fx, to_float(of(p[2])), to_float(of(p[3])));
      return smaller(larger(rounded_to_even(between(fy, upper, lower)), Ints{}), Ints{} + 255);
    };
    return pixel_of(channel(red), channel(green), channel(blue));
  });
}

// Where the pixels of a row are taken from, from column `first` on: a plane's height over it. In
// the last columns the sum is rounded otherwise.
void opencv_plane(const float m[3], float y, int first, int count, bool last, float* out) {
  const float row = y * m[1];
  for (int i = 0; i < count; i += kLanes) {
    Floats x;
    for (int k = 0; k < kLanes; ++k) x[k] = static_cast<float>(first + i + k);
    const Floats place =
        last ? fused(x, all(m[0]), all(row)) + m[2] : fused(x, all(m[0]), all(row + m[2]));
    std::memcpy(out + i, &place, size_t{4} * std::min(kLanes, count - i));
  }
}

// Places of at most a million pixels become pixels, and parts of one to the right and below.
void opencv_split(float* places, int count, bool nearest, int32_t* pixels) {
  for (int i = 0; i < count; i += kLanes) {
    Floats place = lanes_of<Floats>(places + i, count - i);
    place = place > 1e6f ? all(1e6f) : place;
    place = place > -1e6f ? place : all(-1e6f);
    const Ints pixel = nearest ? rounded_to_even(place) : floor_of(place);
    const Floats part = place - to_float(pixel);
    std::memcpy(pixels + i, &pixel, kVectorBytes);
    std::memcpy(places + i, &part, kVectorBytes);
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
