// One JPEG in memory to one window of its resized crop: what a recorded chain of crop, resize and
// mirroring comes to.
#pragma once

#include <memory>
#include <vector>

#include "headrace.h"
#include "image.h"
#include "jpeg/decoder.h"
#include "jpeg/own_tables.h"
#include "resize/resize.h"
#include "status.h"

namespace headrace {

// Keeps decoders and buffers from image to image; one instance serves one thread.
class Renderer {
 public:
  Renderer();

  // Writes job.window's pixels as rows of RGB, 3 bytes a pixel, to `rgb`. `job` has been checked
  // by check_render_job(). kUnsupported, kCorrupt: no allowed decoder takes this file.
  Code render(const uint8_t* data, size_t size, const hr_render_job& job, uint8_t* rgb);

  // kOk where libjpeg is certain to decode all of this file without an error: a baseline file whose
  // header defines what its scan names, and whose only scan has no markers but its restarts and,
  // as the file's last two bytes, the end. Takes a few microseconds.
  Code check(const uint8_t* data, size_t size);

 private:
  jpeg::own::Tables tables_;
  std::vector<std::unique_ptr<jpeg::Decoder>> decoders_;
  Buffer padded_;
  Image decoded_;
  Image resized_;
  Resizer resizer_;
};

// What is wrong with `job` by itself; nullptr: nothing.
const char* check_render_job(const hr_render_job& job);

}  // namespace headrace
