// The arithmetic of augmentations: every instruction set gives the scalar loops' bytes, and where a
// loop computes otherwise than Pillow or torch do, it gives their numbers for all inputs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "ops/kernels.h"
#include "simd_sets.h"

namespace {

using headrace::Code;
using headrace::Filter;
using headrace::Image;
using headrace::ImageView;
namespace ops = headrace::ops;

using Bytes = std::vector<uint8_t>;
std::mt19937 noise(1);

int below(int n) { return static_cast<int>(noise() % static_cast<unsigned>(n)); }
double uniform(double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(noise);
}

struct Size {
  int width, height;
};
Size any_size() {
  static const Size sizes[] = {{1, 1}, {1, 9}, {9, 1}, {2, 2}, {3, 3}, {17, 5}, {64, 33}, {83, 61}};
  return sizes[below(8)];
}

// RGB values of an image, without the undefined fourth bytes.
Bytes levels_of(const ImageView& image) {
  Bytes levels;
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      levels.insert(levels.end(), image.row(y) + 4 * x, image.row(y) + 4 * x + 3);
  return levels;
}

// Noise, or noise of few levels, so that equal channels and clipped values are met often.
Bytes any_levels(Size size) {
  const int low = below(256), range = below(2) == 0 ? 256 : 1 + below(256 - low);
  Bytes levels(3 * static_cast<size_t>(size.width) * static_cast<size_t>(size.height));
  for (uint8_t& level : levels)
    level = static_cast<uint8_t>(range == 256 ? below(256) : low + below(range));
  return levels;
}

ImageView shown(Image* image, Size size, const Bytes& levels) {
  const ImageView view = image->reshape(size.width, size.height);
  for (int y = 0; y < size.height; ++y)
    for (int x = 0; x < size.width; ++x)
      std::memcpy(view.row(y) + 4 * x, &levels[3 * static_cast<size_t>(y * size.width + x)], 3);
  return view;
}

// From the image to `out`, or in place where the op works in place: then `out` is not looked at.
using Change = std::function<ImageView(const ImageView& image, const ImageView& out)>;

int compared_on_noise(Size size, Size out_size, const Change& change) {
  const Bytes levels = any_levels(size);
  return check_equal_to_scalar([&] {
    Image in, out;
    const ImageView to = out.reshape(out_size.width, out_size.height);
    return levels_of(change(shown(&in, size, levels), to));
  });
}

int colours_are_equal() {
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    const Size size = any_size();
    const double factor = below(4) == 0 ? below(3) * 127.5 : uniform(-0.5, 2.5);
    const double hue = uniform(-0.5, 0.5);
    int order[3] = {0, 1, 2};
    std::shuffle(order, order + 3, noise);
    ops::LevelTable table;
    table.append_posterize(1 + below(8));
    table.append_solarize(uniform(0, 256));
    table.append_brightness(factor);
    const Change changes[] = {
        [=](auto& image, auto&) { return ops::adjust_brightness(image, factor), image; },
        [=](auto& image, auto&) { return ops::adjust_contrast(image, factor), image; },
        [=](auto& image, auto&) { return ops::adjust_saturation(image, factor), image; },
        [=](auto& image, auto&) { return ops::adjust_hue(image, hue), image; },
        [=](auto& image, auto&) { return ops::grayscale(image), image; },
        [=](auto& image, auto&) { return ops::torch_grayscale(image), image; },
        [=](auto& image, auto&) { return ops::kTorchColour.contrast(image, factor), image; },
        [=](auto& image, auto&) { return ops::kTorchColour.saturation(image, factor), image; },
        [=](auto& image, auto&) { return ops::kTorchColour.hue(image, hue), image; },
        [&](auto& image, auto&) { return ops::permute_channels(image, order), image; },
        [&](auto& image, auto&) { return ops::look_up(image, table), image; },
        [=](auto& image, auto& out) { return ops::adjust_sharpness(image, factor, out), out; },
        [=](auto& image, auto& out) {
          ops::adjust_sharpness(image, 0, out);
          return ops::blend(image, 0.5 + hue, out), out;
        },
    };
    for (const Change& change : changes) compared = compared_on_noise(size, size, change);
  }
  return compared;
}

