#include "runner.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

void mirror_columns(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) {
    auto* row = reinterpret_cast<uint32_t*>(image.row(y));
    std::reverse(row, row + image.width);
  }
}

void mirror_rows(const ImageView& image) {
  for (int top = 0, bottom = image.height - 1; top < bottom; ++top, --bottom) {
    std::swap_ranges(image.row(top), image.row(top) + size_t{4} * image.width, image.row(bottom));
  }
}

void fill_pixels(const ImageView& image, const uint8_t* rgb) {
  uint32_t pixel = 0;
  std::memcpy(&pixel, rgb, 3);
  for (int y = 0; y < image.height; ++y) {
    std::fill_n(reinterpret_cast<uint32_t*>(image.row(y)), image.width, pixel);
  }
}

void repeat_edges(const Geometry& geometry, const ImageView& resized, const ImageView& out) {
  for (int y = 0; y < out.height; ++y) {
    const int from_top = geometry.flip_y ? out.height - 1 - y : y;
    const int source_y =
        padded_index(geometry.plane.y + from_top, resized.height, geometry.padding_mode);
    const auto* from = reinterpret_cast<const uint32_t*>(resized.row(source_y));
    auto* to = reinterpret_cast<uint32_t*>(out.row(y));
    for (int x = 0; x < out.width; ++x) {
      const int from_left = geometry.flip_x ? out.width - 1 - x : x;
      to[x] =
          from[padded_index(geometry.plane.x + from_left, resized.width, geometry.padding_mode)];
    }
  }
}

void pad(const Geometry& geometry, const ImageView& resized, const ImageView& out) {
  if (geometry.padding_mode != PaddingMode::kConstant) {
    repeat_edges(geometry, resized, out);
    return;
  }
  fill_pixels(out, geometry.fill);
  for (int y = 0; y < resized.height; ++y) {
    std::memcpy(out.row(geometry.place.y + y) + size_t{4} * geometry.place.x, resized.row(y),
                size_t{4} * resized.width);
  }
}

}  // namespace

Rect Runner::source_rect(const Program& program) {
  const Pass& pass = program.passes.front();
  return in_source(pass.geometry, pass.footprint);
}

ImageView Runner::input(const Program& program) {
  const Rect rect = source_rect(program);
  const ImageView view = canvas_.spare(rect.w, rect.h);
  if (view.data != nullptr) canvas_.show_spare();
  return view;
}

Code Runner::run(const Program& program, const hr_pipeline& pipeline, const hr_draw* draws,
                 ImageView* result) {
  for (const Pass& pass : program.passes) {
    if (!pass.geometry.identity) {
      // The first pass's source is what it needs, and nothing else.
      const bool first = &pass == &program.passes.front();
      const ImageView& image = canvas_.image();
      const ImageView source =
          first ? image : part_of(image, in_source(pass.geometry, pass.footprint));
      const Code code = render(pass, rules_of(pipeline), source);
      if (code != Code::kOk) return code;
    }
    for (size_t i = pass.first; i < pass.last; ++i) {
      const hr_op& call = pipeline.ops[program.pixels[i]];
      const double* v = draws[program.pixels[i]].value;
      canvas_.set_data(call.data);
      const Code code = find_op(call.id)->pixels(call.params, v, &canvas_);
      if (code != Code::kOk) return code;
    }
  }
  *result = canvas_.image();
  // An op that gives another size than it says is a bug of its own.
  const bool as_said = result->width == pipeline.width && result->height == pipeline.height;
  return as_said ? Code::kOk : Code::kInternal;
}

// `source` is mirrored in its place.
Code Runner::render(const Pass& pass, const PillowRules& rules, const ImageView& source) {
  const Geometry& geometry = pass.geometry;
  if (geometry.mirror_x) mirror_columns(source);
  if (geometry.mirror_y) mirror_rows(source);
  const ImageView out = canvas_.spare(geometry.output.width, geometry.output.height);
  if (out.data == nullptr) return Code::kOutOfMemory;
  // Padded images are resized apart, because kernels may write a few pixels past the rows that they
  // are given.
  const Rect& window = geometry.job.window;
  const ImageView resized = geometry.padded ? resized_.reshape(window.w, window.h) : out;
  if (resized.data == nullptr) return Code::kOutOfMemory;
  const Code code = resizer_.run(geometry.job, rules, pass.footprint, source, resized);
  if (code != Code::kOk) return code;
  if (geometry.padded) pad(geometry, resized, out);
  canvas_.show_spare();
  return Code::kOk;
}

}  // namespace headrace
