// Any image file in memory, decoded by the codec that its first bytes ask for.
#pragma once

#include <memory>
#include <vector>

#include "codec.h"

namespace headrace {

// Keeps the codecs that it needed, and their buffers; one instance serves one thread.
class ImageDecoder {
 public:
  ImageDecoder();

  // As Codec::open(). kUnsupported: no codec of this build knows such files.
  Code open(const EncodedImage& file);

  // Of the file opened last; 0 × 0 where that failed.
  Size size() const { return size_; }

  // As those of Codec, of a file whose open() was kOk.
  Code check() { return codec_->check(); }
  bool read_orientation(Orientation* orientation) const {
    return codec_->read_orientation(orientation);
  }
  bool is_gray() const { return codec_->is_gray(); }
  Code decode_damaged(uint32_t allowed, const ImageView& out) {
    return codec_->decode_damaged(allowed, out);
  }
  Code decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) {
    return codec_->decode(allowed, rect, out, decoder);
  }

 private:
  std::vector<std::unique_ptr<Codec>> codecs_;  // by format, made at their first use
  Codec* codec_ = nullptr;
  Size size_ = {0, 0};
};

}  // namespace headrace
