// Every argument that the C ABI refuses, with the code and the sentence that it gives.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "headrace.h"
#include "jpegs.h"
#include "ops.h"

namespace {

constexpr char kPlain[] = "an argument broke the function's contract";

// Fails unless `result` is `code` and the last error is `text`.
void expect(int32_t result, int32_t code, const std::string& text, const char* what) {
  if (result == code && text == hr_last_error()) return;
  std::fprintf(stderr, "%s: code %d, \"%s\"; expected %d, \"%s\"\n", what, result, hr_last_error(),
               code, text.c_str());
  std::_Exit(1);
}

#define REFUSED(call, text) expect((call), HR_INVALID_ARGUMENT, (text), #call)
#define FAILS(call, code, text) expect((call), (code), (text), #call)

std::vector<uint8_t> padded(std::vector<uint8_t> bytes) {
  bytes.resize(bytes.size() + kReadablePadding);
  return bytes;
}

// A request that is right in every way, of one sample in memory.
struct Request {
  Request() : file(padded(make_jpeg(40, 30, 1))) {
    size = file.size() - kReadablePadding;
    pipeline.ops = ops;
    pipeline.op_count = 2;
    pipeline.height = pipeline.width = 8;
    pipeline.channels = 3;
    pipeline.decoders = ~0U;
    data = file.data();
    source.count = 1;
    source.data = &data;
    source.sizes = &size;
    request.pipeline = &pipeline;
    request.source = &source;
    request.indices = &index;
    request.count = 1;
    request.output = pixels;
    request.statuses = &status;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  std::vector<uint8_t> file;
  uint64_t size = 0;
  const uint8_t* data = nullptr;
  hr_op ops[2] = {make_op("random_resized_crop", {8, 8, 2, 0.5, 1, 0, 0, 1, 1}),
                  make_op("horizontal_flip", {0})};
  hr_pipeline pipeline = {};
  hr_source source = {};
  int64_t index = 0;
  uint8_t pixels[3 * 8 * 8] = {};
  hr_status status = {};
  hr_request request = {};
};

// A way to break a request, and what is said about it.
struct Flaw {
  const char* text;
  std::function<void(Request*)> make;
};

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

// With parameter `place` of the first op, which `op` is, set to `value`.
Flaw param_flaw(const char* text, const hr_op& op, int place, double value) {
  return {text, [=](Request* r) {
            r->ops[0] = op;
            r->ops[0].params[place] = value;
          }};
}

std::vector<Flaw> op_flaws() {
  const char* const id = "an op's id is unknown";
  const char* const inside = "an op holds ops that aren't there";
  std::vector<Flaw> flaws = {
      {id, [](Request* r) { r->ops[0].id = -1; }},
      {id, [](Request* r) { r->ops[1].id = 10000; }},
      {inside, [](Request* r) { r->ops[0].inside = -1; }},
      {inside, [](Request* r) { r->ops[1].inside = 1; }},
      {"an op holds others that can't", [](Request* r) { r->ops[0].inside = 1; }},
  };
  const char* const finite = "an op's parameter isn't finite";
  const char* const bounds = "a RandomResizedCrop's scale or ratio is out of range";
  const hr_op box = make_op("random_resized_crop", {8, 8, 2, 0.5, 1, 0, 0, 1, 1});
  const hr_op crop = make_op("random_crop", {8, 8});
  const hr_op shorter = make_op("resize_shorter", {8, 0, 2});
  const double most = (1 << 20) + 1;
  for (const double wrong : {kNan, kInf, -kInf}) {
    flaws.push_back(param_flaw(finite, box, 3, wrong));
    flaws.push_back(param_flaw(finite, crop, HR_PARAMS - 1, wrong));
  }
  for (const double wrong : {0.0, -1.0, 7.5, most}) {
    for (const int place : {0, 1}) {
      flaws.push_back(param_flaw("a RandomResizedCrop's size is out of range", box, place, wrong));
      flaws.push_back(param_flaw("a crop's size is out of range", crop, place, wrong));
    }
    flaws.push_back(param_flaw("a resize's size is out of range", shorter, 0, wrong));
  }
  for (const double wrong : {-1.0, 1000.0, 0.5}) {
    flaws.push_back(param_flaw("a RandomResizedCrop's filter is unknown", box, 2, wrong));
    flaws.push_back(param_flaw("a resize's filter is unknown", shorter, 2, wrong));
  }
  flaws.push_back(param_flaw(bounds, box, 3, -0.1));
  flaws.push_back(param_flaw(bounds, box, 4, 1e300));  // not as a float32
  flaws.push_back(param_flaw(bounds, box, 5, -1e300));
  flaws.push_back(param_flaw(bounds, box, 7, 0));
  for (const double wrong : {-1.0, most})
    flaws.push_back(param_flaw("a resize's max_size is out of range", shorter, 1, wrong));
  for (const double wrong : {-most, 0.5, most})
    for (const int side : {2, 3, 4, 5})
      flaws.push_back(param_flaw("padding is out of range", crop, side, wrong));
  for (const double wrong : {-1.0, 4.0})
    flaws.push_back(param_flaw("a padding mode is unknown", crop, 7, wrong));
  for (const double wrong : {-1.0, 256.0, 0.5})
    flaws.push_back(param_flaw("a fill must be three levels of 0 to 255", crop, 10, wrong));
  for (const double wrong : {-0.5, 1.5})
    flaws.push_back(
        param_flaw("a probability must be 0 to 1", make_op("horizontal_flip", {0}), 0, wrong));
  return flaws;
}

std::vector<Flaw> pipeline_flaws() {
  const char* const count = "a pipeline has 0 to 64 ops";
  const char* const size = "the pipeline's output size is out of range";
  const char* const dtype = "the pipeline's dtype is unknown";
  const char* const layout = "the pipeline's layout is unknown";
  std::vector<Flaw> flaws = {
      {count, [](Request* r) { r->pipeline.op_count = -1; }},
      {count, [](Request* r) { r->pipeline.op_count = 65; }},
      {"the pipeline's ops are missing", [](Request* r) { r->pipeline.ops = nullptr; }},
      {size, [](Request* r) { r->pipeline.height = 0; }},
      {size, [](Request* r) { r->pipeline.width = 0; }},
      {size, [](Request* r) { r->pipeline.height = (1 << 20) + 1; }},
      {size, [](Request* r) { r->pipeline.width = (1 << 20) + 1; }},
      {dtype, [](Request* r) { r->pipeline.dtype = -1; }},
      {dtype, [](Request* r) { r->pipeline.dtype = 5; }},
      {layout, [](Request* r) { r->pipeline.layout = -1; }},
      {layout, [](Request* r) { r->pipeline.layout = 2; }},
      {"a dtype other than uint8 needs a table", [](Request* r) { r->pipeline.dtype = 3; }},
  };
  for (const Flaw& flaw : op_flaws()) flaws.push_back(flaw);
  return flaws;
}

std::vector<Flaw> request_flaws() {
  const char* const memory = "the request's indices, output or statuses are missing";
  const char* const nowhere = "the source has neither paths nor data";
  const char* const entries = "the source has entries, but not where they begin and end";
  const char* const shards =
      "the source has begins, but not the paths, sizes and shards that they need";
  const char* const index = "an index is outside the source";
  static const uint64_t kPlace = 0;
  static const uint32_t kShard = 0;
  const auto with_entries = [](Request* r) {
    r->source.entries = r->file.data();
    r->source.entry_begins = r->source.entry_ends = &kPlace;
  };
  const auto in_shard = [](Request* r) {
    r->source.paths = "a";
    r->source.path_offsets = r->source.begins = &kPlace;
    r->source.shards = &kShard;
    r->source.path_count = 1;
  };
  return {
      {"the request has no pipeline", [](Request* r) { r->request.pipeline = nullptr; }},
      {"the request has no source", [](Request* r) { r->request.source = nullptr; }},
      {"the request's count is negative", [](Request* r) { r->request.count = -1; }},
      {memory, [](Request* r) { r->request.indices = nullptr; }},
      {memory, [](Request* r) { r->request.output = nullptr; }},
      {memory, [](Request* r) { r->request.statuses = nullptr; }},
      {nowhere, [](Request* r) { r->source.data = nullptr; }},
      {nowhere, [](Request* r) { r->source.sizes = nullptr; }},
      {nowhere, [](Request* r) { r->source.paths = "a"; }},  // without path_offsets
      {entries, [=](Request* r) { with_entries(r), r->source.entry_begins = nullptr; }},
      {entries, [=](Request* r) { with_entries(r), r->source.entry_ends = nullptr; }},
      {shards, [=](Request* r) { in_shard(r), r->source.paths = nullptr; }},
      {shards, [=](Request* r) { in_shard(r), r->source.sizes = nullptr; }},
      {shards, [=](Request* r) { in_shard(r), r->source.shards = nullptr; }},
      {index, [](Request* r) { r->index = -1; }},
      {index, [](Request* r) { r->index = 1; }},
      {index, [](Request* r) { r->source.count = 0; }},
  };
}

int32_t submit_and_wait(hr_pool* pool, const Request& request) {
  hr_batch* batch = nullptr;
  CHECK(hr_batch_submit(pool, &request.request, &batch) == HR_OK);
  const int32_t code = hr_batch_wait(batch, 10000);
  hr_batch_free(batch);
  return code;
}

// Data says so, not the caller: it is that sample's failure.
void shards_that_are_none(hr_pool* pool) {
  static const uint64_t kPlace = 0;
  static const uint32_t kShards[] = {1, UINT32_MAX};
  for (const uint32_t& shard : kShards) {
    Request request;
    request.source.paths = "/dev/null";
    request.source.path_offsets = request.source.begins = &kPlace;
    request.source.shards = &shard;
    request.source.path_count = 1;
    CHECK(submit_and_wait(pool, request) == HR_OK && request.status.code == HR_READ_FAILED);
  }
}

void requests_are_refused_whole(hr_pool* pool) {
  std::vector<Flaw> flaws = pipeline_flaws();
  for (const Flaw& flaw : request_flaws()) flaws.push_back(flaw);
  for (const Flaw& flaw : flaws) {
    Request request;
    CHECK(submit_and_wait(pool, request) == HR_OK && request.status.code == HR_OK);
    flaw.make(&request);
    hr_batch* batch = nullptr;
    REFUSED(hr_batch_submit(pool, &request.request, &batch), flaw.text);
    CHECK(batch == nullptr);
  }
  hr_batch* batch = nullptr;
  const Request request;
  REFUSED(hr_batch_submit(pool, nullptr, &batch), "no request");
  REFUSED(hr_batch_submit(nullptr, &request.request, &batch), kPlain);
  REFUSED(hr_batch_submit(pool, &request.request, nullptr), kPlain);
}

// What an op doesn't use may be anything finite; nothing is needed where nothing is asked for.
void requests_may_leave_out_what_they_do_not_use(hr_pool* pool) {
  Request flip;
  flip.pipeline.ops = flip.ops + 1;
  flip.pipeline.op_count = 1;
  flip.ops[1].params[1] = flip.ops[1].params[2] = -7;
  flip.pipeline.height = 30;
  flip.pipeline.width = 40;
  std::vector<uint8_t> pixels(3 * 30 * 40);
  flip.request.output = pixels.data();
  CHECK(submit_and_wait(pool, flip) == HR_OK && flip.status.code == HR_OK);
  Request empty;
  empty.source = {};
  empty.request.count = 0;
  empty.request.indices = nullptr;
  empty.request.output = nullptr;
  empty.request.statuses = nullptr;
  CHECK(submit_and_wait(pool, empty) == HR_OK);
}

void pools_and_batches(hr_pool* pool) {
  hr_pool* made = nullptr;
  REFUSED(hr_pool_create(1, 0, nullptr), "nowhere to put the pool");
  for (const int32_t threads : {-1, 1025}) {
    REFUSED(hr_pool_create(threads, 0, &made), "threads must be 0 to 1024");
    REFUSED(hr_pool_create(0, threads, &made), "threads must be 0 to 1024");
  }
  CHECK(made == nullptr);
  hr_stats stats = {};
  REFUSED(hr_pool_stats(nullptr, &stats), kPlain);
  REFUSED(hr_pool_stats(pool, nullptr), kPlain);
  REFUSED(hr_pool_use(nullptr, 1, 0), kPlain);
  for (const int32_t threads : {-1, 0, 1025})
    REFUSED(hr_pool_use(pool, threads, 0),
            "decode threads must be 1 to 1024, read threads 0 to 1024");
  CHECK(hr_pool_stats(pool, &stats) == HR_OK);
  if (stats.decode_threads == 0) {
    REFUSED(hr_pool_use(pool, 1, 0), "a pool without decode threads can't be given any");
  } else {
    CHECK(hr_pool_use(pool, 2, 1) == HR_OK);
  }
  REFUSED(hr_batch_wait(nullptr, 0), kPlain);
  REFUSED(hr_batch_cancel(nullptr), kPlain);
  const Request request;
  hr_batch* batch = nullptr;
  CHECK(hr_batch_submit(pool, &request.request, &batch) == HR_OK);
  REFUSED(hr_batch_wait(batch, -1), kPlain);
  CHECK(hr_batch_wait(batch, 10000) == HR_OK);
  hr_batch_free(batch);
  hr_batch_free(nullptr);
  hr_pool_destroy(nullptr);
}

void draws() {
  hr_draw draws[2] = {};
  int32_t size[2] = {};
  for (const Flaw& flaw : pipeline_flaws()) {
    Request request;
    CHECK(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 30, draws, size) == HR_OK);
    CHECK(size[0] == 8 && size[1] == 8);
    flaw.make(&request);
    REFUSED(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 30, draws, size), flaw.text);
  }
  Request request;
  REFUSED(hr_draw_ops(nullptr, 1, 2, 3, 0, 40, 30, draws, size), "the request has no pipeline");
  REFUSED(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 30, nullptr, size), kPlain);
  REFUSED(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 30, draws, nullptr), kPlain);
  REFUSED(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 0, 30, draws, size), kPlain);
  REFUSED(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 0, draws, size), kPlain);
  request.ops[0] = make_op("random_crop", {31, 8});
  FAILS(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 30, draws, size), HR_UNSUPPORTED,
        "a crop is larger than its input, or an edge is too long");
}

