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
    steps[0].kind = HR_RANDOM_RESIZED_CROP;
    steps[0].height = steps[0].width = 8;
    steps[0].filter = 2;
    steps[0].scale[0] = 0.5F;
    steps[0].scale[1] = 1.0F;
    steps[0].ratio[0] = steps[0].ratio[1] = 1.0;
    steps[1].kind = HR_HORIZONTAL_FLIP;
    pipeline.steps = steps;
    pipeline.step_count = 2;
    pipeline.height = pipeline.width = 8;
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
  hr_step steps[2] = {};
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

const float kNanF = std::numeric_limits<float>::quiet_NaN();
const float kInfF = std::numeric_limits<float>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Flaw> step_flaws() {
  const char* const kind = "a step's kind is unknown";
  const char* const height = "a step's height is out of range";
  const char* const width = "a step's width is out of range";
  const char* const filter = "a step's filter is unknown";
  const char* const max_size = "a step's max_size is out of range";
  const char* const mode = "a step's padding_mode is unknown";
  const char* const padding = "a step's padding is out of range";
  const char* const bounds = "a RandomResizedCrop's scale or ratio is out of range";
  return {
      {kind, [](Request* r) { r->steps[0].kind = 0; }},
      {kind, [](Request* r) { r->steps[1].kind = 8; }},
      {height, [](Request* r) { r->steps[0].height = 0; }},
      {height, [](Request* r) { r->steps[0].height = (1 << 20) + 1; }},
      {width, [](Request* r) { r->steps[0].width = -1; }},
      {width, [](Request* r) { r->steps[0].width = (1 << 20) + 1; }},
      {filter, [](Request* r) { r->steps[0].filter = -1; }},
      {filter, [](Request* r) { r->steps[0].filter = 6; }},
      {max_size, [](Request* r) { r->steps[0].max_size = -1; }},
      {max_size, [](Request* r) { r->steps[0].max_size = (1 << 20) + 1; }},
      {mode, [](Request* r) { r->steps[0].padding_mode = -1; }},
      {mode, [](Request* r) { r->steps[0].padding_mode = 4; }},
      {padding, [](Request* r) { r->steps[0].padding[0] = -1; }},
      {padding, [](Request* r) { r->steps[0].padding[3] = (1 << 20) + 1; }},
      {bounds, [](Request* r) { r->steps[0].scale[0] = -0.1F; }},
      {bounds, [](Request* r) { r->steps[0].scale[0] = kNanF; }},
      {bounds, [](Request* r) { r->steps[0].scale[1] = kInfF; }},
      {bounds, [](Request* r) { r->steps[0].log_ratio[0] = -kInfF; }},
      {bounds, [](Request* r) { r->steps[0].log_ratio[1] = kNanF; }},
      {bounds, [](Request* r) { r->steps[0].ratio[0] = 0; }},
      {bounds, [](Request* r) { r->steps[0].ratio[1] = kNan; }},
  };
}

std::vector<Flaw> pipeline_flaws() {
  const char* const count = "a pipeline has 0 to 32 steps";
  const char* const size = "the pipeline's output size is out of range";
  const char* const dtype = "the pipeline's dtype is unknown";
  const char* const layout = "the pipeline's layout is unknown";
  std::vector<Flaw> flaws = {
      {count, [](Request* r) { r->pipeline.step_count = -1; }},
      {count, [](Request* r) { r->pipeline.step_count = 33; }},
      {"the pipeline's steps are missing", [](Request* r) { r->pipeline.steps = nullptr; }},
      {size, [](Request* r) { r->pipeline.height = 0; }},
      {size, [](Request* r) { r->pipeline.width = 0; }},
      {size, [](Request* r) { r->pipeline.height = (1 << 20) + 1; }},
      {size, [](Request* r) { r->pipeline.width = (1 << 20) + 1; }},
      {dtype, [](Request* r) { r->pipeline.dtype = -1; }},
      {dtype, [](Request* r) { r->pipeline.dtype = 4; }},
      {layout, [](Request* r) { r->pipeline.layout = -1; }},
      {layout, [](Request* r) { r->pipeline.layout = 2; }},
      {"a dtype other than uint8 needs a table", [](Request* r) { r->pipeline.dtype = 3; }},
  };
  for (const Flaw& flaw : step_flaws()) flaws.push_back(flaw);
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

// What a kind doesn't use may be anything that is in range; nothing is needed where nothing is
// asked for.
void requests_may_leave_out_what_they_do_not_use(hr_pool* pool) {
  Request flip;
  flip.pipeline.steps = flip.steps + 1;
  flip.pipeline.step_count = 1;
  flip.steps[1].height = flip.steps[1].width = flip.steps[1].filter = -7;
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
  for (const Flaw& flaw : pipeline_flaws()) {
    Request request;
    CHECK(hr_draw_steps(&request.pipeline, 1, 2, 3, 0, 40, 30, draws) == HR_OK);
    flaw.make(&request);
    REFUSED(hr_draw_steps(&request.pipeline, 1, 2, 3, 0, 40, 30, draws), flaw.text);
  }
  Request request;
  REFUSED(hr_draw_steps(nullptr, 1, 2, 3, 0, 40, 30, draws), "the request has no pipeline");
  REFUSED(hr_draw_steps(&request.pipeline, 1, 2, 3, 0, 40, 30, nullptr), kPlain);
  REFUSED(hr_draw_steps(&request.pipeline, 1, 2, 3, 0, 0, 30, draws), kPlain);
  REFUSED(hr_draw_steps(&request.pipeline, 1, 2, 3, 0, 40, 0, draws), kPlain);
  request.steps[0].kind = HR_RANDOM_CROP;
  request.steps[0].height = 31;
  FAILS(hr_draw_steps(&request.pipeline, 1, 2, 3, 0, 40, 30, draws), HR_UNSUPPORTED,
        "a crop is larger than its input, or an edge is too long");
}

void look_ups() {
  const uint8_t levels[2][3][2] = {{{0, 1}, {2, 3}, {4, 5}}, {{6, 7}, {8, 9}, {10, 255}}};
  float values[12] = {};
  std::vector<float> table(3 * 256);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i) / 2;
  for (const Flaw& flaw : pipeline_flaws()) {
    Request request;
    request.pipeline.height = 1;
    request.pipeline.width = 2;
    request.pipeline.dtype = 3;
    request.pipeline.table = table.data();
    CHECK(hr_look_up(&request.pipeline, levels[0][0], 2, values) == HR_OK);
    CHECK(values[0] == 0.0F && values[3] == 129.5F && values[11] == 383.5F);
    request.pipeline.layout = 1;
    CHECK(hr_look_up(&request.pipeline, levels[0][0], 2, values) == HR_OK);
    CHECK(values[0] == 0.0F && values[1] == 129.0F && values[3] == 0.5F && values[11] == 383.5F);
    request.pipeline.dtype = request.pipeline.layout = 0;
    request.pipeline.table = nullptr;
    flaw.make(&request);
    REFUSED(hr_look_up(&request.pipeline, levels[0][0], 2, values), flaw.text);
  }
  Request request;
  REFUSED(hr_look_up(nullptr, levels[0][0], 2, values), "the request has no pipeline");
  REFUSED(hr_look_up(&request.pipeline, nullptr, 2, values), kPlain);
  REFUSED(hr_look_up(&request.pipeline, levels[0][0], -1, values), kPlain);
  REFUSED(hr_look_up(&request.pipeline, levels[0][0], 2, nullptr), kPlain);
  CHECK(hr_look_up(&request.pipeline, levels[0][0], 0, values) == HR_OK);
}

