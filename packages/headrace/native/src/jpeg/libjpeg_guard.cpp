#include "libjpeg_guard.h"

#include <algorithm>

// After jpeglib.h.
#include <jerror.h>

namespace headrace::jpeg {
namespace {

// What one image may take while it is decoded, in bytes: coefficients of a progressive file of
// Pillow's default limit (89 million pixels, 4:2:0) are 270 MB.
constexpr long kMaxMemory = 1L << 30;

// A file can hold any number of scans, each costing as much as the whole image; encoders write
// about 10.
constexpr int kMaxScans = 500;

void on_error(j_common_ptr cinfo) {
  std::longjmp(reinterpret_cast<LibjpegGuard*>(cinfo->err)->escape, 1);
}

// Negative levels are warnings: damage that libjpeg papers over.
void on_message(j_common_ptr cinfo, int level) {
  if (level < 0) ++cinfo->err->num_warnings;
}

void on_progress(j_common_ptr cinfo) {
  if (reinterpret_cast<j_decompress_ptr>(cinfo)->input_scan_number <= kMaxScans) return;
  cinfo->err->msg_code = JERR_NOT_COMPILED;
  on_error(cinfo);
}

}  // namespace

jpeg_error_mgr* LibjpegGuard::install() {
  jpeg_std_error(&errors);
  errors.error_exit = on_error;
  errors.emit_message = on_message;
  return &errors;
}

void LibjpegGuard::limit(jpeg_decompress_struct* cinfo) {
  cinfo->mem->max_memory_to_use = kMaxMemory;
  progress.progress_monitor = on_progress;
  cinfo->progress = &progress;
}

Code LibjpegGuard::code() const {
  switch (errors.msg_code) {
    case JERR_OUT_OF_MEMORY:
      return Code::kOutOfMemory;
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_IMAGE_TOO_BIG:
    case JERR_NO_BACKING_STORE:  // more than kMaxMemory
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
      return Code::kUnsupported;
    default:
      return Code::kCorrupt;
  }
}

bool lacks_scans(const jpeg_decompress_struct& cinfo) {
  if (!cinfo.progressive_mode) return false;
  for (int i = 0; i < cinfo.num_components; ++i) {
    const int* bits = cinfo.coef_bits[i];
    if (std::any_of(bits, bits + DCTSIZE2, [](int unknown) { return unknown != 0; })) return true;
  }
  return false;
}

}  // namespace headrace::jpeg
