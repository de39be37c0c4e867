// The loops of torch's own arithmetic on uint8 tensors: part of loops_impl.h, which includes this
// by opencv_loops_impl.h.
//
// torch's kernels round after each operation, but for those that are written as fused below.

inline Floats all(float value) { return Floats{} + value; }

inline Ints floor_of(Floats v) {
  const Ints towards_zero = truncated(v);
  return towards_zero + (to_float(towards_zero) > v);
}

// The nearest integer, of two the even one; |v| < 2^22.
inline Ints rounded_to_even(Floats v) {
  constexpr float kNoFractions = 12582912.0f;  // 1.5 * 2^23
  return truncated((v + kNoFractions) - kNoFractions);
}

inline Ints clipped(Floats v) { return smaller(larger(truncated(v), Ints{}), Ints{} + 255); }

inline Floats choose(Ints condition, Floats yes, Floats no) { return condition ? yes : no; }

inline Ints torch_luma_of(Ints p, bool v2) {
  const Floats r = to_float(red(p)) * 0.2989f, g = to_float(green(p)), b = to_float(blue(p));
  if (v2) return truncated(fused(b, all(0.114f), fused(g, all(0.587f), r)));
  return truncated((r + g * 0.587f) + b * 0.114f);
}

void torch_luma(uint8_t* row, int width) {
  for_each_pixel(row, width, [](Ints p) { return torch_luma_of(p, true) * 0x10101; });
}

uint64_t torch_sum_luma(const uint8_t* row, int width, bool v2) {
  return sum_pixels(row, width, [=](Ints p) { return torch_luma_of(p, v2); });
}

void torch_blend_luma(uint8_t* row, int width, const TorchBlend& blend) {
  const auto channel = [&](Ints level, Floats luma) {
    const Floats scaled = to_float(level) * blend.factor;
    return clipped(blend.v2 ? fused(luma, all(blend.rest), scaled) : scaled + luma * blend.rest);
  };
  for_each_pixel(row, width, [&](Ints p) {
    const Floats luma = to_float(torch_luma_of(p, blend.v2));
    return pixel_of(channel(red(p), luma), channel(green(p), luma), channel(blue(p), luma));
  });
}

// torch convolves in float32; its sums are rounded, and none is near enough to .5 for that to
// matter, as in `sharpen`.
void torch_sharpen(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
                   const TorchBlend& blend, uint8_t* out) {
  sharpen_row(above, row, below, width, out, [&](Ints smooth, Ints level) {
    const Floats value = to_float(level), degenerate = to_float(smooth);
    return clipped(blend.v2 ? fused(degenerate - value, all(blend.rest), value)
                            : value * blend.factor + degenerate * blend.rest);
  });
}

// A value within [0, 1] as a level.
inline Ints level_of(Floats value) {
  const Floats clipped =
      choose(value < 0.0f, Floats{}, choose(value > 1.0f, Floats{} + 1.0f, value));
  return truncated(clipped * 255.999f);
}

// To HSV and back, with the hue moved by `shift`, -0.5 to 0.5.
inline Ints torch_with_hue_shifted(Ints p, float shift) {
  const Floats one = Floats{} + 1.0f;
  const float unit = 1.0f / 255.0f;
  const Floats r = to_float(red(p)) * unit, g = to_float(green(p)) * unit,
               b = to_float(blue(p)) * unit;
  const Floats high = to_float(larger(red(p), larger(green(p), blue(p)))) * unit;
  const Floats low = to_float(smaller(red(p), smaller(green(p), blue(p)))) * unit;
  const Ints gray = high == low;
  const Floats range = high - low, divisor = choose(gray, one, range);
  const Floats saturation = range / choose(gray, one, high);
  const Floats rc = (high - r) / divisor, gc = (high - g) / divisor, bc = (high - b) / divisor;
  const Ints from_red = high == r, from_green = ~from_red & (high == g);
  const Floats sixths =
      choose(from_red, bc - gc, choose(from_green, rc + 2.0f - bc, gc + 4.0f - rc));
  Floats turn = sixths * (1.0f / 6.0f) + 1.0f;  // positive
  turn = choose(turn >= 1.0f, turn - 1.0f, turn) + shift;
  turn = choose(turn < 0.0f, turn + 1.0f, choose(turn >= 1.0f, turn - 1.0f, turn));

  const Floats sixfold = turn * 6.0f;
  const Ints sextant = truncated(sixfold);  // 6 where the turn was rounded up to 1
  const Floats part = saturation * (sixfold - to_float(sextant)), rest = one - saturation;
  const Ints v = level_of(high), falling = level_of((one - part) * high);
  const Ints rising = level_of((part + rest) * high), least = level_of(rest * high);
  return in_sextant(sextant, v, falling, rising, least);
}

void torch_shift_hue(uint8_t* row, int width, float shift) {
  for_each_pixel(row, width, [=](Ints p) { return torch_with_hue_shifted(p, shift); });
}

// --- grid_sample: zeros outside, align_corners=False ---

// Where the pixels of a row are taken from, along one axis: what affine_grid says, in pixels.
inline Floats place_of(const GridRow& row, int axis, Floats column) {
  const float* theta = row.theta[axis];
  const Floats along = column * theta[0];
  const Floats across =
      row.fused ? fused(all(row.y), all(theta[1]), along) : along + row.y * theta[1];
  const Floats place = fused(across + theta[2] + 1.0f, all(row.half[axis]), all(-0.5f));
  // What is further outside looks the same.
  constexpr float kFar = 1 << 21;
  const Floats bounded = place < kFar ? place : all(kFar);
  return bounded > -kFar ? bounded : all(-kFar);
}