void images_in_memory() {
  Request request;
  hr_draw draws[2] = {};
  int32_t size[2] = {};
  std::vector<uint8_t> rgb(3 * 40 * 30, 7);
  CHECK(hr_draw_ops(&request.pipeline, 1, 2, 3, 0, 40, 30, draws, size) == HR_OK);
  const auto apply = [&](const uint8_t* image, int32_t width, int32_t height) {
    return hr_apply_ops(&request.pipeline, draws, image, width, height, request.pixels);
  };
  CHECK(apply(rgb.data(), 40, 30) == HR_OK);
  for (const uint8_t level : request.pixels) CHECK(level == 7);
  REFUSED(apply(nullptr, 40, 30), kPlain);
  REFUSED(apply(rgb.data(), 0, 30), kPlain);
  REFUSED(apply(rgb.data(), 40, (1 << 20) + 1), kPlain);
  REFUSED(hr_apply_ops(nullptr, draws, rgb.data(), 40, 30, request.pixels),
          "the request has no pipeline");
  REFUSED(hr_apply_ops(&request.pipeline, nullptr, rgb.data(), 40, 30, request.pixels), kPlain);
  REFUSED(hr_apply_ops(&request.pipeline, draws, rgb.data(), 40, 30, nullptr), kPlain);
  for (const double wrong : {kNan, kInf, -2e9}) {
    draws[1].value[HR_DRAWS - 1] = wrong;
    REFUSED(apply(rgb.data(), 40, 30), "a draw is out of range");
  }
  draws[1] = {};
  request.pipeline.width = 9;
  FAILS(apply(rgb.data(), 40, 30), HR_UNSUPPORTED,
        "these ops don't give an image of the pipeline's size");
}

