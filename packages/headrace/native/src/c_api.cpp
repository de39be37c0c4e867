// The bodies of headrace.h: arguments checked, everything else done elsewhere.
#include <jconfig.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "codecs/image_decoder.h"
#include "cpu.h"
#include "crc32.h"
#include "deferred/memory.h"
#include "error.h"
#include "headrace.h"
#include "jpeg/entry_points.h"
#include "jpeg/transcode.h"
#include "ops/op.h"
#include "pixels.h"
#include "pool.h"
#include "program.h"
#include "render.h"
#include "resize/store.h"
#include "runner.h"
#include "sample.h"

using headrace::Code;
using headrace::fail;
using headrace::guarded;
using headrace::kMaxEdge;

struct hr_pool {
  headrace::Pool pool;
};

struct hr_batch {
  std::shared_ptr<headrace::Batch> batch;
};

namespace {

#define HR_STRINGIFY(x) #x
#define HR_TEXT(x) HR_STRINGIFY(x)

#ifndef HEADRACE_VERSION
#define HEADRACE_VERSION "unknown"
#endif

constexpr int kMaxThreads = 1024;
constexpr double kMaxDraw = 1 << 30;

constexpr const char* kStageNames[HR_STAGES] = {"read", "parse", "decode", "resize", "store"};
constexpr char kForked[] =
    "this pool was made before a fork, and its threads exist in the parent only: make a new one in "
    "the child";

headrace::Renderer& this_threads_renderer() {
  thread_local headrace::Renderer renderer;
  return renderer;
}

// Empty where the file needs or has none; `padded` holds a copy of it meanwhile.
Code entry_points(const uint8_t* data, uint64_t size, int every, headrace::Buffer* padded,
                  std::vector<uint8_t>* out) {
  headrace::jpeg::File file;
  uint8_t* copy = padded->reserve(size);
  if (copy == nullptr) return Code::kOutOfMemory;
  std::memcpy(copy, data, size);
  file.data = copy;
  file.size = size;
  const Code code = headrace::jpeg::parse_header(copy, size, &file.header);
  return code == Code::kOk ? headrace::jpeg::build_entry_points(file, every, out) : code;
}

const char* check_pipeline(const hr_pipeline* p) {
  if (p == nullptr) return "the request has no pipeline";
  if (p->op_count < 0 || p->op_count > headrace::kMaxOps) return "a pipeline has 0 to 64 ops";
  if (p->op_count > 0 && p->ops == nullptr) return "the pipeline's ops are missing";
  if (p->height < 1 || p->width < 1 || p->height > kMaxEdge || p->width > kMaxEdge) {
    return "the pipeline's output size is out of range";
  }
  if (p->views < 0 || (p->views > 0 && p->height % p->views != 0)) {
    return "the pipeline's height isn't that of its views";
  }
  if (p->dtype < 0 || p->dtype > 4) return "the pipeline's dtype is unknown";
  if (p->layout < 0 || p->layout > 1) return "the pipeline's layout is unknown";
  const bool pillows = p->channels == 4 && p->dtype == 0 && p->layout == 1 && p->table == nullptr;
  if (p->channels != 1 && p->channels != 3 && !pillows)
    return "the pipeline's channels must be 1 or 3, or 4 for rows of uint8 pixels";
  if (p->table == nullptr && p->dtype != 0) return "a dtype other than uint8 needs a table";
  return headrace::check_ops(*p);
}

// What draws may be for an op to run safely.
const char* check_draws(const hr_draw* draws, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    for (const double value : draws[i].value) {
      if (!(std::fabs(value) <= kMaxDraw)) return "a draw is out of range";
    }
  }
  return nullptr;
}

// What is wrong with the jobs by themselves; nullptr: nothing. Sets the codes of all of them to
// HR_INTERNAL, which stays where a job isn't done.
const char* check_render_jobs(hr_render_job* jobs, int32_t count) {
  for (int32_t i = 0; i < count; ++i) jobs[i].code = HR_INTERNAL;
  for (int32_t i = 0; i < count; ++i) {
    const hr_render_job& job = jobs[i];
    if (const char* problem = headrace::check_render_job(job)) return problem;
    if (const char* problem = check_pipeline(job.pipeline)) return problem;
    const int32_t ops = job.pipeline->op_count;
    if (ops > 0 && job.draws == nullptr) return "a job's draws are missing";
    if (const char* problem = check_draws(job.draws, ops)) return problem;
  }
  return nullptr;
}

