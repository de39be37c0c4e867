// Each kernel of each instruction set gives the scalar kernels' bytes, and writes nothing else.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "jpeg/own_kernels.h"
#include "resize/resize.h"
#include "resize/store.h"
#include "simd_sets.h"

namespace {

using headrace::Code;
using headrace::Image;
using headrace::ImageView;
using headrace::Rect;
namespace own = headrace::jpeg::own;

using Bytes = std::vector<uint8_t>;

class Random {
 public:
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int n) { return below(n) == 0; }
  void fill(uint8_t* data, size_t size) {
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<uint8_t>(random_());
  }

 private:
  std::mt19937 random_{1};
};

// Some blocks, which have something in their first `extent` coefficients of the zigzag order, and
// the quantisers they are multiplied with.
struct Blocks {
  static constexpr int kCount = 6;
  own::Block block[kCount] = {};
  uint8_t extent[kCount] = {};
  alignas(64) int16_t quantiser[64] = {};

  // `magnitude` 32768 leaves what a real file's coefficients are far behind.
  Blocks(Random* random, int magnitude, bool flat_quantiser) {
    for (int16_t& each : quantiser)
      each = static_cast<int16_t>(flat_quantiser ? 1 : random->between(1, 255));
    for (int i = 0; i < kCount; ++i) {
      extent[i] = static_cast<uint8_t>(random->one_in(4) ? 1 : random->between(1, 64));
      const bool sparse = random->one_in(2);
      for (int j = 0; j < extent[i]; ++j) {
        if (sparse && j > 0 && !random->one_in(8)) continue;
        block[i].coefficient[own::kZigzag[j]] =
            static_cast<int16_t>(random->between(-magnitude, magnitude - 1));
      }
    }
  }
};

// The samples, what lies around them, and the blocks, which must be zero afterwards.
Bytes inverse_dct(const Blocks& given) {
  Blocks blocks = given;
  constexpr size_t kStride = 8 * Blocks::kCount + 8;
  Bytes samples(kStride * 8, 0xA5);
  own::BlockTarget targets[Blocks::kCount];
  for (size_t i = 0; i < Blocks::kCount; ++i)
    targets[i] = {blocks.quantiser, samples.data() + 8 * i, kStride};
  own::pixel_kernels().inverse_dct(blocks.block, blocks.extent, targets, Blocks::kCount);
  for (const own::Block& each : blocks.block)
    CHECK(std::all_of(each.coefficient, each.coefficient + 64, [](int16_t c) { return c == 0; }));
  return samples;
}

int inverse_dcts_are_equal(Random* random) {
  int compared = 0;
  for (int round = 0; round < 40000; ++round) {
    const Blocks blocks(random, 1 << random->below(16), random->one_in(2));
    compared = check_equal_to_scalar([&] { return inverse_dct(blocks); });
  }
  return compared;
}

int rows_of_pixels_are_equal(Random* random) {
  constexpr size_t kSamples = 400, kBefore = 64;
  Bytes samples[5];
  int compared = 0;
  for (int round = 0; round < 4000; ++round) {
    for (Bytes& each : samples) {
      each.assign(kBefore + kSamples + kBefore, 0);
      random->fill(each.data(), each.size());
    }
    const own::RowSamples in = {samples[0].data() + kBefore, samples[1].data() + kBefore,
                                samples[2].data() + kBefore, samples[3].data() + kBefore,
                                samples[4].data() + kBefore};
    const int first = random->below(100), count = random->between(1, 200);
    for (const auto kernel : {&own::PixelKernels::gray, &own::PixelKernels::full,
                              &own::PixelKernels::h2v1, &own::PixelKernels::h2v2}) {
      compared = check_equal_to_scalar([&] {
        Bytes rgbx(4 * static_cast<size_t>(count) + 256, 0xA5);  // that stay as they are
        (own::pixel_kernels().*kernel)(in, first, count, rgbx.data());
        return rgbx;
      });
    }
  }
  return compared;
}

