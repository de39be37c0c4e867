#include "image_decoder.h"

namespace headrace {

ImageDecoder::ImageDecoder() : codecs_(formats().size()) {}

Code ImageDecoder::open(const EncodedImage& file) {
  size_ = {0, 0};
  codec_ = nullptr;
  int first = 0;
  for (size_t i = 0; i < codecs_.size(); ++i) {
    const Format& format = formats()[i];
    if (!format.begins(file.data, file.size)) {
      first += static_cast<int>(format.decoders.size());
      continue;
    }
    if (format.make == nullptr) return Code::kUnsupported;
    if (codecs_[i] == nullptr) codecs_[i] = format.make(first);
    Size size = {0, 0};
    const Code code = codecs_[i]->open(file, &size);
    if (code != Code::kOk) return code;
    if (size.width < 1 || size.height < 1) return Code::kCorrupt;
    codec_ = codecs_[i].get();
    size_ = size;
    return Code::kOk;
  }
  return Code::kUnsupported;
}

}  // namespace headrace