void append(int step, double parameter, const int64_t counts[3][256], ops::LevelTable* table) {
  switch (step) {
    case 0:
      return table->append_invert();
    case 1:
      return table->append_posterize(1 + static_cast<int>(parameter * 7));
    case 2:
      return table->append_solarize(parameter * 256);
    case 3:
      return table->append_brightness(parameter * 2);
    case 4:
      return table->append_autocontrast(counts);
    case 5:
      return table->append_torch_autocontrast(counts, parameter < 0.5);
    default:
      return table->append_equalize(counts);
  }
}

// Look-ups in one table give what they give one after the other, those included that depend on the
// histogram of what they find.
void fused_look_ups_are_equal() {
  for (int round = 0; round < 500; ++round) {
    const Size size = any_size();
    const Bytes levels = any_levels(size);
    Image one, other;
    const ImageView at_once = shown(&one, size, levels), in_turn = shown(&other, size, levels);
    ops::LevelTable fused;
    int64_t counts[3][256];
    for (int left = 1 + below(5); left > 0; --left) {
      const int step = below(7);
      const double parameter = uniform(0, 1);
      ops::count_levels(at_once, counts);
      append(step, parameter, counts, &fused);
      ops::LevelTable single;
      ops::count_levels(in_turn, counts);
      append(step, parameter, counts, &single);
      ops::look_up(in_turn, single);
    }
    ops::look_up(at_once, fused);
    CHECK(levels_of(at_once) == levels_of(in_turn));
  }
}

int warps_are_equal() {
  int compared = 0;
  const uint8_t fill[3] = {1, 128, 255};
  for (int round = 0; round < 600; ++round) {
    const Size size = any_size(), out_size = any_size();
    ops::Map map;
    for (double& each : map.m) each = uniform(-2, 2);
    map.m[2] = uniform(-size.width, 2 * size.width);
    map.m[5] = uniform(-size.height, 2 * size.height);
    if (below(4) == 0) map.m[1] = map.m[3] = 0;
    if (below(8) == 0) map.m[2] = uniform(-1e12, 1e12);
    map.perspective = below(2) == 0;
    const Filter filters[] = {Filter::kNearest, Filter::kBilinear, Filter::kBicubic};
    const Filter filter = filters[below(3)];
    compared = compared_on_noise(size, out_size, [&](auto& image, auto& out) {
      return ops::warp(image, map, filter, fill, out), out;
    });
    const double center[2] = {uniform(-9, 99), uniform(-9, 99)};
    const ops::Rotation rotation = ops::plan_rotation(
        size.width, size.height, below(2) == 0 ? 90 * below(9) : uniform(-9, 370), below(2) == 0,
        below(2) == 0 ? center : nullptr);
    compared_on_noise(size, {rotation.width, rotation.height}, [&](auto& image, auto& out) {
      return ops::rotate(image, rotation, filter, fill, out), out;
    });
  }
  return compared;
}

std::vector<float> gaussian_kernel(int size, double sigma) {
  std::vector<float> kernel;
  float sum = 0;
  for (int i = 0; i < size; ++i) {
    const double x = (i - size / 2) / sigma;
    kernel.push_back(static_cast<float>(std::exp(-0.5 * x * x)));
    sum += kernel.back();
  }
  for (float& weight : kernel) weight /= sum;
  return kernel;
}

// torch's way: one chain of fused multiply-adds for each value.
Bytes chained(const ImageView& image, const std::vector<float>& kx, const std::vector<float>& ky) {
  const auto reflected = [](int i, int size) {
    return std::abs(i) < size ? std::abs(i) : 2 * (size - 1) - i;
  };
  const int size_x = static_cast<int>(kx.size()), size_y = static_cast<int>(ky.size());
  Bytes levels;
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      for (int c = 0; c < 3; ++c) {
        float total = 0;
        for (int i = 0; i < size_y; ++i)
          for (int j = 0; j < size_x; ++j) {
            const uint8_t* row = image.row(reflected(y + i - size_y / 2, image.height));
            const uint8_t level = row[4 * reflected(x + j - size_x / 2, image.width) + c];
            const float product = ky[static_cast<size_t>(i)] * kx[static_cast<size_t>(j)];
            total = std::fma(static_cast<float>(level), product, total);
          }
        levels.push_back(static_cast<uint8_t>(std::nearbyint(total)));
      }
  return levels;
}

