// The order of the store's work, and the plain form of its loops.
#include "store.h"

#include <algorithm>
#include <cstring>

#include "../cpu.h"
#include "store_kernels.h"

namespace headrace {
namespace {

// Levels are looked up some rows at a time: enough to be worth preparing a table, few enough to
// stay in the L1 cache.
constexpr int kChunk = 4096;             // pixels
constexpr int kInterleavedChunk = 1024;  // pixels
// Smaller samples are stored through the caches: their batch may still be there when it is used.
constexpr size_t kStreamedBytes = 128 << 10;

StoreKernels active_kernels() {
  switch (simd_active()) {
#if defined(__x86_64__)
    case Simd::kAvx512: {
      StoreKernels kernels = kAvx2Store;
      kernels.lookup16 = kAvx512Lookup16;
      kernels.lookup32 = kAvx512Lookup32;
      return kernels;
    }
    case Simd::kAvx2:
      return kAvx2Store;
#elif defined(__aarch64__)
    case Simd::kNeon:
      return kNeonStore;
#endif
    default:
      return kScalarStore;
  }
}

// Where the elements of a sample are.
struct Target {
  Target(const SampleOutput& out, int x, int y)
      : element(dtype_size(out.dtype)),
        channel(out.layout == Layout::kNchw ? element * out.height * out.width : element),
        pixel(out.layout == Layout::kNchw ? element : element * out.channels),
        row(pixel * out.width),
        start(static_cast<uint8_t*>(out.data) + row * y + pixel * x) {}

  uint8_t* at(int y, int c) const { return start + row * y + channel * c; }

  size_t element;  // bytes of one value
  size_t channel;  // bytes from a pixel's red to its green
  size_t pixel;    // bytes from one pixel to the next
  size_t row;      // bytes from one row to the next
  uint8_t* start;
};

void store_levels(const ConstImageView& source, const SampleOutput& out, const Target& target,
                  const StoreKernels& kernels) {
  for (int y = 0; y < source.height; ++y) {
    if (out.layout == Layout::kNhwc) {
      kernels.rgb(source.row(y), source.width, target.at(y, 0));
    } else {
      uint8_t* const planes[3] = {target.at(y, 0), target.at(y, 1), target.at(y, 2)};
      kernels.planes(source.row(y), source.width, planes);
    }
  }
}

// A strip of a row, or whole rows that are contiguous in the sample's planes.
struct Run {
  int x, y;
  int width;  // of each row
  int rows;

  size_t pixels() const { return static_cast<size_t>(width) * rows; }
};

// Calls `store` with runs of at most `chunk` pixels that cover an image; several rows at once only
// where they may join.
template <typename Store>
void for_each_run(int width, int height, bool joined, int chunk, const Store& store) {
  if (!joined || width > chunk) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; x += chunk) store(Run{x, y, std::min(chunk, width - x), 1});
    }
    return;
  }
  const int rows = chunk / width;
  for (int y = 0; y < height; y += rows) store(Run{0, y, width, std::min(rows, height - y)});
}

// The values of `count` levels of channel `c`.
void look_up(const uint8_t* levels, size_t count, const SampleOutput& out, int c,
             const StoreKernels& kernels, bool stream, void* to) {
  if (out.table == nullptr) {
    std::memcpy(to, levels, count);
    return;
  }
  const size_t size = dtype_size(out.dtype);
  const void* table = static_cast<const uint8_t*>(out.table) + c * 256 * size;
  const Lookup lookup = size == 1   ? lookup_one_by_one<uint8_t>
                        : size == 2 ? kernels.lookup16
                        : size == 4 ? kernels.lookup32
                                    : lookup_one_by_one<uint64_t>;
  lookup(levels, count, table, to, stream);
}

// Stores the values of an image, whose levels are split into planes of kChunk run by run.
void store_values(const ConstImageView& source, const SampleOutput& out, const Target& target,
                  const StoreKernels& kernels) {
  const bool interleaved = out.layout == Layout::kNhwc && out.channels == 3;
  const Interleave interleave = target.element == 1   ? interleave_one_by_one<uint8_t>
                                : target.element == 2 ? kernels.interleave16
                                : target.element == 4 ? kernels.interleave32
                                                      : interleave_one_by_one<uint64_t>;
  const bool stream =
      target.element * out.channels * out.height * static_cast<size_t>(out.width) >= kStreamedBytes;
  const int chunk = interleaved ? kInterleavedChunk : kChunk;
  const bool joined = source.width == out.width;
  for_each_run(source.width, source.height, joined, chunk, [&](const Run& run) {
    alignas(64) uint8_t levels[3][kChunk];
    alignas(64) uint8_t values[3][kInterleavedChunk * sizeof(uint64_t)];
    for (int i = 0; i < run.rows; ++i) {
      const size_t start = static_cast<size_t>(i) * run.width;
      uint8_t* const planes[3] = {levels[0] + start, levels[1] + start, levels[2] + start};
      kernels.planes(source.row(run.y + i) + static_cast<size_t>(run.x) * 4, run.width, planes);
    }
    uint8_t* const to = target.at(run.y, 0) + target.pixel * run.x;
    for (int c = 0; c < out.channels; ++c) {
      uint8_t* const plane = interleaved ? values[c] : to + target.channel * c;
      look_up(levels[c], run.pixels(), out, c, kernels, stream && !interleaved, plane);
    }
    const void* const found[3] = {values[0], values[1], values[2]};
    if (interleaved) interleave(found, run.pixels(), to, stream);
  });
  if (stream) kernels.publish();
}

// Pillow's fourth byte of an RGB pixel.
void store_opaque(const ConstImageView& source, const Target& target) {
  for (int y = 0; y < source.height; ++y) {
    uint8_t* const to = target.at(y, 0);
    const uint8_t* const from = source.row(y);
    for (size_t x = 0; x < static_cast<size_t>(source.width); ++x) {
      uint32_t pixel;
      std::memcpy(&pixel, from + 4 * x, 4);
      pixel |= 0xFF000000u;
      std::memcpy(to + 4 * x, &pixel, 4);
    }
  }
}

void rgb(const uint8_t* rgbx, int width, uint8_t* out) {
  for (int x = 0; x < width; ++x, rgbx += 4, out += 3) std::memcpy(out, rgbx, 3);
}

void planes(const uint8_t* rgbx, int width, uint8_t* const out[3]) {
  for (int c = 0; c < 3; ++c) {
    for (int x = 0; x < width; ++x) out[c][x] = rgbx[static_cast<size_t>(x) * 4 + c];
  }
}

}  // namespace

const StoreKernels kScalarStore = {rgb,
                                   planes,
                                   lookup_one_by_one<uint16_t>,
                                   lookup_one_by_one<uint32_t>,
                                   interleave_one_by_one<uint16_t>,
                                   interleave_one_by_one<uint32_t>,
                                   nothing_to_publish};

void store_rows(const ConstImageView& source, const SampleOutput& out, int x, int y) {
  const Target target(out, x, y);
  if (out.channels == 4) {
    store_opaque(source, target);
    return;
  }
  const StoreKernels kernels = active_kernels();
  if (out.table == nullptr && out.channels == 3) {
    store_levels(source, out, target, kernels);
    return;
  }
  store_values(source, out, target, kernels);
}

}  // namespace headrace