// No image is made where one of the jobs is wrong, whatever stands before it.
void refuses_jobs_together(const hr_render_job& right,
                           const std::function<int32_t(hr_render_job*, int32_t)>& render) {
  std::vector<uint8_t> output(size_t{3} * 8 * 8, 123);
  hr_render_job alone = right, beyond = right, empty = right;
  CHECK(render(&alone, 1) == HR_OK && alone.code == HR_OK);
  beyond.crop[0] = 33;
  empty.crop[2] = 0;
  for (const hr_render_job& wrong : {beyond, empty}) {
    hr_render_job jobs[3] = {right, wrong, right};
    for (hr_render_job& job : jobs) job.output = output.data();
    jobs[0].code = jobs[2].code = HR_OK;
    CHECK(render(jobs, 3) == HR_INVALID_ARGUMENT);
    for (const hr_render_job& job : jobs) CHECK(job.code == HR_INTERNAL);
    for (const uint8_t level : output) CHECK(level == 123);
  }
}

void decoded_images() {
  Request request;
  hr_draw draws[2] = {};
  CHECK(hr_pixels_size(0, 30) == 0 && hr_pixels_size(40, (1 << 20) + 1) == 0);
  std::vector<uint8_t> pixels(hr_pixels_size(40, 30));
  CHECK(pixels.size() >= size_t{4} * 40 * 30);
  const auto decode = [&](const uint8_t* data, int32_t width, uint8_t* to) {
    return hr_pixels_decode(data, request.size, ~0U, to, width, 30);
  };
  CHECK(decode(request.data, 40, pixels.data()) == HR_OK);
  constexpr char kMissing[] = "no data, no memory for pixels or no such size";
  REFUSED(decode(nullptr, 40, pixels.data()), kMissing);
  REFUSED(decode(request.data, 40, nullptr), kMissing);
  REFUSED(decode(request.data, 0, pixels.data()), kMissing);
  CHECK(decode(request.data, 39, pixels.data()) == HR_INVALID_ARGUMENT);

  hr_render_job job = {};
  job.crop[2] = job.window[2] = job.width = 8;
  job.crop[3] = job.window[3] = job.height = 8;
  job.pipeline = &request.pipeline;
  job.draws = draws;
  job.decoders = ~0U;
  job.output = request.pixels;
  request.pipeline.op_count = 0;
  const auto render = [&] { return hr_pixels_render(pixels.data(), 40, 30, &job, 1); };
  CHECK(render() == HR_OK && job.code == HR_OK);
  REFUSED(hr_pixels_render(nullptr, 40, 30, &job, 1), "no pixels, no such size or no job");
  REFUSED(hr_pixels_render(pixels.data(), 40, 30, &job, 0), "no pixels, no such size or no job");
  job.crop[0] = 33;
  REFUSED(render(), "a crop leaves the image");
  job.crop[0] = 32;
  CHECK(render() == HR_OK);
  refuses_jobs_together(job, [&](hr_render_job* jobs, int32_t count) {
    return hr_pixels_render(pixels.data(), 40, 30, jobs, count);
  });
  refuses_jobs_together(job, [&](hr_render_job* jobs, int32_t count) {
    return hr_image_render(request.data, request.size, jobs, count);
  });
  job.output = nullptr;
  REFUSED(render(), "a job has no output");
}