headrace::RandomKey key_of(uint64_t seed, uint64_t epoch, int64_t index, int64_t occurrence) {
  return {seed, epoch, static_cast<uint64_t>(index), static_cast<uint64_t>(occurrence)};
}

const char* check_request(const hr_request* r) {
  if (r == nullptr) return "no request";
  if (const char* problem = check_pipeline(r->pipeline)) return problem;
  if (r->source == nullptr) return "the request has no source";
  if (r->count < 0) return "the request's count is negative";
  if (r->count > 0 && (r->indices == nullptr || r->output == nullptr || r->statuses == nullptr)) {
    return "the request's indices, output or statuses are missing";
  }
  const hr_source& s = *r->source;
  const bool decoded = s.height != 0;
  if (decoded && (s.paths != nullptr || s.height < 1 || s.width < 1 || s.height > kMaxEdge ||
                  s.width > kMaxEdge)) {
    return "the source's images are of an impossible size, or have paths";
  }
  const bool located = s.paths != nullptr ? s.path_offsets != nullptr
                                          : s.data != nullptr && (decoded || s.sizes != nullptr);
  if (!located && s.count > 0) return "the source has neither paths nor data";
  const bool in_shards = s.begins != nullptr;
  if (in_shards && (s.paths == nullptr || s.sizes == nullptr || s.shards == nullptr)) {
    return "the source has begins, but not the paths, sizes and shards that they need";
  }
  if (s.entries != nullptr && (s.entry_begins == nullptr || s.entry_ends == nullptr)) {
    return "the source has entries, but not where they begin and end";
  }
  for (int64_t i = 0; i < r->count; ++i) {
    const int64_t index = r->indices[i];
    if (index < 0 || index >= s.count) return "an index is outside the source";
  }
  return nullptr;
}

}  // namespace

int32_t hr_abi_version(void) { return HR_ABI_VERSION; }

const char* hr_build_info(void) {
  static const std::string info = [] {
    std::string text = "{\"version\": \"" HEADRACE_VERSION "\", \"compiler\": \"" __VERSION__ "\"";
#ifdef LIBJPEG_TURBO_VERSION
    text += ", \"libjpeg_turbo\": \"" HR_TEXT(LIBJPEG_TURBO_VERSION) "\"";
#endif
    for (const headrace::Format& format : headrace::formats()) {
      if (format.version == nullptr) continue;
      text += std::string(", \"") + format.decoders[0] + "\": \"" + format.version() + "\"";
    }
    return text + "}";
  }();
  return info.c_str();
}

const char* hr_last_error(void) { return headrace::last_error(); }

const char* hr_describe(int32_t code) { return headrace::describe(static_cast<Code>(code)); }

const char* hr_stage_name(int32_t stage) {
  return stage >= 0 && stage < HR_STAGES ? kStageNames[stage] : nullptr;
}

const char* hr_decoder_name(int32_t decoder) {
  const auto& names = headrace::decoder_names();
  return decoder >= 0 && static_cast<size_t>(decoder) < names.size()
             ? names[static_cast<size_t>(decoder)]
             : nullptr;
}

const char* hr_simd_name(int32_t simd) {
  return simd >= 0 && simd < headrace::kSimdCount
             ? headrace::simd_name(static_cast<headrace::Simd>(simd))
             : nullptr;
}

int32_t hr_simd_available(int32_t simd) {
  return simd >= 0 && simd < headrace::kSimdCount &&
         headrace::simd_available(static_cast<headrace::Simd>(simd));
}

int32_t hr_simd_active(void) { return static_cast<int32_t>(headrace::simd_active()); }

