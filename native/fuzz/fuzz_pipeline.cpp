// A whole sample through the C ABI: geometry, resize and store on whatever sizes a damaged file
// claims. The first eight bytes choose the pipeline, the rest is the file. The output is exactly as
// large as it must be.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "headrace.h"
#include "outcome.h"

size_t inputs_decoded = 0;

namespace {

constexpr size_t kPadding = 256;

hr_step resize_step(const uint8_t* choices) {
  hr_step step = {};
  step.kind = choices[0] % 2 == 0 ? HR_RESIZE_SHORTER : HR_RANDOM_RESIZED_CROP;
  step.height = 1 + choices[1] % 60;
  step.width = 1 + choices[2] % 60;
  step.filter = choices[3] % 6;
  step.scale[0] = 0.05f;
  step.scale[1] = 1.0f;
  step.ratio[0] = 0.5;
  step.ratio[1] = 2.0;
  step.log_ratio[0] = std::log(0.5f);
  step.log_ratio[1] = std::log(2.0f);
  return step;
}

hr_step crop_step(const uint8_t* choices) {
  hr_step step = {};
  step.kind = choices[4] % 2 == 0 ? HR_CENTER_CROP : HR_RANDOM_CROP;
  step.height = 1 + choices[5] % 70;
  step.width = 1 + choices[6] % 70;
  step.padding_mode = choices[4] / 2 % 4;
  step.pad_if_needed = 1;
  for (int i = 0; i < 4; ++i) step.padding[i] = choices[7] >> i & 7;
  return step;
}

hr_step flip_step(int32_t kind) {
  hr_step step = {};
  step.kind = kind;
  step.p = 0.5;
  return step;
}

void check(int32_t code) {
  if (code == HR_OK) return;
  std::fprintf(stderr, "%s\n", hr_last_error());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Choices chosen(data, size);
  const uint8_t* choices = chosen.byte;
  std::vector<hr_step> steps = {flip_step(HR_HORIZONTAL_FLIP), crop_step(choices),
                                flip_step(HR_VERTICAL_FLIP)};
  if (choices[0] % 4 != 3) steps.insert(steps.begin() + choices[0] / 4 % 2, resize_step(choices));
  hr_pipeline pipeline = {};
  pipeline.steps = steps.data();
  pipeline.step_count = static_cast<int32_t>(steps.size());
  pipeline.height = crop_step(choices).height;
  pipeline.width = crop_step(choices).width;
  pipeline.layout = choices[0] / 8 % 2;
  pipeline.pillow_vertical_first = choices[0] / 16 % 2;
  pipeline.decoders = ~0u;
  pipeline.max_pixels = 1 << 20;

  std::vector<uint8_t> bytes(data, data + size);
  const uint64_t file_size = bytes.size();
  bytes.resize(bytes.size() + kPadding);
  const uint8_t* start = bytes.data();
  hr_source source = {};
  source.count = 1;
  source.data = &start;
  source.sizes = &file_size;

  static const int64_t kIndex = 0;
  std::vector<uint8_t> output(size_t{3} * static_cast<size_t>(pipeline.height) *
                              static_cast<size_t>(pipeline.width));
  hr_status status = {};
  hr_request request = {};
  request.pipeline = &pipeline;
  request.source = &source;
  request.indices = &kIndex;
  request.count = 1;
  request.seed = choices[1];
  request.output = output.data();
  request.statuses = &status;
  hr_pool* pool = nullptr;
  hr_batch* batch = nullptr;
  check(hr_pool_create(0, 0, &pool));
  check(hr_batch_submit(pool, &request, &batch));
  check(hr_batch_wait(batch, 10000));
  hr_batch_free(batch);
  hr_pool_destroy(pool);
  if (status.code == HR_INTERNAL || status.code == HR_INVALID_ARGUMENT) {
    std::fprintf(stderr, "a sample ended with code %d\n", status.code);
    std::abort();
  }
  inputs_decoded += status.code == HR_OK;
  return 0;
}
