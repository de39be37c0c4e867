// Look-ups: functions of a channel's level, composed in a table and applied once.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

// `table` followed by `step`, in one channel.
template <typename Step>
void append(uint8_t (&table)[256], const Step& step) {
  for (uint8_t& level : table) level = static_cast<uint8_t>(step(level));
}

// How many pixels have each level once `table` has been applied to what `counts` is of.
void count_after(const uint8_t (&table)[256], const int64_t (&counts)[256], int64_t (&out)[256]) {
  std::fill(out, out + 256, 0);
  for (int level = 0; level < 256; ++level) out[table[level]] += counts[level];
}

// The lowest and highest level once `table` has been applied; false: there is one level only.
bool find_range(const uint8_t (&table)[256], const int64_t (&counts)[256], int* low, int* high) {
  int64_t present[256];
  count_after(table, counts, present);
  *low = 0;
  *high = 255;
  while (*low < 255 && present[*low] == 0) ++*low;
  while (*high > 0 && present[*high] == 0) --*high;
  return *high > *low;
}

void append_autocontrast_of(uint8_t (&table)[256], const int64_t (&counts)[256]) {
  int low = 0, high = 255;
  if (!find_range(table, counts, &low, &high)) return;
  const double scale = 255.0 / (high - low), offset = -low * scale;
  append(table, [&](int level) {
    return std::min(std::max(static_cast<int>(level * scale + offset), 0), 255);
  });
}

// torchvision's autocontrast of a uint8 tensor, in float32.
void append_torch_autocontrast_of(uint8_t (&table)[256], const int64_t (&counts)[256], bool v2) {
  int low = 0, high = 255;
  if (!find_range(table, counts, &low, &high)) return;
  const auto range = static_cast<float>(high - low);
  const float share = range * (1.0f / 255.0f);
  const float scale = 1.0f / range * 255.0f;  // v1: torch divides a number by a tensor in this way
  append(table, [=](int level) {
    const auto above = static_cast<float>(level - low);
    return static_cast<int>(std::clamp(v2 ? above / share : above * scale, 0.0f, 255.0f));
  });
}

void append_equalize_of(uint8_t (&table)[256], const int64_t (&counts)[256]) {
  int64_t present[256];
  count_after(table, counts, present);
  int64_t sum = 0, last = 0;
  for (const int64_t count : present) {
    sum += count;
    if (count != 0) last = count;
  }
  const int64_t step = (sum - last) / 255;  // 0 where there is one level only
  if (step == 0) return;
  uint8_t equalized[256];
  int64_t below = step / 2;
  for (int level = 0; level < 256; ++level) {
    equalized[level] = static_cast<uint8_t>(std::min<int64_t>(below / step, 255));
    below += present[level];
  }
  append(table, [&](int level) { return equalized[level]; });
}

}  // namespace

LevelTable::LevelTable() {
  for (auto& channel : level) {
    for (int i = 0; i < 256; ++i) channel[i] = static_cast<uint8_t>(i);
  }
}

void LevelTable::append_invert() {
  for (auto& channel : level) append(channel, [](int v) { return 255 - v; });
}

void LevelTable::append_posterize(int bits) {
  const int mask = 0xFF << (8 - bits) & 0xFF;
  for (auto& channel : level) append(channel, [mask](int v) { return v & mask; });
}

void LevelTable::append_solarize(double threshold) {
  for (auto& channel : level)
    append(channel, [threshold](int v) { return v < threshold ? v : 255 - v; });
}

void LevelTable::append_solarize_add(int amount, int threshold) {
  for (auto& channel : level) {
    append(channel, [=](int v) { return v < threshold ? std::min(v + amount, 255) : v; });
  }
}

void LevelTable::append_brightness(double factor) {
  const auto f = static_cast<float>(factor);
  for (auto& channel : level) {
    append(channel, [f](int v) {
      return static_cast<int>(std::min(std::max(f * static_cast<float>(v), 0.0f), 255.0f));
    });
  }
}

void LevelTable::append_autocontrast(const int64_t counts[3][256]) {
  for (int c = 0; c < 3; ++c) append_autocontrast_of(level[c], counts[c]);
}

void LevelTable::append_torch_autocontrast(const int64_t counts[3][256], bool v2) {
  for (int c = 0; c < 3; ++c) append_torch_autocontrast_of(level[c], counts[c], v2);
}

void LevelTable::append_equalize(const int64_t counts[3][256]) {
  for (int c = 0; c < 3; ++c) append_equalize_of(level[c], counts[c]);
}

void count_levels(const ImageView& image, int64_t counts[3][256]) {
  // Two counters for each level, taken in turn: neighbours are often equal, and a counter that was
  // just written is slow to read.
  uint32_t parts[2][3][256];
  std::memset(counts, 0, 3 * sizeof(counts[0]));
  std::memset(parts, 0, sizeof(parts));
  for (int y = 0; y < image.height; ++y) {
    const uint8_t* row = image.row(y);
    for (int x = 0; x < image.width; ++x, row += 4) {
      for (int c = 0; c < 3; ++c) ++parts[x & 1][c][row[c]];
    }
  }
  for (int c = 0; c < 3; ++c) {
    for (int level = 0; level < 256; ++level)
      counts[c][level] = int64_t{parts[0][c][level]} + parts[1][c][level];
  }
}

void look_up(const ImageView& image, const LevelTable& table) {
  for (int y = 0; y < image.height; ++y)
    active_loops().look_up(image.row(y), image.width, table.level);
}

}  // namespace headrace::ops
