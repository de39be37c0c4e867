#include "libjpeg_errors.h"

// After jpeglib.h.
#include <jerror.h>

namespace headrace::jpeg {
namespace {

void on_error(j_common_ptr cinfo) {
  std::longjmp(reinterpret_cast<LibjpegErrors*>(cinfo->err)->escape, 1);
}

// Negative levels are warnings: damage that libjpeg papers over.
void on_message(j_common_ptr cinfo, int level) {
  if (level < 0) ++cinfo->err->num_warnings;
}

}  // namespace

jpeg_error_mgr* LibjpegErrors::install() {
  jpeg_std_error(&base);
  base.error_exit = on_error;
  base.emit_message = on_message;
  return &base;
}

Code LibjpegErrors::code() const {
  switch (base.msg_code) {
    case JERR_OUT_OF_MEMORY:
      return Code::kOutOfMemory;
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_IMAGE_TOO_BIG:
    case JERR_NO_BACKING_STORE:  // more than max_memory_to_use
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
      return Code::kUnsupported;
    default:
      return Code::kCorrupt;
  }
}

}  // namespace headrace::jpeg
