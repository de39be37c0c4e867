// Our decoder gives the same pixels with every instruction set, for any crop of any file it takes.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "jpeg/decoder.h"
#include "noise_jpeg.h"
#include "simd_sets.h"

namespace {

using headrace::Code;
using headrace::ImageView;
using headrace::Rect;
namespace jpeg = headrace::jpeg;

using Bytes = std::vector<uint8_t>;

struct Layout {
  int components, h, v;
};

constexpr Layout kLayouts[] = {{1, 1, 1}, {3, 1, 1}, {3, 2, 1}, {3, 2, 2}, {3, 1, 2}};

int crops_are_equal(const Layout& layout, std::mt19937* random) {
  const auto below = [&](int n) { return static_cast<int>((*random)() % unsigned(n)); };
  const std::unique_ptr<jpeg::Decoder> decoder = jpeg::make_own_decoder();
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    NoiseJpeg kind = {1 + below(200), 1 + below(120), layout.components, layout.h, layout.v};
    kind.restart_interval = below(3) == 0 ? 1 + below(9) : 0;
    kind.magnitude = 1 + below(10);
    Bytes data = NoiseJpegWriter(kind, static_cast<unsigned>(round)).write();
    jpeg::File file;
    file.size = data.size();
    data.resize(data.size() + headrace::Buffer::kPadding);
    file.data = data.data();
    CHECK(jpeg::parse_header(file.data, file.size, &file.header) == Code::kOk);
    for (int crop = 0; crop < 8; ++crop) {
      Rect rect = {0, 0, kind.width, kind.height};
      if (crop > 0) {
        rect.w = 1 + below(kind.width);
        rect.h = 1 + below(kind.height);
        rect.x = below(kind.width - rect.w + 1);
        rect.y = below(kind.height - rect.h + 1);
      }
      compared = check_equal_to_scalar([&] {
        const size_t stride = size_t{4} * static_cast<size_t>(rect.w);
        Bytes rgbx(stride * static_cast<size_t>(rect.h) + 64, 0xA5);  // 64 that stay as they are
        CHECK(decoder->decode(file, rect, {rgbx.data(), stride, rect.w, rect.h}) == Code::kOk);
        return rgbx;
      });
    }
  }
  return compared;
}

}  // namespace

int main() {
  std::mt19937 random(1);
  for (const Layout& layout : kLayouts) check_compared(crops_are_equal(layout, &random));
  std::puts("test_own_decoder: passed");
  return 0;
}
