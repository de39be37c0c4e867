#include <cstring>
#include <string_view>

#include "../jpeg/own_frame.h"
#include "../jpeg/own_tables.h"
#include "codec.h"
#include "headrace.h"

namespace headrace {
namespace {

// The table of JPEG decoders, tried in its order.
class JpegCodec final : public Codec {
 public:
  explicit JpegCodec(int first) : first_(first) {
    for (const jpeg::DecoderVariant& variant : jpeg::decoder_variants())
      decoders_.push_back(variant.make());
  }

  Code open(const EncodedImage& file, Size* size) override;
  Code check() override;
  Code decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) override;
  Code decode_damaged(uint32_t allowed, const ImageView& out) override;
  bool read_orientation(Orientation* orientation) const override;
  bool is_gray() const override { return file_.header.components == 1; }

 private:
  int first_;
  std::vector<std::unique_ptr<jpeg::Decoder>> decoders_;
  jpeg::own::Tables tables_;
  jpeg::File file_;
};

Code JpegCodec::open(const EncodedImage& file, Size* size) {
  file_.data = file.data;
  file_.size = file.size;
  file_.entries = file.entries;
  const Code code = jpeg::parse_header(file.data, file.size, &file_.header);
  *size = {file_.header.width, file_.header.height};
  return code;
}

// A baseline file whose header defines what its scan names, and whose only scan has no markers but
// its restarts and, as the file's last two bytes, the end. Takes a few microseconds.
Code JpegCodec::check() {
  const jpeg::Header& header = file_.header;
  jpeg::own::Frame frame;
  if (!jpeg::own::make_frame(header, &frame) || !header.ends_with_eoi) return Code::kUnsupported;
  if (tables_.read(file_.data, header) != Code::kOk) return Code::kCorrupt;
  const uint8_t* at = file_.data + header.scan_offset;
  const uint8_t* const end = file_.data + file_.size - 2;  // the end marker
  while (at < end) {
    at = static_cast<const uint8_t*>(std::memchr(at, 0xFF, static_cast<size_t>(end - at)));
    if (at == nullptr) return Code::kOk;
    const bool restart = header.restart_interval > 0 && at[1] >= 0xD0 && at[1] <= 0xD7;
    if (at[1] != 0 && !restart) return Code::kCorrupt;
    at += 2;
  }
  return at == end ? Code::kOk : Code::kCorrupt;
}

Code JpegCodec::decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) {
  Code code = Code::kUnsupported;
  file_.luma = (allowed & HR_LUMA) != 0;
  for (size_t i = 0; i < decoders_.size(); ++i) {
    const int number = first_ + static_cast<int>(i);
    if ((allowed >> number & 1u) == 0) continue;
    code = decoders_[i]->decode(file_, rect, out);
    if (code == Code::kOk) *decoder = number;
    if (code == Code::kOk || code == Code::kOutOfMemory) return code;
  }
  return code;
}

Code JpegCodec::decode_damaged(uint32_t allowed, const ImageView& out) {
  file_.luma = (allowed & HR_LUMA) != 0;
  return jpeg::make_libjpeg_damage_decoder()->decode(file_, {0, 0, out.width, out.height}, out);
}

bool JpegCodec::read_orientation(Orientation* orientation) const {
  constexpr uint8_t kApp1 = 0xE1;
  constexpr std::string_view kExif("Exif\0\0", 6), kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
  OrientationTags tags;
  bool is_first = true;  // torchcodec reads this one alone, whatever it is
  jpeg::for_each_segment(file_.data, file_.header.sos_offset,
                         [&](uint8_t marker, const uint8_t* content, size_t size) {
                           const std::string_view segment(reinterpret_cast<const char*>(content),
                                                          size);
                           if (marker != kApp1) return true;
                           const bool is_exif = segment.substr(0, kExif.size()) == kExif;
                           const bool is_xmp = segment.substr(0, kXmp.size()) == kXmp;
                           if (is_first ? !is_exif && !is_xmp : is_exif) tags.add_unknown();
                           if (is_exif) tags.add_exif(segment.substr(kExif.size()));
                           if (is_xmp) tags.add_xmp(segment);
                           is_first = false;
                           return true;
                         });
  return tags.find(orientation);
}

}  // namespace

std::unique_ptr<Codec> make_jpeg_codec(int first) { return std::make_unique<JpegCodec>(first); }

}  // namespace headrace
