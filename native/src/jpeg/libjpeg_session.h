// libjpeg-turbo behind a wall: its errors become codes, its memory is kept from file to file, its
// appetite is bounded.
#pragma once

#include <csetjmp>
#include <cstdio>
#include <vector>

#include "decoder.h"

// After <cstdio>, which it needs and does not include.
#include <jpeglib.h>

namespace headrace::jpeg {

class LibjpegSession {
 public:
  LibjpegSession();
  ~LibjpegSession();
  LibjpegSession(const LibjpegSession&) = delete;
  LibjpegSession& operator=(const LibjpegSession&) = delete;

  // The pixels of `rect` from the JPEG in `data`. crop: skips what lies outside, as far as libjpeg
  // can; otherwise all of the file is decoded, so that damage anywhere in it is noticed.
  Code decode(const uint8_t* data, size_t size, const Rect& rect, const ImageView& out, bool crop);

 private:
  struct Errors {
    jpeg_error_mgr base;  // first: libjpeg hands its address back
    std::jmp_buf escape;
  };

  static void on_error(j_common_ptr cinfo);
  static void on_message(j_common_ptr cinfo, int level);
  static void on_progress(j_common_ptr cinfo);

  // Both run under setjmp: nothing in them may have a destructor.
  Code run(const uint8_t* data, size_t size, const Rect& rect, const ImageView& out, bool crop);
  Code start(const uint8_t* data, size_t size, const Rect& rect);
  bool copy_rows(int first_column, int rows_before, const Rect& rect, const ImageView& out);

  jpeg_decompress_struct cinfo_;
  Errors errors_;
  jpeg_progress_mgr progress_;
  std::vector<uint8_t> row_;
  bool created_ = false;
};

}  // namespace headrace::jpeg
