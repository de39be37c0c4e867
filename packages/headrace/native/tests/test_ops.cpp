// Every op of the table, with whatever parameters it lets pass and whatever is claimed to be drawn:
// it stays within its memory, and says what size it gives. Run under the sanitizers, too.
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "ops.h"
#include "ops/op.h"
#include "program.h"
#include "runner.h"

namespace {

using headrace::Code;

class Random {
 public:
  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }

  // What parameters often are; the rest of them are tried elsewhere. Ops of many parameters pass
  // hardly ever unless most of these are 0 or 1.
  double param(bool simple) {
    if (simple && below(4) != 0) return below(4) == 0;
    const double known[] = {0, 0, 1, 1, 0.5, 2, 3, 5, 8, 24, 255, -1, -0.5, 0.1, 45, 90, 180};
    return known[below(static_cast<int>(std::size(known)))];
  }

  double claimed() { return below(3) == 0 ? (below(2001) - 1000) * 1e6 : below(60) - 20; }

 private:
  std::mt19937 engine_{1};
};

// The pipeline of one op, on an image of w × h; whether it gave pixels.
bool run(const hr_op& op, const hr_draw& draw, int w, int h, int out_w, int out_h) {
  hr_pipeline pipeline = {};
  pipeline.channels = 3;
  pipeline.ops = &op;
  pipeline.op_count = 1;
  pipeline.width = out_w;
  pipeline.height = out_h;
  const std::vector<uint8_t> rgb(size_t{3} * static_cast<size_t>(w * h), 100);
  std::vector<uint8_t> out(size_t{3} * static_cast<size_t>(out_w) * static_cast<size_t>(out_h));
  const int32_t code = hr_apply_ops(&pipeline, &draw, rgb.data(), w, h, out.data());
  CHECK(code == HR_OK || code == HR_UNSUPPORTED || code == HR_OUT_OF_MEMORY);
  return code == HR_OK;
}

void every_op_is_safe_and_keeps_to_its_size() {
  Random random;
  for (int32_t id = 0; hr_op_name(id) != nullptr; ++id) {
    int tried = 0, applied = 0;
    for (int round = 0; round < 300000 && tried < 300; ++round) {
      hr_op op = {};
      op.id = id;
      for (double& param : op.params) param = random.param(round % 2 == 1);
      const headrace::Op& known = *headrace::find_op(id);
      const bool passes = known.check == nullptr || known.check(op.params) == nullptr;
      if (passes && known.data_count != nullptr) op.data_count = known.data_count(op.params);
      const std::vector<float> data(static_cast<size_t>(op.data_count), 0.01F);
      op.data = data.empty() ? nullptr : data.data();
      hr_pipeline pipeline = {};
      pipeline.channels = 3;
      pipeline.ops = &op;
      pipeline.op_count = 1;
      if (headrace::check_ops(pipeline) != nullptr) continue;
      const int w = 1 + random.below(40), h = 1 + random.below(40);
      hr_draw draw = {};
      headrace::Size out = {};
      const headrace::RandomKey key = {1, 2, static_cast<uint64_t>(round)};
      const Code code = draw_ops(pipeline, key, {w, h}, &draw, &out);
      CHECK(code == Code::kOk || code == Code::kUnsupported);
      if (code != Code::kOk) continue;
      ++tried;
      applied += run(op, draw, w, h, out.width, out.height);
      for (double& value : draw.value) value = random.claimed();
      run(op, draw, w, h, out.width, out.height);
    }
    std::printf("%s: %d\n", hr_op_name(id), applied);
    // Some crops show nothing but padding, which native code leaves to torchvision.
    CHECK(tried >= 20 && 2 * applied > tried);
  }
}

}  // namespace

int main() {
  every_op_is_safe_and_keeps_to_its_size();
  std::puts("test_ops: passed");
  return 0;
}
