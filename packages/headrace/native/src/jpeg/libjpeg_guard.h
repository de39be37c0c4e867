// What keeps libjpeg in bounds: an error jumps back to the caller's setjmp and becomes a code, a
// warning is counted, nothing is printed, memory and scans are limited.
#pragma once

#include <csetjmp>
#include <cstdio>

#include "../status.h"

// After <cstdio>, which it needs and does not include.
#include <jpeglib.h>

namespace headrace::jpeg {

// Outlives the libjpeg objects that it guards. Before the first call into libjpeg:
// `if (setjmp(guard.escape) != 0) { destroy them; return guard.code(); }`. What a jump leaves
// behind must have no destructor, and what is read after it must not be the setjmp function's own
// variable.
struct LibjpegGuard {
  jpeg_error_mgr errors;  // first: libjpeg hands its address back
  std::jmp_buf escape;
  jpeg_progress_mgr progress;

  // For the `err` of an object that is about to be created.
  jpeg_error_mgr* install();

  // Once it is created: limits on memory and on the number of scans.
  void limit(jpeg_decompress_struct* cinfo);

  long warnings() const { return errors.num_warnings; }

  // Of the error that jumped: kUnsupported where this libjpeg can't, kOutOfMemory, else kCorrupt.
  Code code() const;
};

// Progressive files some of whose scans are missing. libjpeg guesses those coefficients from the
// neighbouring blocks', and its versions guess differently. To be asked when all scans were read.
bool lacks_scans(const jpeg_decompress_struct& cinfo);

}  // namespace headrace::jpeg