void ops_by_name() {
  CHECK(hr_op_id(nullptr) == -1 && hr_op_id("") == -1 && hr_op_id("resize_") == -1);
  CHECK(hr_op_name(-1) == nullptr);
  int32_t id = 0;
  for (; hr_op_name(id) != nullptr; ++id) CHECK(hr_op_id(hr_op_name(id)) == id);
  CHECK(id > 6);
}

void facts_of_images() {
  const Request request;
  const uint8_t* const files[3] = {request.data, request.data, request.data};
  const uint64_t sizes[3] = {request.size, 100, 3};
  hr_image_facts facts[3];
  std::vector<uint8_t> out(1000);
  REFUSED(hr_index_images(nullptr, sizes, 3, 1, facts, out.data(), 1000), kPlain);
  REFUSED(hr_index_images(files, nullptr, 3, 1, facts, out.data(), 1000), kPlain);
  REFUSED(hr_index_images(files, sizes, -1, 1, facts, out.data(), 1000), kPlain);
  REFUSED(hr_index_images(files, sizes, 3, -1, facts, out.data(), 1000), kPlain);
  REFUSED(hr_index_images(files, sizes, 3, 1, nullptr, out.data(), 1000), kPlain);
  REFUSED(hr_index_images(files, sizes, 3, 1, facts, nullptr, 1000), kPlain);
  const uint8_t* const none[1] = {nullptr};
  REFUSED(hr_index_images(none, sizes, 1, 1, facts, out.data(), 1000), kPlain);

  CHECK(hr_index_images(files, sizes, 3, 1, facts, out.data(), 1000) == HR_OK);
  CHECK(facts[0].width == 40 && facts[0].height == 30 && facts[0].entries_end > 20);
  for (int damaged = 1; damaged < 3; ++damaged) {
    CHECK(facts[damaged].width == 0 && facts[damaged].height == 0);
    CHECK(facts[damaged].entries_end == facts[0].entries_end);
    CHECK(facts[damaged].checksum != facts[0].checksum);
  }
  FAILS(hr_index_images(files, sizes, 3, 1, facts, out.data(), facts[0].entries_end - 1),
        HR_TOO_LARGE, "the entry points don't fit the memory given");
  CHECK(hr_index_images(files, sizes, 0, 1, facts, out.data(), 0) == HR_OK);
  const uint8_t digits[] = "123456789";  // the check value of every list of CRCs
  const uint8_t* const check[1] = {digits};
  const uint64_t length = 9;
  CHECK(hr_index_images(check, &length, 1, 0, facts, out.data(), 1000) == HR_OK);
  CHECK(facts[0].checksum == 0xCBF43926);
}

