#include "png_file.h"

#include <algorithm>
#include <cstring>

#include "../geometry.h"

namespace headrace::png {
namespace {

// Pillow refuses text and profiles that inflate to more (PngImagePlugin.MAX_TEXT_CHUNK).
constexpr size_t kMaxText = 1 << 20;
// Deflate makes at most 1,032 bytes of one: less than this can't inflate to kMaxText.
constexpr size_t kHarmless = 1000;

constexpr uint32_t type_of(const char (&name)[5]) {
  return uint32_t{static_cast<uint8_t>(name[0])} << 24 |
         uint32_t{static_cast<uint8_t>(name[1])} << 16 |
         uint32_t{static_cast<uint8_t>(name[2])} << 8 | static_cast<uint8_t>(name[3]);
}

constexpr uint32_t kIhdr = type_of("IHDR"), kPlte = type_of("PLTE"), kIdat = type_of("IDAT"),
                   kIend = type_of("IEND"), kTrns = type_of("tRNS"), kGama = type_of("gAMA"),
                   kChrm = type_of("cHRM"), kSrgb = type_of("sRGB"), kPhys = type_of("pHYs"),
                   kText = type_of("tEXt"), kZtxt = type_of("zTXt"), kItxt = type_of("iTXt"),
                   kIccp = type_of("iCCP"), kActl = type_of("acTL"), kFctl = type_of("fcTL"),
                   kFdat = type_of("fdAT"), kExif = type_of("eXIf");

uint32_t word(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

struct Chunk {
  size_t begin;  // of its length, in the file
  uint32_t type;
  const uint8_t* data;
  size_t size;

  size_t end() const { return begin + kChunkOverhead + size; }
  bool intact() const { return libdeflate_crc32(0, data - 4, 4 + size) == word(data + size); }
  // Where the first zero byte is; the size where there is none.
  size_t keyword_size() const {
    return static_cast<size_t>(std::find(data, data + size, 0) - data);
  }
};

// False where the file ends first.
bool next_chunk(const uint8_t* data, size_t size, size_t at, Chunk* chunk) {
  if (size - at < kChunkOverhead) return false;
  const uint32_t length = word(data + at);
  if (length > size - at - kChunkOverhead) return false;
  *chunk = {at, word(data + at + 4), data + at + 8, length};
  return true;
}

bool is_known_kind(int depth, int color) {
  switch (color) {
    case kGray:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
    case kPalette:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    case kRgb:
    case kGrayAlpha:
    case kRgba:
      return depth == 8 || depth == 16;
    default:
      return false;
  }
}

Code read_start(const Chunk& chunk, Header* header) {
  if (chunk.size != 13) return Code::kUnsupported;
  const uint32_t width = word(chunk.data), height = word(chunk.data + 4);
  if (width < 1 || height < 1 || width > kMaxEdge || height > kMaxEdge) return Code::kUnsupported;
  header->width = static_cast<int>(width);
  header->height = static_cast<int>(height);
  header->bit_depth = chunk.data[8];
  header->color_type = chunk.data[9];
  header->interlaced = chunk.data[12] == 1;
  const bool usual = chunk.data[10] == 0 && chunk.data[11] == 0 && chunk.data[12] <= 1;
  return usual && is_known_kind(header->bit_depth, header->color_type) ? Code::kOk
                                                                       : Code::kUnsupported;
}

// Transparency changes no pixel of convert("RGB"), but Pillow warns of palettes with more than one
// transparent entry.
Code read_transparency(const Chunk& chunk, const Header& header) {
  switch (header.color_type) {
    case kGray:
      return chunk.size == 2 ? Code::kOk : Code::kUnsupported;
    case kRgb:
      return chunk.size == 6 ? Code::kOk : Code::kUnsupported;
    case kPalette: {
      const uint8_t* const end = chunk.data + chunk.size;
      const auto opaque = static_cast<size_t>(std::count(chunk.data, end, 255));
      const bool one = opaque + 1 == chunk.size && std::find(chunk.data, end, 0) != end;
      return one && chunk.size <= 256 ? Code::kOk : Code::kUnsupported;
    }
    default:
      return Code::kOk;  // Pillow ignores it
  }
}

std::string_view text_of(const Chunk& chunk, size_t size) {
  return {reinterpret_cast<const char*>(chunk.data), size};
}

// Texts that Pillow's getexif() looks at. Compressed ones are not read here.
void read_metadata(const Chunk& chunk, OrientationTags* orientation) {
  const std::string_view keyword = text_of(chunk, chunk.keyword_size());
  if (keyword == "exif" || keyword == "Raw profile type exif") orientation->add_unknown();
  if (keyword != "XML:com.adobe.xmp" && keyword != "xmp") return;
  const size_t flag = chunk.keyword_size() + 1;
  const bool plain =
      chunk.type == kText || (chunk.type == kItxt && flag < chunk.size && chunk.data[flag] == 0);
  if (plain)
    orientation->add_xmp(text_of(chunk, chunk.size));
  else
    orientation->add_unknown();
}

// Pillow keeps texts by their keywords beside what chunks mean to it: these would change that.
bool is_misleading(const Chunk& chunk) {
  for (const char* name : {"transparency", "interlace", "bbox", "default_image"}) {
    if (chunk.keyword_size() == std::strlen(name) &&
        std::memcmp(chunk.data, name, std::strlen(name)) == 0)
      return true;
  }
  return false;
}

Code read_text(const Chunk& chunk) {
  if (is_misleading(chunk)) return Code::kUnsupported;
  if (chunk.type == kText) return chunk.size <= kMaxText ? Code::kOk : Code::kUnsupported;
  const size_t flag = chunk.keyword_size() + 1;
  const bool compressed = chunk.type == kZtxt || (flag < chunk.size && chunk.data[flag] != 0);
  if (!compressed) return chunk.size <= kMaxText ? Code::kOk : Code::kUnsupported;
  if (chunk.type == kZtxt && flag < chunk.size && chunk.data[flag] != 0) return Code::kUnsupported;
  return chunk.size <= kHarmless ? Code::kOk : Code::kUnsupported;
}

// Whether it inflates to less than kMaxText bytes, or is damaged, which Pillow ignores.
bool inflates_harmlessly(const uint8_t* data, size_t size) {
  if (size <= kHarmless) return true;
  const Decompressor decompressor(libdeflate_alloc_decompressor());
  const std::unique_ptr<uint8_t[]> scratch(new uint8_t[kMaxText]);
  size_t made = 0;
  return decompressor != nullptr &&
         libdeflate_zlib_decompress(decompressor.get(), data, size, scratch.get(), kMaxText - 1,
                                    &made) != LIBDEFLATE_INSUFFICIENT_SPACE;
}

Code read_profile(const Chunk& chunk) {
  const size_t method = chunk.keyword_size() + 1;
  if (method >= chunk.size || chunk.data[method] != 0) return Code::kUnsupported;
  return inflates_harmlessly(chunk.data + method + 1, chunk.size - method - 1) ? Code::kOk
                                                                               : Code::kUnsupported;
}

Code exactly(const Chunk& chunk, size_t size) {
  return chunk.size == size ? Code::kOk : Code::kUnsupported;
}

bool is_ancillary(uint32_t type) {
  for (int shift = 0; shift < 32; shift += 8) {
    const auto letter = static_cast<uint8_t>((type >> shift & 0xFF) | 0x20);
    if (letter < 'a' || letter > 'z') return false;
  }
  return (type >> 24 & 0x20) != 0;
}

// All chunks but IHDR, IDAT and IEND.
class Chunks {
 public:
  explicit Chunks(Header* header) : header_(header) {}

  Code read(const Chunk& chunk) {
    switch (chunk.type) {
      case kPlte:
        return read_palette(chunk);
      case kTrns:
        if (header_->transparent_color || header_->data_begin != 0) return Code::kUnsupported;
        header_->transparent_color = true;
        return read_transparency(chunk, *header_);
      case kText:
      case kZtxt:
      case kItxt:
        text_ += chunk.size;  // Pillow has a limit for all texts together
        read_metadata(chunk, &header_->orientation);
        return text_ <= kMaxText ? read_text(chunk) : Code::kUnsupported;
      case kExif:
        header_->orientation.add_exif(text_of(chunk, chunk.size));
        return Code::kOk;
      case kIccp:
        return read_profile(chunk);
      case kGama:
        return exactly(chunk, 4);
      case kChrm:
        return exactly(chunk, 32);
      case kSrgb:
        return exactly(chunk, 1);
      case kPhys:
        return exactly(chunk, 9);
      case kActl:
      case kFctl:
      case kFdat:
        return Code::kUnsupported;  // animated
      default:
        return is_ancillary(chunk.type) ? Code::kOk : Code::kUnsupported;
    }
  }

 private:
  Code read_palette(const Chunk& chunk) {
    const bool usual = chunk.size % 3 == 0 && chunk.size >= 3 && chunk.size <= 768;
    if (!usual || header_->palette_begin != 0 || header_->data_begin != 0)
      return Code::kUnsupported;
    header_->palette_begin = chunk.begin;
    header_->palette_size = chunk.size;
    return Code::kOk;
  }

  Header* header_;
  size_t text_ = 0;
};

}  // namespace

Code parse_header(const uint8_t* data, size_t size, Header* header) {
  *header = Header();
  Chunks chunks(header);
  Chunk chunk;
  for (size_t at = 8;; at = chunk.end()) {
    if (!next_chunk(data, size, at, &chunk)) return Code::kCorrupt;
    if ((chunk.type == kIhdr) != (at == 8)) return Code::kUnsupported;
    if (chunk.type == kIdat) {
      if (chunk.size == 0) return Code::kUnsupported;
      if (header->data_begin == 0) header->data_begin = header->data_end = at;
      if (header->data_end != at) return Code::kUnsupported;
      header->data_end = chunk.end();
      continue;
    }
    if (!chunk.intact()) return Code::kCorrupt;
    if (chunk.type == kIend) break;
    const Code code = chunk.type == kIhdr ? read_start(chunk, header) : chunks.read(chunk);
    if (code != Code::kOk) return code;
  }
  if (header->data_begin == 0) return Code::kCorrupt;
  const bool complete = header->color_type != kPalette || header->palette_begin != 0;
  return complete ? Code::kOk : Code::kUnsupported;
}

size_t chunk_size(const uint8_t* chunk) { return word(chunk); }

int bits_per_pixel(const Header& header) {
  constexpr int kChannels[] = {1, 0, 3, 1, 2, 0, 4};  // by color type
  return header.bit_depth * kChannels[header.color_type];
}

bool data_is_intact(const uint8_t* data, const Header& header) {
  Chunk chunk;
  for (size_t at = header.data_begin; at < header.data_end; at = chunk.end()) {
    if (!next_chunk(data, header.data_end, at, &chunk)) return false;
    if (!chunk.intact()) return false;
  }
  return true;
}

}  // namespace headrace::png