int32_t hr_simd_force(int32_t simd) {
  if (simd < 0) {
    headrace::simd_unforce();
    return HR_OK;
  }
  if (simd >= headrace::kSimdCount || !headrace::simd_force(static_cast<headrace::Simd>(simd))) {
    return fail(Code::kInvalidArgument, "this instruction set is not available here");
  }
  return HR_OK;
}

int32_t hr_pool_create(int32_t decode_threads, int32_t read_threads, hr_pool** pool) {
  return guarded([&]() -> int32_t {
    if (pool == nullptr) return fail(Code::kInvalidArgument, "nowhere to put the pool");
    if (decode_threads < 0 || decode_threads > kMaxThreads || read_threads < 0 ||
        read_threads > kMaxThreads) {
      return fail(Code::kInvalidArgument, "threads must be 0 to 1024");
    }
    *pool = new hr_pool{{decode_threads, read_threads}};
    return HR_OK;
  });
}

int32_t hr_pool_use(hr_pool* pool, int32_t decode_threads, int32_t read_threads) {
  return guarded([&]() -> int32_t {
    if (pool == nullptr) return fail(Code::kInvalidArgument);
    if (pool->pool.in_other_process()) return fail(Code::kInvalidArgument, kForked);
    if (decode_threads < 1 || decode_threads > kMaxThreads || read_threads < 0 ||
        read_threads > kMaxThreads) {
      return fail(Code::kInvalidArgument,
                  "decode threads must be 1 to 1024, read threads 0 to 1024");
    }
    if (pool->pool.makes_in_caller())
      return fail(Code::kInvalidArgument, "a pool without decode threads can't be given any");
    pool->pool.use(decode_threads, read_threads);
    return HR_OK;
  });
}

void hr_pool_destroy(hr_pool* pool) { delete pool; }

int32_t hr_pool_stats(hr_pool* pool, hr_stats* stats) {
  return guarded([&]() -> int32_t {
    if (pool == nullptr || stats == nullptr) return fail(Code::kInvalidArgument);
    if (pool->pool.in_other_process()) return fail(Code::kInvalidArgument, kForked);
    pool->pool.stats(stats);
    return HR_OK;
  });
}

int32_t hr_batch_submit(hr_pool* pool, const hr_request* request, hr_batch** batch) {
  return guarded([&]() -> int32_t {
    if (pool == nullptr || batch == nullptr) return fail(Code::kInvalidArgument);
    if (pool->pool.in_other_process()) return fail(Code::kInvalidArgument, kForked);
    if (const char* problem = check_request(request)) return fail(Code::kInvalidArgument, problem);
    auto handle = std::make_unique<hr_batch>();
    handle->batch = pool->pool.submit(*request);
    *batch = handle.release();
    return HR_OK;
  });
}

int32_t hr_batch_wait(hr_batch* batch, int32_t timeout_ms) {
  return guarded([&]() -> int32_t {
    if (batch == nullptr || timeout_ms < 0) return fail(Code::kInvalidArgument);
    if (batch->batch->in_other_process()) return fail(Code::kInvalidArgument, kForked);
    return static_cast<int32_t>(batch->batch->wait(timeout_ms));
  });
}

int32_t hr_batch_cancel(hr_batch* batch) {
  return guarded([&]() -> int32_t {
    if (batch == nullptr) return fail(Code::kInvalidArgument);
    if (batch->batch->in_other_process()) return fail(Code::kInvalidArgument, kForked);
    batch->batch->cancel();
    return HR_OK;
  });
}

void hr_batch_free(hr_batch* batch) { delete batch; }

int32_t hr_op_id(const char* name) { return name == nullptr ? -1 : headrace::find_op_id(name); }

const char* hr_op_name(int32_t id) {
  const headrace::Op* op = headrace::find_op(id);
  return op == nullptr ? nullptr : op->name;
}

