// The loops of torch's own arithmetic on uint8 tensors, which AugMix computes in: part of
// loops_impl.h, which includes this.
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

inline Ints tensor_luma(Ints p, bool v2) {
  const Floats r = to_float(red(p)) * 0.2989f, g = to_float(green(p)), b = to_float(blue(p));
  if (v2) return truncated(fused(b, all(0.114f), fused(g, all(0.587f), r)));
  return truncated((r + g * 0.587f) + b * 0.114f);
}

uint64_t tensor_sum_luma(const uint8_t* row, int width, bool v2) {
  uint64_t sum = 0;
  Ints pixels = {};
  for (int x = 0; x < width; x += kLanes) {
    const int count = std::min(kLanes, width - x);
    pixels = Ints{};
    std::memcpy(&pixels, row + 4 * x, size_t{4} * count);
    const Ints levels = tensor_luma(pixels, v2);
    for (int k = 0; k < kLanes; ++k) sum += static_cast<uint64_t>(levels[k]);
  }
  return sum;
}

void tensor_blend_luma(uint8_t* row, int width, const TorchBlend& blend) {
  const auto channel = [&](Ints level, Floats luma) {
    const Floats scaled = to_float(level) * blend.factor;
    return clipped(blend.v2 ? fused(luma, all(blend.rest), scaled) : scaled + luma * blend.rest);
  };
  for_each_pixel(row, width, [&](Ints p) {
    const Floats luma = to_float(tensor_luma(p, blend.v2));
    return pixel_of(channel(red(p), luma), channel(green(p), luma), channel(blue(p), luma));
  });
}

// torch convolves in float32; its sums are rounded, and none is near enough to .5 for that to
// matter, as in `sharpen`.
void tensor_sharpen(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
                    const TorchBlend& blend, uint8_t* out) {
  const auto channel = [&](Ints smooth, Ints level) {
    const Floats value = to_float(level), degenerate = to_float(smooth);
    return clipped(blend.v2 ? fused(degenerate - value, all(blend.rest), value)
                            : value * blend.factor + degenerate * blend.rest);
  };
  for (int x = 1; x < width - 1; x += kLanes) {
    PairSums sums;
    for (const uint8_t* line : {above + 4 * x, row + 4 * x, below + 4 * x}) {
      sums.add(line - 4, 1);
      sums.add(line, line == row + 4 * x ? 5 : 1);
      sums.add(line + 4, 1);
    }
    Ints p;
    std::memcpy(&p, row + 4 * x, kVectorBytes);
    p = pixel_of(channel(smoothed(sums.red_blue & 0xFFFF), red(p)),
                 channel(smoothed(sums.green), green(p)),
                 channel(smoothed(sums.red_blue >> 16 & 0xFFFF), blue(p)));
    std::memcpy(out + 4 * x, &p, std::min<size_t>(kVectorBytes, size_t{4} * (width - 1 - x)));
  }
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
    const Ints offset = (y * static_cast<int>(source.stride) + x * 4) & *inside;
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