void single_operations() {
  const Request request;
  const uint8_t* data = request.data;
  const uint64_t size = request.size;
  int32_t width = 0, height = 0;
  REFUSED(hr_jpeg_size(nullptr, size, &width, &height), kPlain);
  REFUSED(hr_jpeg_size(data, size, nullptr, &height), kPlain);
  REFUSED(hr_jpeg_size(data, size, &width, nullptr), kPlain);
  FAILS(hr_jpeg_size(data, 3, &width, &height), HR_UNSUPPORTED, hr_describe(HR_UNSUPPORTED));
  FAILS(hr_jpeg_size(data, 100, &width, &height), HR_CORRUPT, hr_describe(HR_CORRUPT));
  CHECK(hr_jpeg_size(data, size, &width, &height) == HR_OK && width == 40 && height == 30);

  std::vector<uint8_t> out(1000);
  uint64_t used = 0;
  const auto entries = [&](const uint8_t* from, int32_t every, uint8_t* to, uint64_t* out_size) {
    return hr_jpeg_entry_points(from, size, every, to, out.size(), out_size);
  };
  REFUSED(entries(nullptr, 1, out.data(), &used), kPlain);
  REFUSED(entries(data, -1, out.data(), &used), kPlain);
  REFUSED(entries(data, 1, nullptr, &used), kPlain);
  REFUSED(entries(data, 1, out.data(), nullptr), kPlain);
  CHECK(entries(data, 1, out.data(), &used) == HR_OK && used > 20);
  FAILS(hr_jpeg_entry_points(data, size, 1, out.data(), used - 1, &used), HR_TOO_LARGE,
        "the entry points don't fit the memory given");
  FAILS(hr_jpeg_entry_points(data, 100, 1, out.data(), 1000, &used), HR_CORRUPT,
        hr_describe(HR_CORRUPT));
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
    return hr_jpeg_decode(decoder, request.data, request.size, nullptr, 0, x, y, w, h, rgbx.data());
  };
  const char* const missing = "no data, no output or no such decoder";
  const char* const outside = "the rectangle is empty or leaves the image";
  const int32_t last = decoders - 1;
  REFUSED(decode(-1, 0, 0, 40, 30), missing);
  REFUSED(decode(decoders, 0, 0, 40, 30), missing);
  REFUSED(hr_jpeg_decode(last, nullptr, 9, nullptr, 0, 0, 0, 1, 1, rgbx.data()), missing);
  REFUSED(hr_jpeg_decode(last, request.data, request.size, nullptr, 0, 0, 0, 1, 1, nullptr),
          missing);
  const int32_t max = std::numeric_limits<int32_t>::max();
  const int32_t rectangles[][4] = {{-1, 0, 1, 1},  {0, -1, 1, 1},  {0, 0, 0, 1},   {0, 0, 1, 0},
                                   {1, 0, 40, 1},  {0, 1, 1, 30},  {max, 0, 1, 1}, {0, 0, max, max},
                                   {0, max, 1, 1}, {0, 0, -max, 1}};
  for (const auto& r : rectangles) REFUSED(decode(last, r[0], r[1], r[2], r[3]), outside);
  CHECK(decode(last, 0, 0, 40, 30) == HR_OK);
  const std::vector<uint8_t> empty = padded({0xFF, 0xD8, 0xFF, 0xD9});
  FAILS(hr_jpeg_decode(last, empty.data(), 4, nullptr, 0, 0, 0, 1, 1, rgbx.data()), HR_CORRUPT,
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
  look_ups();
  single_operations();
  transcoding();
  rectangles();
  tables_end();
  std::puts("test_c_api: passed");
  return 0;
}