int blurs_are_equal() {
  int compared = 0;
  ops::Blur blur;
  for (int round = 0; round < 200; ++round) {
    const Size size = any_size();
    const double radius = below(5) == 0 ? 300 : uniform(0, 4), radius_y = uniform(0, 3);
    compared = compared_on_noise(size, size, [&](auto& image, auto& out) {
      CHECK(blur.pillow_gaussian(image, radius, radius_y, out) == Code::kOk);
      return out;
    });
    const auto kernel_x = gaussian_kernel(1 + 2 * below(8), uniform(0.1, 4));
    const auto kernel_y = gaussian_kernel(1 + 2 * below(8), uniform(0.1, 4));
    const int size_x = static_cast<int>(kernel_x.size());
    const int size_y = static_cast<int>(kernel_y.size());
    const bool fits = size_x / 2 < size.width && size_y / 2 < size.height;
    const Bytes levels = any_levels(size);
    compared = check_equal_to_scalar([&] {
      Image in, out;
      const ImageView image = shown(&in, size, levels);
      const ImageView to = out.reshape(size.width, size.height);
      const Code code = blur.gaussian(image, kernel_x.data(), size_x, kernel_y.data(), size_y, to);
      CHECK(code == (fits ? Code::kOk : Code::kUnsupported));
      if (!fits) return Bytes();
      CHECK(levels_of(to) == chained(image, kernel_x, kernel_y));
      return levels_of(to);
    });
  }
  return compared;
}

// torch's arithmetic on uint8 tensors.
int torch_is_equal() {
  int compared = 0;
  const float fill[3] = {1.5f, 128, 255};
  for (int round = 0; round < 400; ++round) {
    const Size size = any_size();
    const double factor = uniform(0, 2);
    const bool v2 = below(2) == 0, fused = below(2) == 0;
    ops::Map map;
    for (double& each : map.m) each = uniform(-2, 2);
    map.m[2] = below(9) == 0 ? uniform(-1e12, 1e12) : uniform(-size.width, size.width);
    const Filter filter = below(2) == 0 ? Filter::kNearest : Filter::kBilinear;
    const float* outside = below(2) == 0 ? fill : nullptr;
    const Change changes[] = {
        [=](auto& image, auto&) { return ops::torch_saturation(image, factor, v2), image; },
        [=](auto& image, auto& out) { return ops::torch_sharpness(image, factor, v2, out), out; },
        [=](auto& image, auto& out) {
          return ops::torch_affine(image, {map, filter, outside, v2, fused}, out), out;
        },
        [=](auto& image, auto& out) {
          const ImageView images[] = {image, image, image};
          const float weights[] = {0.25f, static_cast<float>(factor) / 4, 0.1f};
          return ops::mix(images, weights, 3, out), out;
        },
        [=](auto& image, auto&) {
          ops::LevelTable table;
          int64_t counts[3][256];
          ops::count_levels(image, counts);
          table.append_torch_autocontrast(counts, v2);
          const Code code = table.append_torch_contrast(image, factor, v2);
          CHECK(code == Code::kOk || code == Code::kUnsupported);
          if (code == Code::kOk) ops::look_up(image, table);
          return image;
        },
    };
    for (const Change& change : changes) compared = compared_on_noise(size, size, change);
  }
  return compared;
}

int clipped(int value) { return std::min(std::max(value, 0), 255); }

