#include "render.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "geometry.h"
#include "ops/kernels.h"
#include "resize/store.h"
#include "sample.h"

namespace headrace {
namespace {

bool inside(const int32_t* rect, int width, int height) {
  return rect[0] >= 0 && rect[1] >= 0 && rect[2] >= 1 && rect[3] >= 1 && rect[2] <= width &&
         rect[3] <= height && rect[0] <= width - rect[2] && rect[1] <= height - rect[3];
}

Rect united(const Rect& a, const Rect& b) {
  const int left = std::min(a.x, b.x), top = std::min(a.y, b.y);
  return {left, top, std::max(a.x + a.w, b.x + b.w) - left, std::max(a.y + a.h, b.y + b.h) - top};
}

int64_t area(const Rect& rect) { return int64_t{rect.w} * rect.h; }

bool crops_inside(const hr_render_job* jobs, int count, int width, int height) {
  return std::all_of(jobs, jobs + count,
                     [&](const hr_render_job& job) { return inside(job.crop, width, height); });
}

// As Image and Buffer lay out theirs.
size_t first_pixel_in(const uint8_t* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory + Buffer::kPadding);
  return Buffer::kPadding + (64 - address % 64) % 64;
}

SampleOutput output_of(const hr_pipeline& pipeline, void* data) {
  return {data,
          pipeline.height,
          pipeline.width,
          static_cast<Dtype>(pipeline.dtype),
          static_cast<Layout>(pipeline.layout),
          pipeline.table,
          pipeline.channels};
}

size_t nbytes_of(const SampleOutput& out) {
  return dtype_size(out.dtype) * out.channels * out.height * out.width;
}

// Zeros to the right of an image in the upper left corner, and below it.
void clear_around(const SampleOutput& out, int height, int width) {
  const bool planes = out.layout == Layout::kNchw;
  const int count = planes ? out.channels : 1;
  const size_t pixel = dtype_size(out.dtype) * (planes ? 1 : out.channels);
  const size_t row = pixel * out.width, image = pixel * width;
  uint8_t* plane = static_cast<uint8_t*>(out.data);
  for (int c = 0; c < count; ++c, plane += row * out.height) {
    for (int y = 0; y < height; ++y) std::memset(plane + row * y + image, 0, row - image);
    std::memset(plane + row * height, 0, row * (out.height - height));
  }
}

// As hr_render_job::patches says. `out` is memory for one patch.
void store_patches(const ConstImageView& rendered, const SampleOutput& out, const int32_t* patches,
                   uint8_t* to) {
  const int size = patches[0], merged = patches[1], repeats = patches[2];
  const bool planes = out.layout == Layout::kNchw;
  const int count = planes ? out.channels : 1;
  const size_t nbytes = nbytes_of(out) / count;
  const auto store = [&](int x, int y) {
    store_rows(part_of(rendered, {x, y, size, size}), out, 0, 0);
    for (int c = 0; c < count; ++c) {
      for (int i = 0; i < repeats; ++i, to += nbytes)
        std::memcpy(to, static_cast<const uint8_t*>(out.data) + nbytes * c, nbytes);
    }
  };
  const int block = size * merged;
  for (int y = 0; y < rendered.height; y += block) {
    for (int x = 0; x < rendered.width; x += block) {
      for (int i = 0; i < merged * merged; ++i) store(x + i % merged * size, y + i / merged * size);
    }
  }
}

// Of images of the same file.
Code render_together(Renderer* renderer, const hr_image_fill& image,
                     std::vector<hr_render_job>* jobs) {
  const int count = static_cast<int>(jobs->size());
  if (image.pixels != nullptr) {
    const Size size = {image.width, image.height};
    return renderer->render_decoded(whole_in(image.pixels, size), jobs->data(), count);
  }
  const Code code = renderer->render(image.data, image.size, jobs->data(), count);
  if (code == Code::kOk) return code;
  for (hr_render_job& job : *jobs) {
    const Code damaged = renderer->render_damaged(image.data, image.size, &job);
    if (damaged != Code::kOk) return damaged;
  }
  return Code::kOk;
}

}  // namespace

const char* check_render_job(const hr_render_job& job) {
  if (job.width < 1 || job.height < 1 || job.width > kMaxEdge || job.height > kMaxEdge)
    return "the size of a resized crop is out of range";
  if (job.filter < 0 || job.filter > kLastFilter || is_torchs(static_cast<Filter>(job.filter)))
    return "the filter is unknown";
  if (!inside(job.crop, kMaxEdge, kMaxEdge)) return "the crop is empty or out of range";
  if (!inside(job.window, job.width, job.height))
    return "the window is empty or leaves the resized crop";
  if (job.output == nullptr) return "a job has no output";
  return nullptr;
}

size_t whole_nbytes(Size size) {
  return Image::stride_of(size.width) * (static_cast<size_t>(size.height) + 4) +
         2 * Buffer::kPadding + 64;
}

