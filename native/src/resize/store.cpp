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

const StoreKernels& active_kernels() {
  switch (simd_active()) {
#if defined(__x86_64__)
    case Simd::kAvx512:
      // The first processors with AVX-512 lack this part of it.
      if (kAvx512Store != nullptr && __builtin_cpu_supports("avx512vbmi")) return *kAvx512Store;
      return kAvx2Store;
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

// Any layout and dtype, value by value.
template <typename Value>
void store_values(const ImageView& source, const Target& target, const void* table) {
  Value tables[3][256];
  std::memcpy(tables, table, sizeof(tables));
  for (int y = 0; y < source.height; ++y) {
    const uint8_t* from = source.row(y);
    uint8_t* to = target.at(y, 0);
    for (int x = 0; x < source.width; ++x, from += 4, to += target.pixel) {
      for (int c = 0; c < 3; ++c) {
        std::memcpy(to + target.channel * c, &tables[c][from[c]], sizeof(Value));
      }
    }
  }
}

void store_levels(const ImageView& source, const SampleOutput& out, const Target& target,
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

// Calls `store` with runs of at most `chunk` pixels that cover the source; several rows at once
// only where they may join.
template <typename Store>
void for_each_run(const ImageView& source, bool joined, int chunk, const Store& store) {
  if (!joined || source.width > chunk) {
    for (int y = 0; y < source.height; ++y) {
      for (int x = 0; x < source.width; x += chunk) {
        store(Run{x, y, std::min(chunk, source.width - x), 1});
      }
    }
    return;
  }
  const int rows = chunk / source.width;
  for (int y = 0; y < source.height; y += rows) {
    store(Run{0, y, source.width, std::min(rows, source.height - y)});
  }
}

template <size_t kSize>
void split_levels(const ImageView& source, const Run& run, const StoreKernels& kernels,
                  uint8_t (&levels)[3][kSize]) {
  for (int i = 0; i < run.rows; ++i) {
    const size_t start = static_cast<size_t>(i) * run.width;
    uint8_t* const planes[3] = {levels[0] + start, levels[1] + start, levels[2] + start};
    kernels.planes(source.row(run.y + i) + static_cast<size_t>(run.x) * 4, run.width, planes);
  }
}

const uint8_t* channel_table(const SampleOutput& out, int c) {
  return static_cast<const uint8_t*>(out.table) + c * 256 * dtype_size(out.dtype);
}

void store_in_planes(const ImageView& source, const SampleOutput& out, const Target& target,
                     const StoreKernels& kernels) {
  const Lookup lookup = target.element == 2 ? kernels.lookup16 : kernels.lookup32;
  const bool stream = target.channel * 3 >= kStreamedBytes;
  for_each_run(source, source.width == out.width, kChunk, [&](const Run& run) {
    alignas(64) uint8_t levels[3][kChunk];
    split_levels(source, run, kernels, levels);
    for (int c = 0; c < 3; ++c) {
      lookup(levels[c], run.pixels(), channel_table(out, c),
             target.at(run.y, c) + target.pixel * run.x, stream);
    }
  });
  if (stream) kernels.publish();
}

void store_interleaved(const ImageView& source, const SampleOutput& out, const Target& target,
                       const StoreKernels& kernels) {
  const Lookup lookup = target.element == 2 ? kernels.lookup16 : kernels.lookup32;
  const Interleave interleave = target.element == 2 ? kernels.interleave16 : kernels.interleave32;
  const bool stream = target.row * out.height >= kStreamedBytes;
  for_each_run(source, source.width == out.width, kInterleavedChunk, [&](const Run& run) {
    alignas(64) uint8_t levels[3][kInterleavedChunk];
    alignas(64) uint8_t values[3][kInterleavedChunk * sizeof(float)];
    split_levels(source, run, kernels, levels);
    for (int c = 0; c < 3; ++c) {
      lookup(levels[c], run.pixels(), channel_table(out, c), values[c], false);
    }
    const void* const planes[3] = {values[0], values[1], values[2]};
    interleave(planes, run.pixels(), target.at(run.y, 0) + target.pixel * run.x, stream);
  });
  if (stream) kernels.publish();
}

// The values of contiguous levels of channel `c`.
void look_up_run(const uint8_t* levels, size_t count, const SampleOutput& out, int c,
                 const StoreKernels& kernels, bool stream, uint8_t* to) {
  if (out.table == nullptr) {
    std::memcpy(to, levels, count);
    return;
  }
  const uint8_t* table = channel_table(out, c);
  switch (dtype_size(out.dtype)) {
    case 1:
      return lookup_one_by_one<uint8_t>(levels, count, table, to, stream);
    case 2:
      return kernels.lookup16(levels, count, table, to, stream);
    default:
      return kernels.lookup32(levels, count, table, to, stream);
  }
}

// One value a pixel, so that planes and interleaved pixels are the same.
void store_first_channel(const ImageView& source, const SampleOutput& out, const Target& target,
                         const StoreKernels& kernels) {
  const bool stream = target.row * out.height >= kStreamedBytes;
  for_each_run(source, source.width == out.width, kChunk, [&](const Run& run) {
    alignas(64) uint8_t levels[3][kChunk];
    split_levels(source, run, kernels, levels);
    look_up_run(levels[0], run.pixels(), out, 0, kernels, stream,
                target.at(run.y, 0) + target.pixel * run.x);
  });
  if (stream) kernels.publish();
}

// Values of any size, one by one, from planes.
template <typename Value>
void store_values(const uint8_t* levels, size_t pixels, int channels, const Target& target,
                  const void* table) {
  Value tables[3][256];
  for (int level = 0; level < 256; ++level) {
    for (auto& channel : tables) channel[level] = static_cast<Value>(level);
  }
  if (table != nullptr) std::memcpy(tables, table, sizeof(tables[0]) * channels);
  for (int c = 0; c < channels; ++c) {
    const uint8_t* from = levels + pixels * c;
    uint8_t* to = target.at(0, c);
    for (size_t i = 0; i < pixels; ++i, to += target.pixel) {
      std::memcpy(to, &tables[c][from[i]], sizeof(Value));
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

const StoreKernels kScalarStore = {
    rgb,     planes,  lookup_one_by_one<uint16_t>, lookup_one_by_one<uint32_t>,
    nullptr, nullptr, nothing_to_publish};

void store_rows(const ImageView& source, const SampleOutput& out, int x, int y) {
  const StoreKernels& kernels = active_kernels();
  const Target target(out, x, y);
  if (out.channels == 1) {
    store_first_channel(source, out, target, kernels);
  } else if (out.table == nullptr) {
    if (out.dtype == Dtype::kUint8) store_levels(source, out, target, kernels);
  } else if (out.dtype == Dtype::kUint8) {
    store_values<uint8_t>(source, target, out.table);
  } else if (out.layout == Layout::kNchw) {
    store_in_planes(source, out, target, kernels);
  } else if (kernels.interleave32 != nullptr) {
    store_interleaved(source, out, target, kernels);
  } else if (target.element == 2) {
    store_values<uint16_t>(source, target, out.table);
  } else {
    store_values<uint32_t>(source, target, out.table);
  }
}

void store_planes(const uint8_t* levels, const SampleOutput& out) {
  const StoreKernels& kernels = active_kernels();
  const Target target(out, 0, 0);
  const size_t pixels = static_cast<size_t>(out.height) * static_cast<size_t>(out.width);
  const bool interleaved = out.layout == Layout::kNhwc && out.channels == 3;
  const bool two = target.element == 2;
  if (target.element == 1) {
    return store_values<uint8_t>(levels, pixels, out.channels, target, out.table);
  }
  if (interleaved && kernels.interleave32 == nullptr) {
    return two ? store_values<uint16_t>(levels, pixels, 3, target, out.table)
               : store_values<uint32_t>(levels, pixels, 3, target, out.table);
  }
  const Lookup lookup = two ? kernels.lookup16 : kernels.lookup32;
  const Interleave interleave = two ? kernels.interleave16 : kernels.interleave32;
  const bool stream = target.element * out.channels * pixels >= kStreamedBytes;
  for (size_t first = 0; first < pixels; first += kInterleavedChunk) {
    const size_t count = std::min<size_t>(kInterleavedChunk, pixels - first);
    alignas(64)
        uint8_t chunk[kInterleavedChunk];  // kernels read past the end of what they are given
    alignas(64) uint8_t values[3][kInterleavedChunk * sizeof(float)];
    for (int c = 0; c < out.channels; ++c) {
      std::copy_n(levels + pixels * c + first, count, chunk);
      void* const to = interleaved ? values[c] : target.at(0, c) + target.pixel * first;
      lookup(chunk, count, channel_table(out, c), to, stream && !interleaved);
    }
    const void* const planes[3] = {values[0], values[1], values[2]};
    if (interleaved) interleave(planes, count, target.at(0, 0) + target.pixel * first, stream);
  }
  if (stream) kernels.publish();
}

}  // namespace headrace
