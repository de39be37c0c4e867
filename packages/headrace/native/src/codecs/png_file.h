// The chunks of a PNG file, read as strictly as it takes to know what Pillow makes of them.
#pragma once

#include <libdeflate.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../status.h"
#include "orientation.h"

namespace headrace::png {

// Values as in the file (PNG specification, 11.2.2).
constexpr int kGray = 0;
constexpr int kRgb = 2;
constexpr int kPalette = 3;
constexpr int kGrayAlpha = 4;
constexpr int kRgba = 6;

constexpr size_t kChunkOverhead = 12;  // length, type and checksum

struct FreeDecompressor {
  void operator()(libdeflate_decompressor* each) const { libdeflate_free_decompressor(each); }
};
using Decompressor = std::unique_ptr<libdeflate_decompressor, FreeDecompressor>;

struct Header {
  int width = 0;
  int height = 0;
  int bit_depth = 0;
  int color_type = 0;
  bool interlaced = false;
  bool transparent_color = false;  // there is a tRNS chunk
  size_t palette_begin = 0;        // of the PLTE chunk; 0: there is none
  size_t palette_size = 0;         // of its content, in bytes
  size_t data_begin = 0;           // of the first IDAT chunk
  size_t data_end = 0;             // past the last one: nothing is between them
  OrientationTags orientation;
};

// Reads all chunks from the signature to IEND, and the checksums of all but the image data's.
// kUnsupported: what convert("RGB") makes of the file depends on more than its pixels, it is
// animated, or it holds a chunk that is not known to be harmless. kCorrupt: it is cut
// short or damaged. Never reads past data + size.
Code parse_header(const uint8_t* data, size_t size, Header* header);

// Bytes of the content of the chunk at `chunk`.
size_t chunk_size(const uint8_t* chunk);

int bits_per_pixel(const Header& header);

// Whether the checksums of the image data hold.
bool data_is_intact(const uint8_t* data, const Header& header);

}  // namespace headrace::png
