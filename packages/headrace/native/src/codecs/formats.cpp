#include <cstring>

#include "codec.h"

namespace headrace {
namespace {

template <size_t N>
bool has(const uint8_t* data, size_t size, size_t at, const char (&text)[N]) {
  return size >= at + N - 1 && std::memcmp(data + at, text, N - 1) == 0;
}

bool begins_as_jpeg(const uint8_t* data, size_t size) { return has(data, size, 0, "\xFF\xD8\xFF"); }

bool begins_as_png(const uint8_t* data, size_t size) {
  return has(data, size, 0, "\x89PNG\r\n\x1A\n");
}

bool begins_as_webp(const uint8_t* data, size_t size) {
  return has(data, size, 0, "RIFF") && has(data, size, 8, "WEBP");
}

std::vector<const char*> jpeg_decoders() {
  std::vector<const char*> names;
  for (const jpeg::DecoderVariant& variant : jpeg::decoder_variants())
    names.push_back(variant.name);
  return names;
}

}  // namespace

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"JPEG", jpeg_decoders(), begins_as_jpeg, make_jpeg_codec, nullptr},
#ifdef HEADRACE_PNG
      {"PNG", {"libdeflate"}, begins_as_png, make_png_codec, png_version},
#else
      {"PNG", {}, begins_as_png, nullptr, nullptr},
#endif
#ifdef HEADRACE_WEBP
      {"WEBP", {"libwebp"}, begins_as_webp, make_webp_codec, webp_version},
#else
      {"WEBP", {}, begins_as_webp, nullptr, nullptr},
#endif
  };
  return all;
}

const std::vector<const char*>& decoder_names() {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> found;
    for (const Format& format : formats())
      found.insert(found.end(), format.decoders.begin(), format.decoders.end());
    return found;
  }();
  return names;
}

}  // namespace headrace
