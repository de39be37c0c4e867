// Geometry: what the kernels are told never leaves what they are given, whatever the steps.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "geometry.h"

namespace {

using headrace::Code;
using headrace::draw_steps;
using headrace::Geometry;
using headrace::padded_index;
using headrace::Rect;
using headrace::ResizeJob;

// Where a walker is who starts at the row's first element and takes `steps` steps, each to the
// right (or, where negative, to the left), and who at an end does as the mode says.
int walk(int steps, int size, int mode) {
  int at = 0, direction = steps < 0 ? -1 : 1;
  for (int left = std::abs(steps); left > 0; --left) {
    const bool outside = at + direction < 0 || at + direction >= size;
    if (!outside) {
      at += direction;
    } else if (mode == HR_CONSTANT) {
      return -1;
    } else if (mode == HR_SYMMETRIC) {
      direction = -direction;  // sees the last element twice
    } else if (mode == HR_REFLECT && size > 1) {
      direction = -direction;
      at += direction;
    }
  }
  return at;
}

void padding_repeats_as_a_walk_along_the_row() {
  for (int size = 1; size <= 9; ++size) {
    for (const int mode : {HR_CONSTANT, HR_EDGE, HR_REFLECT, HR_SYMMETRIC}) {
      for (int i = -40; i < 50; ++i) CHECK(padded_index(i, size, mode) == walk(i, size, mode));
    }
  }
}

class Steps {
 public:
  explicit Steps(unsigned seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  // Mostly what pictures have, at times the ABI's limits.
  int32_t size() { return below(20) == 0 ? 1 << 20 : 1 + below(below(3) == 0 ? 5 : 300); }

  hr_step any() {
    hr_step step = {};
    step.kind = HR_RANDOM_RESIZED_CROP + below(HR_VERTICAL_FLIP);
    step.height = size();
    step.width = size();
    step.filter = below(6);
    step.max_size = below(3) == 0 ? size() : 0;
    step.pad_if_needed = below(2);
    step.padding_mode = below(4);
    for (int32_t& padding : step.padding) padding = below(2) == 0 ? 0 : size();
    step.scale[0] = 0.08F * static_cast<float>(below(3));
    step.scale[1] = 1.0F;
    step.ratio[0] = below(8) == 0 ? 1e-9 : 0.75;
    step.ratio[1] = below(8) == 0 ? 1e9 : 4.0 / 3.0;
    for (int i = 0; i < 2; ++i) step.log_ratio[i] = static_cast<float>(std::log(step.ratio[i]));
    step.p = 0.5;
    return step;
  }

 private:
  std::mt19937 random_;
};

bool inside(const Rect& rect, int width, int height) {
  return rect.x >= 0 && rect.y >= 0 && rect.w > 0 && rect.h > 0 && rect.w <= width - rect.x &&
         rect.h <= height - rect.y;
}

void check_geometry(const Geometry& geometry, const hr_pipeline& pipeline, int width, int height) {
  const ResizeJob& job = geometry.job;
  CHECK(inside(geometry.crop, width, height));
  CHECK(job.in_w == geometry.crop.w && job.in_h == geometry.crop.h);
  CHECK(inside(job.window, job.out_w, job.out_h));
  const Rect footprint = resize_footprint(job, {pipeline.pillow_vertical_first != 0});
  // An empty one is the resize's way to refuse sizes that Pillow can't compute exactly.
  CHECK(footprint.w == 0 || inside(footprint, job.in_w, job.in_h));
  if (!geometry.padded) {
    CHECK(job.window.w == pipeline.width && job.window.h == pipeline.height);
  } else if (geometry.padding_mode == HR_CONSTANT) {
    CHECK(inside(geometry.place, pipeline.width, pipeline.height));
    CHECK(geometry.place.w == job.window.w && geometry.place.h == job.window.h);
  } else {
    CHECK(job.window.w == job.out_w && job.window.h == job.out_h);
    CHECK(geometry.plane.w == pipeline.width && geometry.plane.h == pipeline.height);
  }
}

// Returns how many of `rounds` chains of steps fold into a geometry.
int fold_any_steps(int rounds) {
  Steps draw(1);
  int folded = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<hr_step> steps;
    for (int i = draw.below(4); i >= 0; --i) steps.push_back(draw.any());
    hr_pipeline pipeline = {};
    pipeline.steps = steps.data();
    pipeline.step_count = static_cast<int32_t>(steps.size());
    pipeline.height = steps.back().height;
    pipeline.width = steps.back().width;
    pipeline.pillow_vertical_first = draw.below(2);
    const int width = draw.below(9) == 0 ? 65500 : 1 + draw.below(700);
    const int height = draw.below(9) == 0 ? 65500 : 1 + draw.below(700);
    std::vector<hr_draw> draws(steps.size());
    const headrace::RandomKey key = {1, 2, static_cast<uint64_t>(round)};
    Geometry geometry;
    Code code = draw_steps(pipeline, key, width, height, draws.data());
    if (code == Code::kOk) code = fold_steps(pipeline, draws.data(), width, height, &geometry);
    CHECK(code == Code::kOk || code == Code::kUnsupported);
    if (code != Code::kOk) continue;
    check_geometry(geometry, pipeline, width, height);
    ++folded;
  }
  return folded;
}

hr_step shorter_edge(int32_t size, int32_t max_size) {
  hr_step step = {};
  step.kind = HR_RESIZE_SHORTER;
  step.height = size;
  step.max_size = max_size;
  step.filter = 2;
  return step;
}

Code fold_one(const hr_step& step, int width, int height, int out_w, int out_h,
              Geometry* geometry) {
  hr_pipeline pipeline = {};
  pipeline.steps = &step;
  pipeline.step_count = 1;
  pipeline.width = out_w;
  pipeline.height = out_h;
  hr_draw draw = {};
  const Code drawn = draw_steps(pipeline, {}, width, height, &draw);
  const Code folded = fold_steps(pipeline, &draw, width, height, geometry);
  CHECK(drawn == folded);
  return folded;
}

// The shorter edge asked for, times the ratio of the edges, can exceed an int, and what later steps
// add to it can do so too.
void refuses_an_edge_that_is_too_long() {
  Geometry geometry;
  const int most = headrace::kMaxEdge;
  for (const int32_t size : {100000, 40000, 35791, 18, 1 << 20}) {
    const hr_step step = shorter_edge(size, 0);
    CHECK(fold_one(step, 1, 60000, size, most, &geometry) == Code::kUnsupported);
    CHECK(fold_one(step, 60000, 1, most, size, &geometry) == Code::kUnsupported);
  }
  CHECK(fold_one(shorter_edge(17, 0), 1, 60000, 17, 17 * 60000, &geometry) == Code::kOk);
  CHECK(geometry.job.out_w == 17 && geometry.job.out_h == 17 * 60000);
}

// An edge of 6e9 pixels, which max_size brings back.
void an_edge_is_limited_before_it_is_refused() {
  Geometry geometry;
  CHECK(fold_one(shorter_edge(100000, 1 << 20), 1, 60000, 17, 1 << 20, &geometry) == Code::kOk);
  CHECK(geometry.job.out_w == 17 && geometry.job.out_h == 1 << 20);
  CHECK(fold_one(shorter_edge(100000, 1 << 20), 60000, 1, 1 << 20, 17, &geometry) == Code::kOk);
  CHECK(geometry.job.out_w == 1 << 20 && geometry.job.out_h == 17);
}

}  // namespace

int main() {
  padding_repeats_as_a_walk_along_the_row();
  refuses_an_edge_that_is_too_long();
  an_edge_is_limited_before_it_is_refused();
  CHECK(fold_any_steps(100000) > 10000);  // or the laws above were hardly tried
  std::puts("test_geometry: passed");
  return 0;
}