void transcoding() {
  const Request request;
  const uint64_t size = request.size;
  std::vector<uint8_t> out(size + 1000);
  uint64_t used = 0;
  const auto transcode = [&](const uint8_t* from, int32_t interval, uint8_t* to, uint64_t capacity,
                             uint64_t* out_size) {
    return hr_jpeg_transcode(from, size, interval, 1, 1, to, capacity, out_size);
  };
  REFUSED(transcode(nullptr, 0, out.data(), out.size(), &used), kPlain);
  REFUSED(transcode(request.data, 0, nullptr, out.size(), &used), kPlain);
  REFUSED(transcode(request.data, 0, out.data(), out.size(), nullptr), kPlain);
  for (const int32_t interval : {-2, 65536}) {
    REFUSED(transcode(request.data, interval, out.data(), out.size(), &used),
            "a restart interval is -1 (chosen for the file) or 0 to 65535");
  }
  CHECK(used == 0);
  FAILS(transcode(request.data, 0, out.data(), 10, &used), HR_TOO_LARGE,
        "the transcoded file doesn't fit the memory given");
  CHECK(used > 10 && out[0] == 0);
  const uint64_t needed = used;
  FAILS(transcode(request.data, 0, out.data(), needed - 1, &used), HR_TOO_LARGE,
        "the transcoded file doesn't fit the memory given");
  CHECK(transcode(request.data, 0, out.data(), needed, &used) == HR_OK && used == needed);
  CHECK(out[0] == 0xFF && out[needed - 1] == 0xD9 && out[needed] == 0);
  FAILS(hr_jpeg_transcode(request.data, 100, 0, 1, 1, out.data(), out.size(), &used), HR_CORRUPT,
        hr_describe(HR_CORRUPT));
}