// A colour through HSV with the operations of Pillow's converters, in their precisions.
uint32_t hue_shifted_by_pillow(int r, int g, int b, int shift) {
  const int high = std::max({r, g, b}), low = std::min({r, g, b});
  int hue = 0, saturation = 0;
  if (high != low) {
    const auto chroma = static_cast<float>(high - low);
    const float from_r = static_cast<float>(high - r) / chroma;
    const float from_g = static_cast<float>(high - g) / chroma;
    const float from_b = static_cast<float>(high - b) / chroma;
    const float sixths = r == high   ? from_b - from_g
                         : g == high ? static_cast<float>(2.0 + double{from_r} - double{from_b})
                                     : static_cast<float>(4.0 + double{from_g} - double{from_r});
    const auto turn = static_cast<float>(std::fmod(double{sixths} / 6.0 + 1.0, 1.0));
    hue = clipped(static_cast<int>(double{turn} * 255.0));
    saturation = clipped(static_cast<int>(double{chroma / static_cast<float>(high)} * 255.0));
  }
  hue = (hue + shift) & 0xFF;
  if (saturation == 0) return static_cast<uint32_t>(high * 0x10101);
  const double place = hue * 6.0 / 255.0, whole = std::floor(place);
  const auto rest = static_cast<float>(place - double{static_cast<float>(whole)});
  const auto share = static_cast<float>(saturation / 255.0);
  const auto level = [&](double part) {
    return clipped(static_cast<int>(std::round(static_cast<float>(high) * (1.0 - part))));
  };
  const int p = level(double{share}), q = level(double{share * rest});
  const int t = level(double{share} * (1.0 - double{rest}));
  const int sextants[6][3] = {{high, t, p}, {q, high, p}, {p, high, t},
                              {p, q, high}, {t, p, high}, {high, p, q}};
  const int* rgb = sextants[static_cast<int>(whole) % 6];
  return static_cast<uint32_t>(rgb[0] | rgb[1] << 8 | rgb[2] << 16);
}

// All colours; hues between two of one sextant's ends are met by the shifts.
void hue_is_pillows() {
  Image image;
  const ImageView view = image.reshape(256, 256);
  for (int r = 0; r < 256; ++r) {
    const int shift = r % 5 == 0 ? 0 : below(256);
    for (int g = 0; g < 256; ++g)
      for (int b = 0; b < 256; ++b) {
        const uint8_t pixel[4] = {static_cast<uint8_t>(r), static_cast<uint8_t>(g),
                                  static_cast<uint8_t>(b), 0};
        std::memcpy(view.row(g) + 4 * b, pixel, 4);
      }
    // Factors whose product with 255 is `shift`, modulo 256.
    const int whole = shift > 127 ? shift - 256 : shift;
    ops::adjust_hue(view, (whole + (whole < 0 ? -0.5 : 0.5)) / 255.0);
    for (int g = 0; g < 256; ++g)
      for (int b = 0; b < 256; ++b) {
        uint32_t pixel;
        std::memcpy(&pixel, view.row(g) + 4 * b, 4);
        CHECK((pixel & 0xFFFFFF) == hue_shifted_by_pillow(r, g, b, shift));
      }
  }
}

// ImageFilter.SMOOTH in float, for every sum of levels that there is.
void smooth_is_pillows() {
  Image image, out;
  const ImageView view = image.reshape(3, 3), smooth = out.reshape(3, 3);
  for (int sum = 0; sum <= 13 * 255; ++sum) {
    const int center = std::max(0, std::min(255, (sum - 8 * below(256)) / 5));
    int left = sum - 5 * center;
    if (left < 0 || left > 8 * 255) continue;
    uint8_t around[9];
    for (int i = 0; i < 9; ++i) {
      around[i] = static_cast<uint8_t>(i == 4 ? center : std::min(left, 255));
      if (i != 4) left -= around[i];
      std::memset(view.row(i / 3) + 4 * (i % 3), around[i], 4);
    }
    const float outer = 1.0f / 13.0f, inner = 5.0f / 13.0f;
    float total = 0.5f;
    for (const int row : {2, 1, 0}) {
      const uint8_t* at = around + 3 * row;
      total += at[0] * outer + at[1] * (row == 1 ? inner : outer) + at[2] * outer;
    }
    ops::adjust_sharpness(view, 0.0, smooth);
    CHECK(smooth.row(1)[4] == static_cast<uint8_t>(total));
  }
}

}  // namespace

int main() {
  check_compared(colours_are_equal());
  check_compared(warps_are_equal());
  check_compared(blurs_are_equal());
  check_compared(torch_is_equal());
  fused_look_ups_are_equal();
  hue_is_pillows();
  smooth_is_pillows();
  return 0;
}
