#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

constexpr int64_t kLevels = 3 * 256;

int64_t data_count(const double*) { return kLevels; }

// Image.point. data: what the 256 levels of red become, then those of green and blue.
Code pixels(const double*, const double*, Canvas* canvas) {
  uint8_t levels[kLevels];
  for (int64_t i = 0; i < kLevels; ++i) {
    const float level = canvas->data()[i];
    if (!(level >= 0 && level <= 255)) return Code::kUnsupported;
    levels[i] = static_cast<uint8_t>(level);
  }
  auto& table = canvas->levels()->level;
  for (int c = 0; c < 3; ++c)
    for (uint8_t& level : table[c]) level = levels[256 * c + level];
  return Code::kOk;
}

}  // namespace

const Op kPillowPoint = {"pillow_point", nullptr, nullptr, nullptr,   nullptr,
                         nullptr,        pixels,  nullptr, data_count};

}  // namespace headrace