void rectangles() {
  const Request request;
  std::vector<uint8_t> rgbx(size_t{4} * 40 * 30);
  int32_t decoders = 0;
  while (hr_decoder_name(decoders) != nullptr) ++decoders;
  const auto decode = [&](int32_t decoder, int32_t x, int32_t y, int32_t w, int32_t h) {
    return hr_image_decode(decoder, request.data, request.size, nullptr, 0, x, y, w, h,
                           rgbx.data());
  };
  const char* const missing = "no data, no output or no such decoder";
  const char* const outside = "the rectangle is empty or leaves the image";
  int32_t last = 0;  // of those that decode JPEG
  while (std::string(hr_decoder_name(last)) != "libjpeg-full") ++last;
  REFUSED(decode(-1, 0, 0, 40, 30), missing);
  REFUSED(decode(decoders, 0, 0, 40, 30), missing);
  REFUSED(hr_image_decode(last, nullptr, 9, nullptr, 0, 0, 0, 1, 1, rgbx.data()), missing);
  REFUSED(hr_image_decode(last, request.data, request.size, nullptr, 0, 0, 0, 1, 1, nullptr),
          missing);
  const int32_t max = std::numeric_limits<int32_t>::max();
  const int32_t rectangles[][4] = {{-1, 0, 1, 1},  {0, -1, 1, 1},  {0, 0, 0, 1},   {0, 0, 1, 0},
                                   {1, 0, 40, 1},  {0, 1, 1, 30},  {max, 0, 1, 1}, {0, 0, max, max},
                                   {0, max, 1, 1}, {0, 0, -max, 1}};
  for (const auto& r : rectangles) REFUSED(decode(last, r[0], r[1], r[2], r[3]), outside);
  CHECK(decode(last, 0, 0, 40, 30) == HR_OK);
  const std::vector<uint8_t> empty = padded({0xFF, 0xD8, 0xFF, 0xD9});
  FAILS(hr_image_decode(last, empty.data(), 4, nullptr, 0, 0, 0, 1, 1, rgbx.data()), HR_CORRUPT,
        hr_describe(HR_CORRUPT));
}

