// libjpeg's way of failing, turned into codes: an error jumps back to the caller's setjmp, a
// warning is counted, nothing is printed.
#pragma once

#include <csetjmp>
#include <cstdio>

#include "../status.h"

// After <cstdio>, which it needs and does not include.
#include <jpeglib.h>

namespace headrace::jpeg {

// Lives as long as the libjpeg object whose `err` it is. Before each call into libjpeg that can
// fail: `if (setjmp(errors.escape) != 0) return errors.code();`. What a jump leaves behind must
// have no destructor.
struct LibjpegErrors {
  jpeg_error_mgr base;  // first: libjpeg hands its address back
  std::jmp_buf escape;

  jpeg_error_mgr* install();

  long warnings() const { return base.num_warnings; }

  // Of the error that jumped: kUnsupported where this libjpeg can't, kOutOfMemory, else kCorrupt.
  Code code() const;
};

}  // namespace headrace::jpeg
