// The two decoders that hand a file to libjpeg-turbo as it is.
#include "libjpeg_session.h"

namespace headrace::jpeg {
namespace {

// Nobody knows what two components mean; Pillow refuses them.
bool has_known_components(const Header& header) {
  return header.components != 2 && header.precision == 8;
}

class FullDecoder final : public Decoder {
 public:
  bool supports(const File& file) const override { return has_known_components(file.header); }

  Code decode(const File& file, const Rect& rect, const ImageView& out) override {
    return session_.decode(file.data, file.size, rect, out, Reach::kWholeFile);
  }

 private:
  LibjpegSession session_;
};

class CropDecoder final : public Decoder {
 public:
  // A file that was cut short must fail wherever the crop lies, so its end is looked at first.
  bool supports(const File& file) const override {
    return has_known_components(file.header) && file.header.ends_with_eoi;
  }

  Code decode(const File& file, const Rect& rect, const ImageView& out) override {
    return session_.decode(file.data, file.size, rect, out, Reach::kRectangle);
  }

 private:
  LibjpegSession session_;
};

}  // namespace

std::unique_ptr<Decoder> make_libjpeg_full_decoder() { return std::make_unique<FullDecoder>(); }
std::unique_ptr<Decoder> make_libjpeg_crop_decoder() { return std::make_unique<CropDecoder>(); }

}  // namespace headrace::jpeg