void tables_end() {
  CHECK(hr_stage_name(-1) == nullptr && hr_stage_name(HR_STAGES) == nullptr);
  CHECK(hr_stage_name(0) != nullptr && hr_stage_name(HR_STAGES - 1) != nullptr);
  CHECK(hr_decoder_name(-1) == nullptr && hr_decoder_name(HR_DECODERS) == nullptr);
  CHECK(hr_simd_name(-1) == nullptr && hr_simd_name(99) == nullptr);
  CHECK(hr_simd_available(-1) == 0 && hr_simd_available(99) == 0);
  REFUSED(hr_simd_force(99), "this instruction set is not available here");
  for (int32_t i = 0; hr_simd_name(i) != nullptr; ++i) {
    if (hr_simd_available(i)) {
      CHECK(hr_simd_force(i) == HR_OK && hr_simd_active() == i);
    } else {
      REFUSED(hr_simd_force(i), "this instruction set is not available here");
    }
  }
  CHECK(hr_simd_force(-1) == HR_OK);
  for (const int32_t code : {-1, 0, 5, 10}) CHECK(std::strlen(hr_describe(code)) > 0);
}

}  // namespace

int main() {
  CHECK(std::string(hr_last_error()) == "no error");
  for (const int32_t threads : {0, 1}) {
    hr_pool* pool = nullptr;
    CHECK(hr_pool_create(threads, 0, &pool) == HR_OK);
    requests_are_refused_whole(pool);
    shards_that_are_none(pool);
    requests_may_leave_out_what_they_do_not_use(pool);
    pools_and_batches(pool);
    hr_pool_destroy(pool);
  }
  draws();
  images_in_memory();
  decoded_images();
  ops_by_name();
  facts_of_images();
  transcoding();
  rectangles();
  tables_end();
  std::puts("test_c_api: passed");
  return 0;
}
