// One sample from its bytes to its place in the batch, on one thread.
#pragma once

#include <memory>
#include <vector>

#include "geometry.h"
#include "headrace.h"
#include "image.h"
#include "jpeg/decoder.h"
#include "reader.h"
#include "resize/resize.h"
#include "resize/store.h"

namespace headrace {

enum Stage : int { kRead = 0, kParse = 1, kDecode = 2, kResize = 3, kStore = 4 };

// One sample of the pipeline, at `data`.
SampleOutput output_at(const hr_pipeline& pipeline, void* data);

int64_t now_nanoseconds();  // of a clock that only goes forward

// What a thread did since it was last asked; added up over the threads for hr_stats.
struct Tally {
  int64_t samples = 0;
  int64_t failed = 0;
  int64_t bytes_read = 0;
  int64_t pixels_decoded = 0;
  int64_t stale_entries = 0;  // samples whose file is younger than its entry points
  int64_t nanoseconds[HR_STAGES] = {};
  int64_t decoded_by[HR_DECODERS] = {};
};

// Keeps decoders and buffers from sample to sample: made once per thread, because making them is
// what page faults cost.
class SampleMaker {
 public:
  SampleMaker();

  // Makes sample `position` of the request from `bytes`: pixels into the batch, the outcome into
  // its status, the cost into `tally`.
  void make(const hr_request& request, int64_t position, const Bytes& bytes, Tally* tally);

 private:
  Code produce(const hr_request& request, int64_t position, const Bytes& bytes, hr_status* status,
               Tally* tally);
  Code decode(const hr_pipeline& pipeline, const jpeg::File& file, const Rect& rect,
              hr_status* status, Tally* tally);
  Code render(const Geometry& geometry, const PillowRules& rules, const Rect& footprint,
              const hr_pipeline& pipeline);
  Code gather_padded(const Geometry& geometry, const ImageView& resized, const ImageView& out);

  std::vector<std::unique_ptr<jpeg::Decoder>> decoders_;
  std::vector<hr_draw> draws_;
  Resizer resizer_;
  Image decoded_;
  Image resized_;
  Image output_;
  ImageView pixels_;    // of the footprint, in decoded_
  ImageView rendered_;  // what store_rows() takes
};

}  // namespace headrace