int32_t hr_draw_ops(const hr_pipeline* pipeline, uint64_t seed, uint64_t epoch, int64_t index,
                    int64_t occurrence, int32_t width, int32_t height, hr_draw* draws,
                    int32_t* size) {
  return guarded([&]() -> int32_t {
    if (const char* problem = check_pipeline(pipeline))
      return fail(Code::kInvalidArgument, problem);
    if (draws == nullptr || size == nullptr || width < 1 || height < 1)
      return fail(Code::kInvalidArgument);
    headrace::Size out = {};
    const headrace::RandomKey key = key_of(seed, epoch, index, occurrence);
    const Code code = headrace::draw_ops(*pipeline, key, {width, height}, draws, &out);
    size[0] = out.width;
    size[1] = out.height;
    return code == Code::kOk
               ? HR_OK
               : fail(code, "a crop is larger than its input, or an edge is too long");
  });
}

int32_t hr_apply_ops(const hr_pipeline* pipeline, const hr_draw* draws, const uint8_t* rgb,
                     int32_t width, int32_t height, void* output) {
  return guarded([&]() -> int32_t {
    if (const char* problem = check_pipeline(pipeline))
      return fail(Code::kInvalidArgument, problem);
    if (rgb == nullptr || output == nullptr || width < 1 || height < 1 || width > kMaxEdge ||
        height > kMaxEdge || (draws == nullptr && pipeline->op_count > 0)) {
      return fail(Code::kInvalidArgument);
    }
    if (const char* problem = check_draws(draws, pipeline->op_count))
      return fail(Code::kInvalidArgument, problem);
    headrace::Program program;
    Code code = headrace::build_program(*pipeline, draws, {width, height}, &program);
    if (code != Code::kOk)
      return fail(code, "these ops don't give an image of the pipeline's size");
    thread_local headrace::Runner runner;  // new buffers for each batch would cost page faults
    const headrace::ImageView input = runner.input(program);
    if (input.data == nullptr) return fail(Code::kOutOfMemory);
    const headrace::Rect rect = headrace::Runner::source_rect(program);
    headrace::copy_pixels({rgb, ptrdiff_t{3} * width, 3, 1}, rect, input);
    headrace::ImageView rendered;
    code = runner.run(program, *pipeline, draws, &rendered);
    if (code != Code::kOk) return fail(code);
    headrace::store_sample(rendered, *pipeline, output);
    return HR_OK;
  });
}

int32_t hr_index_images(const uint8_t* const* files, const uint64_t* sizes, int64_t count,
                        int32_t every, hr_image_facts* facts, uint8_t* entries, uint64_t capacity) {
  return guarded([&]() -> int32_t {
    if (files == nullptr || sizes == nullptr || facts == nullptr || entries == nullptr)
      return fail(Code::kInvalidArgument);
    if (count < 0 || every < 0) return fail(Code::kInvalidArgument);
    thread_local headrace::ImageDecoder image;
    headrace::Buffer padded;
    std::vector<uint8_t> found;
    uint64_t used = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (files[i] == nullptr) return fail(Code::kInvalidArgument);
      found.clear();
      facts[i] = {headrace::crc32(files[i], sizes[i]), 0, 0, 0};
      if (image.open({files[i], sizes[i], {}}) == Code::kOk) {
        facts[i].width = image.size().width;
        facts[i].height = image.size().height;
        const Code code = entry_points(files[i], sizes[i], every, &padded, &found);
        if (code == Code::kOutOfMemory) return fail(code);
      }
      if (found.size() > capacity - used)
        return fail(Code::kTooLarge, "the entry points don't fit the memory given");
      std::copy(found.begin(), found.end(), entries + used);
      used += found.size();
      facts[i].entries_end = used;
    }
    return HR_OK;
  });
}

int32_t hr_jpeg_transcode(const uint8_t* data, uint64_t size, int32_t restart_interval,
                          int32_t optimize, int32_t copy_markers, uint8_t* out, uint64_t capacity,
                          uint64_t* out_size) {
  return guarded([&]() -> int32_t {
    if (data == nullptr || out == nullptr || out_size == nullptr)
      return fail(Code::kInvalidArgument);
    const headrace::jpeg::TranscodeOptions options = {restart_interval, optimize != 0,
                                                      copy_markers != 0};
    std::vector<uint8_t> jpeg;
    const Code code = headrace::jpeg::transcode(data, size, options, &jpeg);
    if (code == Code::kInvalidArgument)
      return fail(code, "a restart interval is -1 (chosen for the file) or 0 to 65535");
    if (code != Code::kOk) return fail(code);
    *out_size = jpeg.size();
    if (jpeg.size() > capacity)
      return fail(Code::kTooLarge, "the transcoded file doesn't fit the memory given");
    std::copy(jpeg.begin(), jpeg.end(), out);
    return HR_OK;
  });
}

