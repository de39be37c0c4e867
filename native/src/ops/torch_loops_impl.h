// Colour as torchvision computes it on uint8 tensors: in float32, by torch's functions one after
// the other, each of which rounds. Only Tensor.add with a factor multiplies and adds at once.
#pragma once

#include "vectors.h"

namespace headrace::ops {
namespace {

inline Floats torch_luma_of(Ints p) {
  const Floats with_green =
      fused(to_float(green(p)), Floats{} + 0.587f, to_float(red(p)) * 0.2989f);
  return fused(to_float(blue(p)), Floats{} + 0.114f, with_green);
}

void torch_luma(uint8_t* row, int width) {
  for_each_pixel(row, width, [](Ints p) { return truncated(torch_luma_of(p)) * 0x10101; });
}

uint64_t torch_sum_luma(const uint8_t* row, int width) {
  return sum_pixels(row, width, [](Ints p) { return truncated(torch_luma_of(p)); });
}

// torchvision's _blend: value * factor + other * rest, clipped and truncated.
inline Ints torch_blend(Ints value, Floats other, float factor, float rest) {
  const Ints blended = truncated(fused(other, Floats{} + rest, to_float(value) * factor));
  return smaller(larger(blended, Ints{}), Ints{} + 255);
}

inline Ints torch_blend_pixels(Ints p, Floats other, float factor, float rest) {
  return pixel_of(torch_blend(red(p), other, factor, rest),
                  torch_blend(green(p), other, factor, rest),
                  torch_blend(blue(p), other, factor, rest));
}

void torch_blend_level(uint8_t* row, int width, float level, float factor, float rest) {
  for_each_pixel(row, width,
                 [=](Ints p) { return torch_blend_pixels(p, Floats{} + level, factor, rest); });
}

void torch_blend_luma(uint8_t* row, int width, float factor, float rest) {
  for_each_pixel(row, width, [=](Ints p) {
    return torch_blend_pixels(p, to_float(truncated(torch_luma_of(p))), factor, rest);
  });
}

inline Floats choose(Ints condition, Floats yes, Floats no) { return condition ? yes : no; }

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
  const Ints in0 = (sextant == 0) | (sextant == 6), in1 = sextant == 1, in2 = sextant == 2;
  const Ints in3 = sextant == 3, in4 = sextant == 4, in5 = sextant == 5;
  return pixel_of(choose(in0 | in5, v, choose(in1, falling, choose(in4, rising, least))),
                  choose(in1 | in2, v, choose(in3, falling, choose(in0, rising, least))),
                  choose(in3 | in4, v, choose(in5, falling, choose(in2, rising, least))));
}

void torch_shift_hue(uint8_t* row, int width, float shift) {
  for_each_pixel(row, width, [=](Ints p) { return torch_with_hue_shifted(p, shift); });
}

}  // namespace
}  // namespace headrace::ops
