// PNG and WebP, by a decoder that has seen other files, as the pool's have. The laws: it remembers
// nothing of them; a rectangle is that part of the whole image; nothing reads past the data's end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codecs/image_decoder.h"
#include "crc32.h"
#include "headrace.h"
#include "outcome.h"

using headrace::Code;
using headrace::Image;
using headrace::ImageDecoder;
using headrace::ImageView;
using headrace::Rect;
using headrace::Size;

size_t inputs_decoded = 0;

namespace {

constexpr int64_t kMaxPixels = 1 << 20;  // as a pipeline refuses images over its max_pixels

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "BROKEN: %s\n", what);
  std::abort();
}

// A mutation breaks a checksum, after which there is nothing more to find. So most are fixed.
void fix_checksums(std::vector<uint8_t>* file) {
  const auto word = [&](size_t at) {
    const uint8_t* byte = file->data() + at;
    return size_t{byte[0]} << 24 | size_t{byte[1]} << 16 | size_t{byte[2]} << 8 | byte[3];
  };
  for (size_t at = 8; at + 12 <= file->size();) {
    const size_t size = word(at);
    if (size > file->size() - at - 12) return;
    const uint32_t sum = headrace::crc32(file->data() + at + 4, size + 4);
    for (size_t i = 0; i < 4; ++i)
      (*file)[at + 8 + size + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    at += 12 + size;
  }
}

int scaled(uint8_t choice, int most) { return choice * most / 255; }

Rect choose_rectangle(const uint8_t* choices, const Size& size) {
  const int x = scaled(choices[0], size.width - 1), y = scaled(choices[1], size.height - 1);
  return {x, y, 1 + scaled(choices[2], size.width - x - 1),
          1 + scaled(choices[3], size.height - y - 1)};
}

// Whether `part` is `rect` of `whole`.
bool is_part(const ImageView& whole, const Rect& rect, const ImageView& part) {
  for (int y = 0; y < rect.h; ++y) {
    for (int x = 0; x < rect.w; ++x) {
      if (std::memcmp(whole.row(rect.y + y) + 4 * (rect.x + x), part.row(y) + 4 * x, 3) != 0)
        return false;
    }
  }
  return true;
}

// An image file, decoded into memory of its own.
struct Decoded {
  Code code = Code::kUnsupported;
  Image image;
  ImageView view;

  void run(ImageDecoder* decoder, const Rect& rect) {
    view = image.reshape(rect.w, rect.h);
    int32_t by = -1;
    code = decoder->decode(~HR_INFLATED, rect, view, &by);
    if (code == Code::kOk && by < 0) fail("nobody decoded it");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ImageDecoder kept;
  const Choices choices(data, size);
  std::vector<uint8_t> file(data, data + size);   // without padding: its end is the end
  if (file.empty() || file[0] == 0xFF) return 0;  // a JPEG, for the other targets
  if (choices.byte[4] % 8 != 0) fix_checksums(&file);
  ImageDecoder fresh;
  const Code code = kept.open({file.data(), file.size(), {}});
  if (fresh.open({file.data(), file.size(), {}}) != code) fail("open() remembers another file");
  if (code != Code::kOk) return 0;
  const Size found = kept.size();
  if (int64_t{found.width} * found.height > kMaxPixels) return 0;
  const Rect rect = choose_rectangle(choices.byte, found);
  Decoded whole, part, again;
  part.run(&kept, rect);
  whole.run(&kept, {0, 0, found.width, found.height});
  again.run(&fresh, rect);
  if (again.code != part.code) fail("decode() remembers another rectangle");
  if (part.code == Code::kOk && !is_part(part.view, {0, 0, rect.w, rect.h}, again.view))
    fail("pixels depend on other files");
  if (part.code == Code::kOk && whole.code == Code::kOk && !is_part(whole.view, rect, part.view))
    fail("a rectangle is not that part of the image");
  kept.check();
  inputs_decoded += whole.code == Code::kOk || part.code == Code::kOk;
  return 0;
}
