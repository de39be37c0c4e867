// One JPEG in memory to images made of it: each is a window of a resized crop, mirrored, and then
// put through ops; with hr_pipeline::gray the crop is of convert("L"). What a recorded chain of
// such steps comes to.
#pragma once

#include <memory>
#include <vector>

#include "headrace.h"
#include "image.h"
#include "jpeg/decoder.h"
#include "jpeg/own_tables.h"
#include "program.h"
#include "resize/resize.h"
#include "runner.h"
#include "status.h"

namespace headrace {

// Keeps decoders and buffers from image to image; one instance serves one thread.
class Renderer {
 public:
  Renderer();

  // Makes the image of each job, whose code it sets. The jobs have been checked by
  // check_render_job(). kUnsupported, kCorrupt: no allowed decoder takes this file.
  Code render(const uint8_t* data, size_t size, hr_render_job* jobs, int count);

  // kOk where libjpeg is certain to decode all of this file without an error: a baseline file whose
  // header defines what its scan names, and whose only scan has no markers but its restarts and,
  // as the file's last two bytes, the end. Takes a few microseconds.
  Code check(const uint8_t* data, size_t size);

 private:
  // A job in the terms of the resizer, and the rectangle of the file's image that it reads.
  struct Plan {
    ResizeJob resize;
    PillowRules rules;
    Rect footprint;
    Rect rect;
  };

  static Plan plan_of(const hr_render_job& job);
  Code decode(const jpeg::File& file, uint32_t decoders, const Rect& rect, ImageView* pixels);
  Code finish(const Plan& plan, ImageView pixels, const hr_render_job& job);

  jpeg::own::Tables tables_;
  std::vector<std::unique_ptr<jpeg::Decoder>> decoders_;
  Buffer padded_;
  bool gray_ = false;  // whether the file at hand has one component
  Image decoded_;
  Image luma_;
  Image resized_;
  Resizer resizer_;
  Program program_;
  Runner runner_;
};

// What is wrong with `job` by itself; nullptr: nothing.
const char* check_render_job(const hr_render_job& job);

}  // namespace headrace
