// One sample from its bytes to its place in the batch, on one thread.
#pragma once

#include <vector>

#include "codecs/image_decoder.h"
#include "headrace.h"
#include "program.h"
#include "reader.h"
#include "resize/store.h"
#include "runner.h"

namespace headrace {

enum Stage : int { kRead = 0, kParse = 1, kDecode = 2, kResize = 3, kStore = 4 };

// The pixels that the pipeline's ops give, as one sample at `data`.
void store_sample(const ConstImageView& rendered, const hr_pipeline& pipeline, void* data);

int64_t now_nanoseconds();  // of a clock that only goes forward

// What a thread did since it was last asked; added up over the threads. Its numbers of threads stay
// 0.
using Tally = hr_stats;

// Keeps decoders and buffers from sample to sample: made once per thread, because making them is
// what page faults cost.
class SampleMaker {
 public:
  // Makes sample `position` of the request from `bytes`: pixels into the batch, the outcome into
  // its status, the cost into `tally`.
  void make(const hr_request& request, int64_t position, const Bytes& bytes, Tally* tally);

 private:
  Code produce(const hr_request& request, int64_t position, const Bytes& bytes, hr_status* status,
               Tally* tally);
  // Parses the bytes and builds program_ for the image that they hold.
  Code prepare(const hr_request& request, int64_t position, const Bytes& bytes, hr_status* status,
               Tally* tally);
  // Puts the rectangle that program_ reads where runner_ expects it.
  Code load(const hr_pipeline& pipeline, const hr_source& source, const Bytes& bytes,
            hr_status* status, Tally* tally);

  ImageDecoder decoder_;
  std::vector<hr_draw> draws_;
  Size stored_size_ = {0, 0};  // of the image in the file at hand
  Orientation orientation_;    // of that image
  Image stored_;               // what is decoded before it is turned
  Program program_;
  Runner runner_;
};

}  // namespace headrace