// A window of a resize of random pixels: rows of 4 bytes a pixel, the undefined fourth one zeroed.
Bytes resized(const headrace::ResizeJob& job, const headrace::PillowRules& rules, unsigned seed) {
  const Rect footprint = resize_footprint(job, rules);
  Image image, result;
  const ImageView source = image.reshape(footprint.w, footprint.h);
  const ImageView out = result.reshape(job.window.w, job.window.h);
  std::mt19937 noise(seed);
  for (int y = 0; y < source.height; ++y)
    for (int x = 0; x < 4 * source.width; ++x) source.row(y)[x] = static_cast<uint8_t>(noise());
  headrace::Resizer resizer;
  CHECK(resizer.run(job, rules, footprint, source, out) == Code::kOk);
  Bytes pixels;
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const uint8_t* pixel = out.row(y) + size_t{4} * static_cast<size_t>(x);
      pixels.insert(pixels.end(), pixel, pixel + 3);
    }
  }
  return pixels;
}

int resizes_are_equal(Random* random) {
  int compared = 0;
  for (int round = 0; round < 400; ++round) {
    headrace::ResizeJob job;
    job.in_w = random->between(1, 150);
    job.in_h = random->between(1, 150);
    job.out_w = random->between(1, 150);
    job.out_h = random->between(1, 150);
    job.filter = static_cast<headrace::Filter>(random->below(headrace::kLastFilter + 1));
    job.window.w = random->between(1, job.out_w);
    job.window.h = random->between(1, job.out_h);
    job.window.x = random->between(0, job.out_w - job.window.w);
    job.window.y = random->between(0, job.out_h - job.window.h);
    job.flip_x = random->one_in(2);
    job.flip_y = random->one_in(2);
    const headrace::PillowRules rules = {random->one_in(2)};
    const auto seed = static_cast<unsigned>(round);
    compared = check_equal_to_scalar([&] { return resized(job, rules, seed); });
  }
  return compared;
}

int stores_are_equal(Random* random) {
  using headrace::Dtype;
  Bytes table(size_t{3} * 256 * 4);
  random->fill(table.data(), table.size());
  int compared = 0;
  for (int round = 0; round < 1000; ++round) {
    Image image;
    const ImageView source = image.reshape(random->between(1, 200), random->between(1, 6));
    random->fill(source.data, source.stride * static_cast<size_t>(source.height));
    const auto dtype = static_cast<Dtype>(random->below(4));
    const auto layout = static_cast<headrace::Layout>(random->below(2));
    const int x = random->below(5), y = random->below(3);
    const int width = x + source.width + random->below(5);
    const int height = y + source.height + random->below(3);
    const auto* values = dtype == Dtype::kUint8 && random->one_in(2) ? nullptr : table.data();
    const int channels = random->one_in(2) ? 1 : 3;
    compared = check_equal_to_scalar([&] {
      const size_t elements =
          static_cast<size_t>(channels) * static_cast<size_t>(width) * static_cast<size_t>(height);
      Bytes batch(elements * dtype_size(dtype) + 64, 0xA5);  // 64 that stay as they are
      store_rows(source, {batch.data(), height, width, dtype, layout, values, channels}, x, y);
      return batch;
    });
  }
  return compared;
}

// One channel is stored as the first of three planes.
void one_channel_is_the_first(Random* random) {
  std::vector<float> table(size_t{3} * 256);
  for (float& value : table) value = static_cast<float>(random->below(1000));
  Image image;
  const ImageView source =
      image.reshape(300, 200);  // larger than what is stored through the caches
  random->fill(source.data, source.stride * 200);
  const size_t pixels = size_t{300} * 200;
  std::vector<float> three(3 * pixels), one(pixels);
  const auto dtype = headrace::Dtype::kFloat32;
  const auto planes = headrace::Layout::kNchw, rows = headrace::Layout::kNhwc;
  store_rows(source, {three.data(), 200, 300, dtype, planes, table.data()}, 0, 0);
  three.resize(pixels);
  for (const auto layout : {planes, rows}) {
    store_rows(source, {one.data(), 200, 300, dtype, layout, table.data(), 1}, 0, 0);
    CHECK(one == three);
  }
}

}  // namespace

int main() {
  Random random;
  check_compared(inverse_dcts_are_equal(&random));
  check_compared(rows_of_pixels_are_equal(&random));
  check_compared(resizes_are_equal(&random));
  check_compared(stores_are_equal(&random));
  one_channel_is_the_first(&random);
  std::puts("test_kernels: passed");
  return 0;
}
