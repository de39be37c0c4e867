// All JPEG decoders and all instruction sets on the same bytes: those that give pixels must give
// the same ones.
//
//   make asan          mutated files, by mutate_main.cpp
//   make libfuzzer     coverage-guided
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu.h"
#include "jpeg/decoder.h"
#include "jpeg/entry_points.h"
#include "outcome.h"

using headrace::Buffer;
using headrace::Code;
using headrace::Image;
using headrace::ImageView;
using headrace::Rect;
using headrace::Simd;
namespace jpeg = headrace::jpeg;

size_t inputs_decoded = 0;

namespace {

constexpr int64_t kMaxPixels = 1 << 20;  // as a pipeline refuses images over its max_pixels

struct Pixels {
  std::string by;
  std::vector<uint8_t> rgb;
};

int scaled(uint8_t choice, int most) { return choice * most / 255; }

Rect choose_rectangle(const uint8_t* choices, int width, int height) {
  const int x = scaled(choices[0], width - 1);
  const int y = scaled(choices[1], height - 1);
  return {x, y, 1 + scaled(choices[2], width - x - 1), 1 + scaled(choices[3], height - y - 1)};
}

std::vector<uint8_t> without_fourth_bytes(const ImageView& image) {
  std::vector<uint8_t> rgb;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x)
      rgb.insert(rgb.end(), image.row(y) + 4 * x, image.row(y) + 4 * x + 3);
  }
  return rgb;
}

void compare(const Pixels& first, const Pixels& other) {
  if (first.rgb == other.rgb) return;
  std::fprintf(stderr, "%s and %s give different pixels\n", first.by.c_str(), other.by.c_str());
  std::abort();
}

class AllDecoders {
 public:
  void run(const jpeg::File& file, const Rect& rect, const char* suffix) {
    for (int i = 0; i < headrace::kSimdCount; ++i) {
      if (!headrace::simd_force(static_cast<Simd>(i))) continue;
      for (const jpeg::DecoderVariant& variant : jpeg::decoder_variants()) {
        const std::unique_ptr<jpeg::Decoder> decoder = variant.make();
        Image image;
        const ImageView view = image.reshape(rect.w, rect.h);
        if (decoder->decode(file, rect, view) != Code::kOk) continue;
        const std::string by =
            std::string(variant.name) + suffix + ", " + headrace::simd_name(static_cast<Simd>(i));
        results_.push_back({by, without_fourth_bytes(view)});
        compare(results_.front(), results_.back());
      }
    }
    headrace::simd_unforce();
  }
  bool any() const { return !results_.empty(); }

 private:
  std::vector<Pixels> results_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Choices choices(data, size);
  Buffer buffer;
  uint8_t* bytes = buffer.reserve(size);
  std::memcpy(bytes, data, size);
  std::memset(bytes + size, 0, Buffer::kPadding);
  jpeg::File file;
  file.data = bytes;
  file.size = size;
  if (jpeg::parse_header(bytes, size, &file.header) != Code::kOk) return 0;
  if (int64_t{file.header.width} * file.header.height > kMaxPixels) return 0;
  const Rect rect = choose_rectangle(choices.byte, file.header.width, file.header.height);
  AllDecoders all;
  all.run(file, rect, "");
  std::vector<uint8_t> entries;
  if (jpeg::build_entry_points(file, 1 + choices.byte[4] % 8, &entries) == Code::kOk) {
    const size_t entries_size = entries.size();
    entries.resize(entries_size + Buffer::kPadding);
    file.entries = {entries.data(), entries_size};
    all.run(file, rect, " with entry points");
    // A damaged index may be refused or noticed, but never changes a pixel.
    entries[choices.byte[5] * entries_size / 256] ^= static_cast<uint8_t>(1 << choices.byte[6] % 8);
    all.run(file, rect, " with damaged entry points");
  }
  inputs_decoded += all.any();
  return 0;
}