int32_t hr_image_decode(int32_t decoder, const uint8_t* data, uint64_t size, const uint8_t* entries,
                        uint64_t entries_size, int32_t x, int32_t y, int32_t w, int32_t h,
                        uint8_t* rgbx) {
  return guarded([&]() -> int32_t {
    if (data == nullptr || rgbx == nullptr || decoder < 0 ||
        static_cast<size_t>(decoder) >= headrace::decoder_names().size()) {
      return fail(Code::kInvalidArgument, "no data, no output or no such decoder");
    }
    headrace::ImageDecoder file;
    Code code = file.open({data, size, {entries, static_cast<size_t>(entries_size)}});
    if (code != Code::kOk) return fail(code);
    const headrace::Size whole = file.size();
    if (x < 0 || y < 0 || w < 1 || h < 1 || x > whole.width - w || y > whole.height - h) {
      return fail(Code::kInvalidArgument, "the rectangle is empty or leaves the image");
    }
    headrace::Image
        image;  // decoders may write a little past each row: the caller's rows are exact
    const headrace::ImageView view = image.reshape(w, h);
    if (view.data == nullptr) return fail(Code::kOutOfMemory);
    int32_t used = -1;
    code = file.decode(1u << decoder, {x, y, w, h}, view, &used);
    if (code != Code::kOk) return fail(code);
    for (int row = 0; row < h; ++row) {
      std::copy_n(view.row(row), size_t{4} * static_cast<size_t>(w),
                  rgbx + size_t{4} * static_cast<size_t>(w) * static_cast<size_t>(row));
    }
    return HR_OK;
  });
}

int32_t hr_image_size(const uint8_t* data, uint64_t bytes, int32_t* size) {
  return guarded([&]() -> int32_t {
    if (data == nullptr || size == nullptr) return fail(Code::kInvalidArgument);
    thread_local headrace::ImageDecoder image;
    const Code code = image.open({data, bytes, {}});
    if (code != Code::kOk) return fail(code);
    size[0] = image.size().width;
    size[1] = image.size().height;
    return HR_OK;
  });
}

int32_t hr_image_check(const uint8_t* data, uint64_t size) {
  return guarded([&]() -> int32_t {
    if (data == nullptr) return fail(Code::kInvalidArgument, "no data");
    const Code code = this_threads_renderer().check(data, size);
    return code == Code::kOk ? HR_OK : fail(code);
  });
}

int32_t hr_image_render(const uint8_t* data, uint64_t size, hr_render_job* jobs, int32_t count) {
  return guarded([&]() -> int32_t {
    if (data == nullptr || jobs == nullptr || count < 1)
      return fail(Code::kInvalidArgument, "no data or no job");
    if (const char* problem = check_render_jobs(jobs, count))
      return fail(Code::kInvalidArgument, problem);
    const Code code = this_threads_renderer().render(data, size, jobs, count);
    return code == Code::kOk ? HR_OK : fail(code);
  });
}

uint64_t hr_pixels_size(int32_t width, int32_t height) {
  if (width < 1 || height < 1 || width > kMaxEdge || height > kMaxEdge) return 0;
  return headrace::whole_nbytes({width, height});
}

int32_t hr_pixels_decode(const uint8_t* data, uint64_t size, uint32_t decoders, uint8_t* pixels,
                         int32_t width, int32_t height) {
  return guarded([&]() -> int32_t {
    if (data == nullptr || pixels == nullptr || hr_pixels_size(width, height) == 0)
      return fail(Code::kInvalidArgument, "no data, no memory for pixels or no such size");
    const headrace::ImageView to = headrace::whole_in(pixels, {width, height});
    const Code code = this_threads_renderer().decode_all(data, size, decoders, to);
    return code == Code::kOk ? HR_OK : fail(code);
  });
}

