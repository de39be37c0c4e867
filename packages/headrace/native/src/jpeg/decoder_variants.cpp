#include "decoder.h"

namespace headrace::jpeg {

const std::vector<DecoderVariant>& decoder_variants() {
  static const std::vector<DecoderVariant> variants = {
      {"headrace", make_own_decoder},
      {"libjpeg-crop", make_libjpeg_crop_decoder},
      {"libjpeg-full", make_libjpeg_full_decoder},
  };
  return variants;
}

}  // namespace headrace::jpeg
