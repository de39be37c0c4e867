// Geometry: the arguments of kernels never lead out of their memory, whatever the ops.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "geometry.h"
#include "ops.h"
#include "program.h"

namespace {

using headrace::Code;
using headrace::Geometry;
using headrace::padded_index;
using headrace::PaddingMode;
using headrace::Pass;
using headrace::Program;
using headrace::Rect;
using headrace::ResizeJob;

// Where a walker is who starts at the row's first element and takes `steps` steps, each to the
// right (or, where negative, to the left), and who at an end does as the mode says.
int walk(int steps, int size, PaddingMode mode) {
  int at = 0, direction = steps < 0 ? -1 : 1;
  for (int left = std::abs(steps); left > 0; --left) {
    const bool outside = at + direction < 0 || at + direction >= size;
    if (!outside) {
      at += direction;
    } else if (mode == PaddingMode::kConstant) {
      return -1;
    } else if (mode == PaddingMode::kSymmetric) {
      direction = -direction;  // sees the last element twice
    } else if (mode == PaddingMode::kReflect && size > 1) {
      direction = -direction;
      at += direction;
    }
  }
  return at;
}

void padding_repeats_as_a_walk_along_the_row() {
  for (int size = 1; size <= 9; ++size) {
    for (const PaddingMode mode : {PaddingMode::kConstant, PaddingMode::kEdge,
                                   PaddingMode::kReflect, PaddingMode::kSymmetric}) {
      for (int i = -40; i < 50; ++i) CHECK(padded_index(i, size, mode) == walk(i, size, mode));
    }
  }
}

class Ops {
 public:
  explicit Ops(unsigned seed) : random_(seed) {}

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  // Mostly what images have, at times the ABI's limits.
  double size() { return below(20) == 0 ? 1 << 20 : 1 + below(below(3) == 0 ? 5 : 300); }

  hr_op any() {
    const double height = size(), width = size(), filter = below(headrace::kLastFilter + 1);
    switch (below(7)) {
      case 0:
        return any_box();
      case 1:
        return make_op("resize", {height, width, filter});
      case 2:
        return make_op("resize_shorter", {height, below(3) == 0 ? width : 0, filter});
      case 3:
        return make_op("center_crop", {height, width});
      case 4:
        return make_op("horizontal_flip", {0.5});
      case 5:
        return make_op("vertical_flip", {0.5});
      default:
        return any_crop();
    }
  }

 private:
  hr_op any_box() {
    hr_op op = random_resized_crop(1, 1, below(6));
    op.params[0] = size();
    op.params[1] = size();
    op.params[3] = 0.08 * below(3);
    op.params[7] = below(8) == 0 ? 1e-9 : 0.75;
    op.params[8] = below(8) == 0 ? 1e9 : 4.0 / 3.0;
    for (const int i : {5, 6}) op.params[i] = std::log(op.params[i + 2]);
    return op;
  }

  hr_op any_crop() {
    hr_op op = make_op("random_crop", {size(), size()});
    for (const int side : {2, 3, 4, 5}) op.params[side] = below(2) == 0 ? 0 : size();
    op.params[6] = below(2);
    op.params[7] = below(4);
    return op;
  }