ImageView whole_in(uint8_t* memory, Size size) {
  return {memory + first_pixel_in(memory), Image::stride_of(size.width), size.width, size.height};
}

ConstImageView whole_in(const uint8_t* memory, Size size) {
  return {memory + first_pixel_in(memory), Image::stride_of(size.width), size.width, size.height};
}

Code Renderer::open(const uint8_t* data, size_t size, uint32_t decoders) {
  if ((decoders & HR_INFLATED) != 0) return decoder_.open({data, size, {}});
  uint8_t* const padded = padded_.reserve(size);
  if (padded == nullptr) return Code::kOutOfMemory;
  std::memcpy(padded, data, size);
  std::memset(padded + size, 0, Buffer::kPadding);
  return decoder_.open({padded, size, {}});
}

Code Renderer::check(const uint8_t* data, size_t size) {
  const Code code = decoder_.open({data, size, {}});
  return code == Code::kOk ? decoder_.check() : code;
}

Renderer::Plan Renderer::plan_of(const hr_render_job& job) {
  Plan plan;
  plan.resize.in_w = job.crop[2];
  plan.resize.in_h = job.crop[3];
  plan.resize.out_w = job.width;
  plan.resize.out_h = job.height;
  plan.resize.filter = static_cast<Filter>(job.filter);
  plan.resize.window = {job.window[0], job.window[1], job.window[2], job.window[3]};
  plan.resize.flip_x = job.flip_x != 0;
  plan.resize.flip_y = job.flip_y != 0;
  plan.rules = {job.pillow_vertical_first != 0};
  plan.footprint = resize_footprint(plan.resize, plan.rules);
  plan.rect = {job.crop[0] + plan.footprint.x, job.crop[1] + plan.footprint.y, plan.footprint.w,
               plan.footprint.h};
  return plan;
}

Code Renderer::render(const uint8_t* data, size_t size, hr_render_job* jobs, int count) {
  const Code opened = open(data, size, count > 0 ? jobs[0].decoders : 0);
  if (opened != Code::kOk) return opened;
  const Size whole = decoder_.size();
  if (!crops_inside(jobs, count, whole.width, whole.height)) return Code::kInvalidArgument;

  std::vector<Plan> plans;
  Rect all = {};
  int64_t needed = 0;
  for (int i = 0; i < count; ++i) {
    plans.push_back(plan_of(jobs[i]));
    all = i == 0 ? plans[0].rect : united(all, plans.back().rect);
    needed += area(plans.back().rect);
  }
  const bool together = count > 1 && needed >= area(all);
  ImageView pixels;
  if (together) {
    const Code code = decode(jobs[0].decoders, all, &pixels);
    if (code != Code::kOk) return code;
  }
  for (int i = 0; i < count; ++i) {
    const Rect& rect = plans[i].rect;
    ImageView own;
    if (together) {
      own = part_of(pixels, {rect.x - all.x, rect.y - all.y, rect.w, rect.h});
    } else {
      const Code code = decode(jobs[i].decoders, rect, &own);
      if (code != Code::kOk) return code;
    }
    jobs[i].code = static_cast<int32_t>(finish(plans[i], own, decoder_.is_gray(), jobs[i]));
  }
  return Code::kOk;
}

Code Renderer::decode_all(const uint8_t* data, size_t size, uint32_t decoders,
                          const ImageView& to) {
  const Code code = open(data, size, decoders);
  if (code != Code::kOk) return code;
  const Size whole = decoder_.size();
  if (whole.width != to.width || whole.height != to.height) return Code::kInvalidArgument;
  int32_t decoder = 0;
  return decoder_.decode(decoders, {0, 0, whole.width, whole.height}, to, &decoder);
}

Code Renderer::render_decoded(const ConstImageView& image, hr_render_job* jobs, int count) {
  if (!crops_inside(jobs, count, image.width, image.height)) return Code::kInvalidArgument;
  for (int i = 0; i < count; ++i) {
    const Plan plan = plan_of(jobs[i]);
    const ConstImageView pixels = part_of(image, plan.rect);
    jobs[i].code = static_cast<int32_t>(finish(plan, pixels, false, jobs[i]));
  }
  return Code::kOk;
}

Code Renderer::render_damaged(const uint8_t* data, size_t size, hr_render_job* job) {
  const Code code = open(data, size, job->decoders);
  if (code != Code::kOk) return code;
  Image whole;
  const ImageView pixels = whole.reshape(decoder_.size().width, decoder_.size().height);
  if (pixels.data == nullptr) return Code::kOutOfMemory;
  const Code decoded = decoder_.decode_damaged(job->decoders, pixels);
  return decoded == Code::kOk ? render_decoded(pixels, job, 1) : decoded;
}

