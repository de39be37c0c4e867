// What is done to one sample: the pipeline's ops with what was drawn for them, cut into passes.
#pragma once

#include <cstdint>
#include <vector>

#include "geometry.h"
#include "headrace.h"
#include "random.h"
#include "resize/resize.h"
#include "status.h"

namespace headrace {

// The most ops that a pipeline can have; those inside of others count.
constexpr int kMaxOps = 64;

// Ops that fold, done at once, and then pixel ops one by one.
struct Pass {
  Geometry geometry;
  Rect footprint;    // of the pass's input, after the geometry's mirroring: what is resized
  size_t first = 0;  // its pixel ops are [first, last) of Program::pixels
  size_t last = 0;
};

struct Program {
  std::vector<Pass> passes;  // at least one
  std::vector<int> pixels;   // places of ops in the pipeline
};

PillowRules rules_of(const hr_pipeline& pipeline);

// A sentence that says what is wrong with the pipeline's ops; nullptr: nothing.
const char* check_ops(const hr_pipeline& pipeline);

// Draws for every op on an image of `in`, and the size of the result. draws: [op_count].
// kUnsupported: torchvision raises an error for such an image, or an edge is longer than kMaxEdge.
Code draw_ops(const hr_pipeline& pipeline, const RandomKey& key, Size in, hr_draw* draws,
              Size* out);

// kUnsupported: the result isn't of the pipeline's height and width, or shows nothing but padding.
Code build_program(const hr_pipeline& pipeline, const hr_draw* draws, Size in, Program* program);

// The same pixels in coordinates of the geometry's source: `rect` is in those of its crop,
// mirrored.
Rect in_source(const Geometry& geometry, const Rect& rect);

}  // namespace headrace