int32_t hr_pixels_render(const uint8_t* pixels, int32_t width, int32_t height, hr_render_job* jobs,
                         int32_t count) {
  return guarded([&]() -> int32_t {
    if (pixels == nullptr || hr_pixels_size(width, height) == 0 || jobs == nullptr || count < 1)
      return fail(Code::kInvalidArgument, "no pixels, no such size or no job");
    if (const char* problem = check_render_jobs(jobs, count))
      return fail(Code::kInvalidArgument, problem);
    const headrace::ConstImageView image = headrace::whole_in(pixels, {width, height});
    const Code code = this_threads_renderer().render_decoded(image, jobs, count);
    return code == Code::kOk ? HR_OK : fail(code, "a crop leaves the image");
  });
}

int32_t hr_deferred_start(void) {
  return guarded([]() -> int32_t {
    const char* const problem = headrace::deferred::start();
    return problem == nullptr ? HR_OK : fail(Code::kUnsupported, problem);
  });
}

void* hr_deferred_take(uint64_t size, hr_fill fill, void* context) {
  return headrace::deferred::take(size, fill, context);
}

int32_t hr_deferred_state(const void* memory) {
  return static_cast<int32_t>(headrace::deferred::state_of(memory));
}

void* hr_deferred_context(const void* memory) {
  return headrace::deferred::untouched_context(memory);
}

void hr_deferred_give_back(void* memory) { headrace::deferred::give_back(memory); }

void hr_deferred_count(hr_deferred_counts* counts) { headrace::deferred::read_counts(counts); }

int32_t hr_image_fill_check(const hr_image_fill* image) {
  return guarded([&]() -> int32_t {
    hr_render_job job = image->job;
    job.output = &job;
    if (image->data == nullptr) return fail(Code::kInvalidArgument, "no data");
    if (const char* problem = check_render_jobs(&job, 1))
      return fail(Code::kInvalidArgument, problem);
    const Code code = this_threads_renderer().check_ops(job);
    return code == Code::kOk ? HR_OK : fail(code);
  });
}

int32_t hr_fill_image(void* context, uint8_t* out, uint64_t) {
  const hr_image_fill* const image = static_cast<const hr_image_fill*>(context);
  void* const output = out;
  const int32_t layout = -1;
  return hr_images_render(&image, &output, &layout, 1);
}

int32_t hr_images_render(const hr_image_fill* const* images, void* const* outputs,
                         const int32_t* layouts, int32_t count) {
  return guarded([&]() -> int32_t {
    const Code code =
        headrace::render_images(&this_threads_renderer(), images, outputs, layouts, count);
    return code == Code::kOk ? HR_OK : fail(code);
  });
}

int32_t hr_fill_images(void* context, uint8_t* out, uint64_t) {
  return guarded([&]() -> int32_t {
    const auto& list = *static_cast<const hr_image_list*>(context);
    std::vector<void*> outputs(list.count);
    const std::vector<int32_t> layouts(list.count, list.layout);
    for (int32_t i = 0; i < list.count; ++i) outputs[i] = out + list.offsets[i];
    return hr_images_render(list.images, outputs.data(), layouts.data(), list.count);
  });
}

int32_t hr_png_inflate(const uint8_t* data, uint64_t size, uint8_t* out, uint64_t capacity,
                       uint64_t* out_size) {
#ifdef HEADRACE_PNG
  return guarded([&]() -> int32_t {
    *out_size = headrace::png_inflated_bound(data, size);
    if (*out_size == 0) return fail(Code::kUnsupported);
    if (*out_size > capacity) return HR_TOO_LARGE;
    const Code code = headrace::png_inflate(data, size, out, out_size);
    return code == Code::kOk ? HR_OK : fail(code);
  });
#else
  static_cast<void>(data), static_cast<void>(size), static_cast<void>(out);
  static_cast<void>(capacity), static_cast<void>(out_size);
  return fail(Code::kUnsupported);
#endif
}
