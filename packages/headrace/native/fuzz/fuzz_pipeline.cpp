// A whole sample through the C ABI: geometry, resize and store on whatever sizes a damaged file
// claims. The first eight bytes choose the pipeline, the rest is the file. The output is exactly as
// large as it must be.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../tests/ops.h"
#include "headrace.h"
#include "outcome.h"
#include "resize/resize.h"

size_t inputs_decoded = 0;

namespace {

constexpr size_t kPadding = 256;

hr_op resize_op(const uint8_t* choices) {
  const double size = 1 + choices[1] % 60, filter = choices[3] % (headrace::kLastFilter + 1);
  if (choices[0] % 2 == 0) return make_op("resize_shorter", {size, 0, filter});
  return random_resized_crop(1 + choices[1] % 60, 1 + choices[2] % 60, choices[3] % 6);
}

hr_op crop_op(const uint8_t* choices) {
  const double height = 1 + choices[5] % 70, width = 1 + choices[6] % 70;
  if (choices[4] % 2 == 0) return make_op("center_crop", {height, width});
  hr_op op = make_op("random_crop", {height, width});
  for (int i = 0; i < 4; ++i) op.params[2 + i] = choices[7] >> i & 7;
  op.params[6] = 1;  // padded as far as needed
  op.params[7] = choices[4] / 2 % 4;
  return op;
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
  const hr_op crop = crop_op(choices);
  std::vector<hr_op> ops = {make_op("horizontal_flip", {0.5}), crop,
                            make_op("vertical_flip", {0.5})};
  if (choices[0] % 4 != 3) ops.insert(ops.begin() + choices[0] / 4 % 2, resize_op(choices));
  hr_pipeline pipeline = {};
  pipeline.gray = choices[0] / 32 % 2;
  pipeline.upright = choices[0] / 64 % 2;
  pipeline.channels = choices[0] / 128 % 2 != 0 ? 1 : 3;
  pipeline.ops = ops.data();
  pipeline.op_count = static_cast<int32_t>(ops.size());
  pipeline.height = static_cast<int32_t>(crop.params[0]);
  pipeline.width = static_cast<int32_t>(crop.params[1]);
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
  std::vector<uint8_t> output(static_cast<size_t>(pipeline.channels) *
                              static_cast<size_t>(pipeline.height) *
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
