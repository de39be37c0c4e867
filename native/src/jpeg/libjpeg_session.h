// libjpeg-turbo as a decoder of rectangles: errors become codes, its appetite is bounded, damage
// that it would paper over is refused.
#pragma once

#include "decoder.h"
#include "libjpeg_guard.h"

namespace headrace::jpeg {

enum class Reach {
  kWholeFile,  // decode all of it, so that damage anywhere is noticed
  kRectangle,  // skip what lies outside the rectangle, as far as libjpeg can
};

class LibjpegSession {
 public:
  LibjpegSession() = default;
  LibjpegSession(const LibjpegSession&) = delete;
  LibjpegSession& operator=(const LibjpegSession&) = delete;

  // The pixels of `rect` from the JPEG in `data`; kOk only where libjpeg had nothing to warn about.
  Code decode(const uint8_t* data, size_t size, const Rect& rect, const ImageView& out,
              Reach reach);

 private:
  // These run under setjmp: nothing in them may have a destructor.
  Code open(const uint8_t* data, size_t size, const Rect& rect);
  Code read_whole_file(const Rect& rect, const ImageView& out);
  Code read_rectangle(const Rect& rect, const ImageView& out);
  bool skip_rows(int count);
  bool copy_rows(const Rect& rect, int first_column, const ImageView& out);

  jpeg_decompress_struct cinfo_ = {};
  LibjpegGuard guard_ = {};
  Buffer row_;
};

}  // namespace headrace::jpeg