Code render_images(Renderer* renderer, const hr_image_fill* const* images, void* const* outputs,
                   const int32_t* layouts, int count) {
  const auto same = [&](int a, int b) {
    return images[a]->data == images[b]->data && images[a]->pixels == images[b]->pixels;
  };
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::make_pair(images[a]->data, images[a]->pixels) <
           std::make_pair(images[b]->data, images[b]->pixels);
  });
  std::vector<hr_pipeline> pipelines(count);
  std::vector<hr_render_job> jobs;
  for (int begin = 0, end; begin < count; begin = end) {
    jobs.clear();
    for (end = begin; end < count && same(order[begin], order[end]); ++end) {
      const int i = order[end];
      jobs.push_back(images[i]->job);
      jobs.back().output = outputs[i];
      if (layouts[i] < 0 || jobs.back().pipeline == nullptr) continue;
      pipelines[i] = *jobs.back().pipeline;
      pipelines[i].layout = layouts[i];
      jobs.back().pipeline = &pipelines[i];
    }
    if (jobs.front().pipeline == nullptr) {
      for (const hr_render_job& job : jobs)
        std::memcpy(job.output, images[order[begin]]->data, images[order[begin]]->size);
      continue;
    }
    const Code code = render_together(renderer, *images[order[begin]], &jobs);
    if (code != Code::kOk) return code;
    for (const hr_render_job& job : jobs) {
      if (job.code != HR_OK) return static_cast<Code>(job.code);
    }
  }
  return Code::kOk;
}

Code Renderer::check_ops(const hr_render_job& job) {
  const Size window = {job.window[2], job.window[3]};
  return build_program(*job.pipeline, job.draws, window, &program_);
}

Code Renderer::decode(uint32_t decoders, const Rect& rect, ImageView* pixels) {
  *pixels = decoded_.reshape(rect.w, rect.h);
  if (pixels->data == nullptr) return Code::kOutOfMemory;
  int32_t decoder = 0;
  return decoder_.decode(decoders, rect, *pixels, &decoder);
}

Code Renderer::finish(const Plan& plan, ConstImageView pixels, bool gray,
                      const hr_render_job& job) {
  const hr_pipeline& pipeline = *job.pipeline;
  if (pipeline.gray != 0 && !gray) {  // other jobs may want the same pixels in colour
    const ImageView luma = luma_.reshape(pixels.width, pixels.height);
    if (luma.data == nullptr) return Code::kOutOfMemory;
    for (int y = 0; y < pixels.height; ++y)
      std::memcpy(luma.row(y), pixels.row(y), size_t{4} * pixels.width);
    ops::grayscale(luma);
    pixels = luma;
  }
  const Rect& window = plan.resize.window;
  Code code = build_program(pipeline, job.draws, {window.w, window.h}, &program_);
  if (code != Code::kOk) return code;
  const ResizeJob& resize = plan.resize;
  const bool resized_or_mirrored =
      resize.in_w != resize.out_w || resize.in_h != resize.out_h || resize.flip_x || resize.flip_y;
  if (pipeline.op_count == 0 && !resized_or_mirrored) {  // a copy takes longer than storing it
    return store(pixels, job);
  }
  const Rect needed = Runner::source_rect(program_);
  const ImageView input = runner_.input(program_);
  if (input.data == nullptr) return Code::kOutOfMemory;
  const bool all = needed.w == window.w && needed.h == window.h;
  const ImageView resized = all ? input : resized_.reshape(window.w, window.h);
  if (resized.data == nullptr) return Code::kOutOfMemory;
  code = resizer_.run(plan.resize, plan.rules, plan.footprint, pixels, resized);
  if (code != Code::kOk) return code;
  for (int y = 0; !all && y < needed.h; ++y)
    std::memcpy(input.row(y), part_of(resized, needed).row(y), size_t{4} * needed.w);
  ImageView rendered;
  code = runner_.run(program_, pipeline, job.draws, &rendered);
  if (code != Code::kOk) return code;
  return store(rendered, job);
}

Code Renderer::store(const ConstImageView& rendered, const hr_render_job& job) {
  SampleOutput out = output_of(*job.pipeline, job.output);
  if (job.patches[0] != 0) {
    const int size = job.patches[0], block = size * job.patches[1];
    if (block < 1 || rendered.width % block != 0 || rendered.height % block != 0)
      return Code::kInvalidArgument;
    out.height = out.width = size;
    uint8_t* const patch = patch_.reserve(nbytes_of(out));
    if (patch == nullptr) return Code::kOutOfMemory;
    out.data = patch;
    store_patches(rendered, out, job.patches, static_cast<uint8_t*>(job.output));
    return Code::kOk;
  }
  if (job.frame[0] == 0) {
    store_sample(rendered, *job.pipeline, job.output);
    return Code::kOk;
  }
  if (job.frame[0] < rendered.height || job.frame[1] < rendered.width)
    return Code::kInvalidArgument;
  out.height = job.frame[0];
  out.width = job.frame[1];
  store_rows(rendered, out, 0, 0);
  clear_around(out, rendered.height, rendered.width);
  return Code::kOk;
}

}  // namespace headrace
