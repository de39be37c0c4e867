// One image file in memory to images made of it: each is a window of a resized crop, mirrored, and
// then put through ops; with hr_pipeline::gray the crop is of convert("L"). What a recorded chain
// of such steps comes to.
#pragma once

#include "codecs/image_decoder.h"
#include "headrace.h"
#include "image.h"
#include "program.h"
#include "resize/resize.h"
#include "runner.h"
#include "status.h"

namespace headrace {

// The pixels of a whole image in memory of the caller's: how many bytes of it are needed, and where
// they are in it.
size_t whole_nbytes(Size size);
ImageView whole_in(uint8_t* memory, Size size);
ConstImageView whole_in(const uint8_t* memory, Size size);

// Keeps decoders and buffers from image to image; one instance serves one thread.
class Renderer {
 public:
  // Makes the image of each job, whose code it sets. The jobs have been checked by
  // check_render_job(). kUnsupported, kCorrupt: no allowed decoder takes this file.
  // kInvalidArgument: a crop leaves its image; nothing is written.
  Code render(const uint8_t* data, size_t size, hr_render_job* jobs, int count);

  // All pixels of a file of the size of `to`.
  Code decode_all(const uint8_t* data, size_t size, uint32_t decoders, const ImageView& to);

  // As render(), of an image that decode_all() gave. kInvalidArgument: a crop leaves it; nothing is
  // written.
  Code render_decoded(const ConstImageView& image, hr_render_job* jobs, int count);

  // As render(), of a file that check() approves, and that no decoder takes.
  Code render_damaged(const uint8_t* data, size_t size, hr_render_job* job);

  // Whether the ops of a job can be done, which doesn't depend on pixels.
  Code check_ops(const hr_render_job& job);

  // kOk where Pillow is certain to decode all of this file without an error. Reads nothing past its
  // end.
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
  // Copies the file to where codecs may read past its end, and opens it.
  Code open(const uint8_t* data, size_t size, uint32_t decoders = 0);
  Code decode(uint32_t decoders, const Rect& rect, ImageView* pixels);
  // `gray`: the pixels are those of convert("L") already, where that is asked for.
  Code finish(const Plan& plan, ConstImageView pixels, bool gray, const hr_render_job& job);
  // Writes the finished pixels to a job's output.
  Code store(const ConstImageView& rendered, const hr_render_job& job);

  ImageDecoder decoder_;
  Buffer padded_;
  Buffer patch_;
  Image decoded_;
  Image luma_;
  Image resized_;
  Resizer resizer_;
  Program program_;
  Runner runner_;
};

// Makes images[i] at outputs[i], in a layout of its own unless layouts[i] is -1; those of one file
// together. Where the data of a JPEG are damaged, it is decoded as Pillow does.
Code render_images(Renderer* renderer, const hr_image_fill* const* images, void* const* outputs,
                   const int32_t* layouts, int count);

// What is wrong with `job` by itself; nullptr: nothing.
const char* check_render_job(const hr_render_job& job);

}  // namespace headrace