  std::mt19937 random_;
};

bool inside(const Rect& rect, int width, int height) {
  return rect.x >= 0 && rect.y >= 0 && rect.w > 0 && rect.h > 0 && rect.w <= width - rect.x &&
         rect.h <= height - rect.y;
}

// Returns the size of the pass's output.
headrace::Size check_pass(const Pass& pass, headrace::Size in) {
  const Geometry& geometry = pass.geometry;
  const ResizeJob& job = geometry.job;
  const headrace::Size out = geometry.output;
  CHECK(inside(geometry.crop, in.width, in.height));
  CHECK(job.in_w == geometry.crop.w && job.in_h == geometry.crop.h);
  CHECK(inside(job.window, job.out_w, job.out_h));
  CHECK(inside(pass.footprint, job.in_w, job.in_h));
  CHECK(inside(in_source(geometry, pass.footprint), in.width, in.height));
  if (!geometry.padded) {
    CHECK(job.window.w == out.width && job.window.h == out.height);
  } else if (geometry.padding_mode == PaddingMode::kConstant) {
    CHECK(inside(geometry.place, out.width, out.height));
    CHECK(geometry.place.w == job.window.w && geometry.place.h == job.window.h);
  } else {
    CHECK(job.window.w == job.out_w && job.window.h == job.out_h);
    CHECK(geometry.plane.w == out.width && geometry.plane.h == out.height);
  }
  return out;
}

// Returns how many of `rounds` chains of ops can be done, and in `several` those in more than one
// pass.
int plan_any_ops(int rounds, int* several) {
  Ops draw(1);
  int planned = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<hr_op> ops;
    for (int i = draw.below(4); i >= 0; --i) ops.push_back(draw.any());
    hr_pipeline pipeline = {};
    pipeline.channels = 3;
    pipeline.ops = ops.data();
    pipeline.op_count = static_cast<int32_t>(ops.size());
    pipeline.pillow_vertical_first = draw.below(2);
    CHECK(headrace::check_ops(pipeline) == nullptr);
    const headrace::Size in = {draw.below(9) == 0 ? 65500 : 1 + draw.below(700),
                               draw.below(9) == 0 ? 65500 : 1 + draw.below(700)};
    std::vector<hr_draw> draws(ops.size());
    const headrace::RandomKey key = {1, 2, static_cast<uint64_t>(round)};
    headrace::Size out = {};
    Code code = draw_ops(pipeline, key, in, draws.data(), &out);
    pipeline.width = out.width;
    pipeline.height = out.height;
    Program program;
    if (code == Code::kOk) code = build_program(pipeline, draws.data(), in, &program);
    CHECK(code == Code::kOk || code == Code::kUnsupported);
    if (code != Code::kOk) continue;
    headrace::Size size = in;
    for (const Pass& pass : program.passes) size = check_pass(pass, size);
    CHECK(size.width == out.width && size.height == out.height);
    ++planned;
    *several += program.passes.size() > 1;
  }
  return planned;
}

Code plan_one(const hr_op& op, headrace::Size in, headrace::Size out, Program* program) {
  hr_pipeline pipeline = {};
  pipeline.channels = 3;
  pipeline.ops = &op;
  pipeline.op_count = 1;
  pipeline.width = out.width;
  pipeline.height = out.height;
  hr_draw draw = {};
  headrace::Size drawn_size = {};
  const Code drawn = draw_ops(pipeline, {}, in, &draw, &drawn_size);
  const Code planned = build_program(pipeline, &draw, in, program);
  CHECK(drawn == planned);
  return planned;
}

hr_op shorter_edge(double size, double max_size) {
  return make_op("resize_shorter", {size, max_size, 2});
}

// The shorter edge asked for, times the ratio of the edges, can exceed an int, and what later ops
// add to it can do so too.
void refuses_an_edge_that_is_too_long() {
  Program program;
  const int most = headrace::kMaxEdge;
  for (const int32_t size : {100000, 40000, 35791, 18, 1 << 20}) {
    const hr_op op = shorter_edge(size, 0);
    CHECK(plan_one(op, {1, 60000}, {size, most}, &program) == Code::kUnsupported);
    CHECK(plan_one(op, {60000, 1}, {most, size}, &program) == Code::kUnsupported);
  }
  CHECK(plan_one(shorter_edge(17, 0), {1, 60000}, {17, 17 * 60000}, &program) == Code::kOk);
  const ResizeJob& job = program.passes[0].geometry.job;
  CHECK(job.out_w == 17 && job.out_h == 17 * 60000);
}

// An edge of 6e9 pixels, which max_size brings back.
void an_edge_is_limited_before_it_is_refused() {
  const int most = headrace::kMaxEdge;
  Program program;
  CHECK(plan_one(shorter_edge(100000, most), {1, 60000}, {17, most}, &program) == Code::kOk);
  const Geometry upright = program.passes[0].geometry;
  CHECK(upright.job.out_w == 17 && upright.job.out_h == most);
  CHECK(plan_one(shorter_edge(100000, most), {60000, 1}, {most, 17}, &program) == Code::kOk);
  const Geometry lying = program.passes[0].geometry;
  CHECK(lying.job.out_w == most && lying.job.out_h == 17);
}

}  // namespace

int main() {
  padding_repeats_as_a_walk_along_the_row();
  refuses_an_edge_that_is_too_long();
  an_edge_is_limited_before_it_is_refused();
  int several = 0;
  CHECK(plan_any_ops(100000, &several) > 10000);  // or the laws above were hardly tried
  CHECK(several > 1000);
  std::puts("test_geometry: passed");
  return 0;
}
