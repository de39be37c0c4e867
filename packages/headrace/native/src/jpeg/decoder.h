// What a JPEG decoder is: one entry in a table of variants, tried in order until one says kOk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../image.h"
#include "../status.h"
#include "header.h"

namespace headrace::jpeg {

// A place in the entropy-coded data where decoding can start: packed little-endian in an index.
struct EntryPoints {
  const uint8_t* data = nullptr;  // as written by build_entry_points(); layout in entry_points.h
  size_t size = 0;
};

// One JPEG file in memory. `data` is readable for Buffer::kPadding bytes past `size`.
struct File {
  const uint8_t* data = nullptr;
  size_t size = 0;
  Header header;        // parsed from data by parse_header()
  EntryPoints entries;  // empty: none known
  bool luma = false;    // a file in color is decoded to its luma, in all channels
};

// Decodes rectangles. One instance serves one thread and keeps its buffers from file to file.
class Decoder {
 public:
  virtual ~Decoder() = default;

  // Writes the pixels of `rect` (non-empty, inside the image) as RGBX rows into `out`, rect.w ×
  // rect.h, bit for bit what libjpeg-turbo gives with its defaults (ISLOW, fancy upsampling)
  // converted to RGB as Pillow does. Anything odd, warnings included, is kUnsupported or kCorrupt,
  // with `out` undefined: the next variant is asked. What the header rules out costs next to
  // nothing.
  virtual Code decode(const File& file, const Rect& rect, const ImageView& out) = 0;
};

struct DecoderVariant {
  const char* name;
  std::unique_ptr<Decoder> (*make)();
};

// All variants in order of preference: "headrace" (the built-in decoder; uses entry points or
// restart markers if there are any), "libjpeg-crop", "libjpeg-full".
const std::vector<DecoderVariant>& decoder_variants();

std::unique_ptr<Decoder> make_own_decoder();
std::unique_ptr<Decoder> make_libjpeg_crop_decoder();
std::unique_ptr<Decoder> make_libjpeg_full_decoder();
// Not a variant: makes do with what can be read of damaged data, as Pillow does.
std::unique_ptr<Decoder> make_libjpeg_damage_decoder();

}  // namespace headrace::jpeg
