// Decoders that have seen other files before, as the pool's have, and lossless transcoding. The
// laws: a decoder remembers nothing; those that give pixels give the same ones; a transcoded file
// decodes to its source's pixels; nothing reads past the data's end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu.h"
#include "jpeg/decoder.h"
#include "jpeg/transcode.h"
#include "outcome.h"

using headrace::Buffer;
using headrace::Code;
using headrace::Image;
using headrace::ImageView;
using headrace::Rect;
namespace jpeg = headrace::jpeg;

size_t inputs_decoded = 0;

namespace {

constexpr int64_t kMaxPixels = 1 << 20;  // as a pipeline refuses images over its max_pixels

// Numbers that depend on the input and on nothing else.
class Draws {
 public:
  Draws(const uint8_t* data, size_t size) {
    for (size_t i = 0; i < size; ++i) state_ = (state_ ^ data[i]) * 0x100000001B3;
  }
  // 0 to limit - 1.
  int below(int limit) {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(limit));
  }
  // All of the image in one case of four.
  Rect rectangle(int width, int height) {
    if (below(4) == 0) return {0, 0, width, height};
    const int w = 1 + below(width), h = 1 + below(height);
    return {below(width - w + 1), below(height - h + 1), w, h};
  }

 private:
  uint64_t state_ = 0xCBF29CE484222325;
};

struct Tally {
  std::string name;
  size_t taken = 0;
  size_t refused = 0;

  bool count(Code code) {
    ++(code == Code::kOk ? taken : refused);
    return code == Code::kOk;
  }
  void print() const {
    std::fprintf(stderr, "%-30s %8zu taken %8zu refused\n", name.c_str(), taken, refused);
  }
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "BROKEN: %s\n", what.c_str());
  std::abort();
}

bool same_pixels(const ImageView& a, const ImageView& b) {
  for (int y = 0; y < a.height; ++y) {
    for (int x = 0; x < a.width; ++x)
      if (std::memcmp(a.row(y) + size_t{4} * x, b.row(y) + size_t{4} * x, 3) != 0) return false;
  }
  return true;
}

// All decoders, kept from input to input as the pool keeps them.
class Target {
 public:
  Target();
  ~Target();
  void take(const uint8_t* data, size_t size);

 private:
  struct Variant {
    jpeg::DecoderVariant row;
    std::unique_ptr<jpeg::Decoder> kept;
    Tally tally;
    Tally transcoded;
  };

  Code decode(jpeg::Decoder* decoder, const jpeg::File& file, const Rect& rect,
              const std::string& name);
  Code decode_kept(Variant* variant, const jpeg::File& file, const Rect& rect);
  void check_transcoded(const std::vector<uint8_t>& bytes, Draws* draws, const Rect& rect);

  std::vector<Variant> variants_;
  Tally header_ = {"header"};
  Tally transcode_ = {"transcode"};
  Image image_;
  // What the first decoder to take the input at hand made of it; no data: none has, yet.
  Image memory_;
  ImageView pixels_;
  std::string decoder_;
};

Target::Target() {
  for (const jpeg::DecoderVariant& row : jpeg::decoder_variants())
    variants_.push_back({row, row.make(), {row.name}, {std::string(row.name) + ", transcoded"}});
}

Target::~Target() {
  header_.print();
  transcode_.print();
  for (const Variant& each : variants_) each.tally.print();
  for (const Variant& each : variants_) each.transcoded.print();
}

void Target::take(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);  // without padding: its end is the end
  jpeg::Header header;
  if (!header_.count(jpeg::parse_header(bytes.data(), size, &header))) return;
  if (int64_t{header.width} * header.height > kMaxPixels) return;
  std::vector<uint8_t> padded = bytes;
  padded.resize(size + Buffer::kPadding);
  const jpeg::File file = {padded.data(), size, header, {}};
  Draws draws(data, size);
  headrace::simd_force(static_cast<headrace::Simd>(draws.below(headrace::kSimdCount)));
  const Rect rect = draws.rectangle(header.width, header.height);
  pixels_ = {};
  Code last = Code::kOk;
  for (Variant& each : variants_) {
    last = decode_kept(&each, file, rect);
    each.tally.count(last);
  }
  inputs_decoded += pixels_.data != nullptr;
  // Transcoding reads all of a file, so only the decoder that does the same must agree.
  if (last == Code::kOk) check_transcoded(bytes, &draws, rect);
}

void Target::check_transcoded(const std::vector<uint8_t>& bytes, Draws* draws, const Rect& rect) {
  jpeg::TranscodeOptions options;
  options.restart_interval = draws->below(4) - 1;
  options.optimize = draws->below(2) != 0;
  options.copy_markers = draws->below(2) != 0;
  std::vector<uint8_t> out;
  if (!transcode_.count(jpeg::transcode(bytes.data(), bytes.size(), options, &out))) return;
  const size_t size = out.size();
  out.resize(size + Buffer::kPadding);
  jpeg::File file = {out.data(), size, {}, {}};
  if (jpeg::parse_header(out.data(), size, &file.header) != Code::kOk)
    fail("a transcoded file has no header");
  Code last = Code::kOk;
  for (Variant& each : variants_) {
    last = decode_kept(&each, file, rect);
    each.transcoded.count(last);
  }
  if (last != Code::kOk) fail("a transcoded file does not decode");
}

// As if the decoder had never seen another file.
Code Target::decode_kept(Variant* variant, const jpeg::File& file, const Rect& rect) {
  const Code code = decode(variant->kept.get(), file, rect, variant->row.name);
  const std::unique_ptr<jpeg::Decoder> fresh = variant->row.make();
  if (decode(fresh.get(), file, rect, variant->tally.name + ", made again,") != code)
    fail(variant->tally.name + " remembers another file");
  return code;
}

// The pixels must be those of the decoders before it.
Code Target::decode(jpeg::Decoder* decoder, const jpeg::File& file, const Rect& rect,
                    const std::string& name) {
  const ImageView view = image_.reshape(rect.w, rect.h);
  const Code code = decoder->decode(file, rect, view);
  if (code != Code::kOk) return code;
  if (pixels_.data == nullptr) {
    pixels_ = memory_.reshape(rect.w, rect.h);
    std::memcpy(pixels_.data, view.data, view.stride * static_cast<size_t>(rect.h));
    decoder_ = name;
  } else if (!same_pixels(pixels_, view)) {
    fail(decoder_ + " and " + name + " give different pixels");
  }
  return code;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Target target;
  target.take(data, size);
  return 0;
}