// The pixels at these places, and 0 for those outside; `inside` becomes -1 or 0.
inline Ints pixels_at(const ImageView& source, Ints x, Ints y, Ints* inside) {
  *inside = (x >= 0) & (x < source.width) & (y >= 0) & (y < source.height);
#if defined(__AVX2__)
  if (source.stride * static_cast<size_t>(source.height) <= INT32_MAX) {
    const Ints offset = (y & *inside) * static_cast<int>(source.stride) + (x & *inside) * 4;
    const auto* from = reinterpret_cast<const int*>(source.data);
#if defined(__AVX512F__)
    const auto mask = _mm512_movepi32_mask(reinterpret_cast<__m512i>(*inside));
    return reinterpret_cast<Ints>(_mm512_mask_i32gather_epi32(
        _mm512_setzero_si512(), mask, reinterpret_cast<__m512i>(offset), from, 1));
#else
    return reinterpret_cast<Ints>(
        _mm256_mask_i32gather_epi32(_mm256_setzero_si256(), from, reinterpret_cast<__m256i>(offset),
                                    reinterpret_cast<__m256i>(*inside), 1));
#endif
  }
#endif
  Ints pixels = {};
  for (int k = 0; k < kLanes; ++k) {
    uint32_t pixel = 0;
    if ((*inside)[k] != 0)
      std::memcpy(&pixel, source.row(y[k]) + 4 * static_cast<ptrdiff_t>(x[k]), 4);
    pixels[k] = static_cast<int32_t>(pixel);
  }
  return pixels;
}

inline Floats column_of(const GridRow& row, int x) {
  Floats column;
  for (int k = 0; k < kLanes; ++k) column[k] = row.first + static_cast<float>(x + k);
  return column;
}

inline void store_pixels(Ints pixels, int x, int width, uint32_t* out) {
  std::memcpy(out + x, &pixels, size_t{4} * std::min(kLanes, width - x));
}

void grid_bilinear(const ImageView& source, const GridRow& row, int width, uint32_t* out) {
  for (int begin = 0; begin < width; begin += kLanes) {
    const Floats column = column_of(row, begin);
    const Floats x = place_of(row, 0, column), y = place_of(row, 1, column);
    const Ints left = floor_of(x), top = floor_of(y);
    const Floats west = x - to_float(left), east = 1.0f - west;
    const Floats north = y - to_float(top), south = 1.0f - north;
    const Floats weights[4] = {east * south, west * south, east * north, west * north};
    Ints taps[4], inside[4];
    for (int k = 0; k < 4; ++k)
      taps[k] = pixels_at(source, left + (k & 1), top + (k >> 1), &inside[k]);
    const auto sum = [&](auto&& value) {
      Floats total = value(0) * weights[0];
      for (int k = 1; k < 4; ++k) total = fused(value(k), weights[k], total);
      return total;
    };
    Floats levels[3] = {sum([&](int k) { return to_float(red(taps[k])); }),
                        sum([&](int k) { return to_float(green(taps[k])); }),
                        sum([&](int k) { return to_float(blue(taps[k])); })};
    if (row.fill != nullptr) {
      const Floats mask = sum([&](int k) { return to_float(inside[k] & 1); });
      for (int c = 0; c < 3; ++c) {
        const float fill = row.fill[c];
        levels[c] =
            row.v2 ? (levels[c] - fill) * mask + fill : levels[c] * mask + (1.0f - mask) * fill;
      }
    }
    store_pixels(pixel_of(rounded_to_even(levels[0]), rounded_to_even(levels[1]),
                          rounded_to_even(levels[2])),
                 begin, width, out);
  }
}

void grid_nearest(const ImageView& source, const GridRow& row, int width, uint32_t* out) {
  Ints outside = {};
  if (row.fill != nullptr) {
    Ints fill[3];
    for (int c = 0; c < 3; ++c) fill[c] = rounded_to_even(all(row.fill[c]));
    outside = pixel_of(fill[0], fill[1], fill[2]);
  }
  for (int begin = 0; begin < width; begin += kLanes) {
    const Floats column = column_of(row, begin);
    const Ints x = rounded_to_even(place_of(row, 0, column));
    const Ints y = rounded_to_even(place_of(row, 1, column));
    Ints inside;
    const Ints pixels = pixels_at(source, x, y, &inside);
    store_pixels(choose(inside, pixels, outside), begin, width, out);
  }
}

// The weighted sum of `count` rows, truncated.
void mix_rows(const uint8_t* const* rows, const float* weights, int count, int width,
              uint8_t* out) {
  for (int x = 0; x < width; x += kLanes) {
    Floats r = {}, g = {}, b = {};
    for (int i = 0; i < count; ++i) {
      Ints p;
      std::memcpy(&p, rows[i] + 4 * x, kVectorBytes);
      r += to_float(red(p)) * weights[i];
      g += to_float(green(p)) * weights[i];
      b += to_float(blue(p)) * weights[i];
    }
    const Ints pixels = pixel_of(clipped(r), clipped(g), clipped(b));
    std::memcpy(out + 4 * x, &pixels, size_t{4} * std::min(kLanes, width - x));
  }
}
