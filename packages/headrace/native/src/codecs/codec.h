// What an image format is to everything else: files that begin like it, their size, and rectangles
// of their pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../geometry.h"
#include "../image.h"
#include "../jpeg/decoder.h"
#include "../status.h"
#include "orientation.h"

namespace headrace {

// An image file in memory. `data` is readable for Buffer::kPadding bytes past `size`.
struct EncodedImage {
  const uint8_t* data = nullptr;
  size_t size = 0;
  jpeg::EntryPoints entries;  // empty: none known, as for every format but JPEG
};

// Decodes the files of one format. One instance serves one thread, and keeps its buffers from file
// to file.
class Codec {
 public:
  virtual ~Codec() = default;

  // Reads the header of a file, to which the other calls refer until the next open(); its memory
  // must stay. Neither this nor check() reads past the file's end. kUnsupported, kCorrupt: Pillow
  // decides what to make of it.
  virtual Code open(const EncodedImage& file, Size* size) = 0;

  // kOk where Pillow is certain to decode all of the file without an error. Costs far less than
  // decoding it.
  virtual Code check() = 0;

  // Writes the pixels of `rect` (non-empty, inside the image) as RGBX rows into `out`, rect.w ×
  // rect.h, bit for bit those of Pillow's convert("RGB"). `allowed`: bit i allows decoder i of
  // decoder_names(); HR_LUMA may be among them. *decoder: the one that gave the pixels. With
  // another code than kOk, `out` is undefined, and Pillow decides what the file is.
  virtual Code decode(uint32_t allowed, const Rect& rect, const ImageView& out,
                      int32_t* decoder) = 0;

  // All pixels of a file whose check() was kOk, but not its decode(): those
  // that Pillow gives.
  virtual Code decode_damaged(uint32_t, const ImageView&) { return Code::kUnsupported; }

  // How the file that was opened last is to be turned. False where that is Pillow's to say.
  virtual bool read_orientation(Orientation* orientation) const = 0;

  // Whether red, green and blue of that file are equal everywhere for sure.
  virtual bool is_gray() const { return false; }
};

// A row of the table of formats.
struct Format {
  const char* name;                   // as Pillow's Image.format
  std::vector<const char*> decoders;  // empty: this build has none
  // By its first bytes.
  bool (*begins)(const uint8_t* data, size_t size);
  // first: the number in decoder_names() of the first of its decoders.
  std::unique_ptr<Codec> (*make)(int first);
  // Of the library behind its only decoder; nullptr: none, or another place tells it.
  std::string (*version)();
};

// All formats that native code knows, those without a decoder in this build included.
const std::vector<Format>& formats();

// The decoders of all formats, in their order; within a format, best first.
const std::vector<const char*>& decoder_names();

std::unique_ptr<Codec> make_jpeg_codec(int first);
#ifdef HEADRACE_PNG
std::unique_ptr<Codec> make_png_codec(int first);
std::string png_version();
// An upper bound of the bytes that png_inflate() writes for a file; 0: it doesn't take it.
uint64_t png_inflated_bound(const uint8_t* data, size_t size);
// The same file with inflated image data in `out`, *out_size bytes, which decode() takes if
// HR_INFLATED is among the decoders. With kOk all of it can be decoded for certain.
Code png_inflate(const uint8_t* data, size_t size, uint8_t* out, uint64_t* out_size);
#endif
#ifdef HEADRACE_WEBP
std::unique_ptr<Codec> make_webp_codec(int first);
std::string webp_version();
#endif

}  // namespace headrace
