// Writes finished RGBX pixels into the batch's memory in the layout and dtype that the user gets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../image.h"

namespace headrace {

// Values are part of the C ABI.
enum class Dtype : int32_t { kUint8 = 0, kFloat16 = 1, kBfloat16 = 2, kFloat32 = 3, kInt64 = 4 };
enum class Layout : int32_t { kNchw = 0, kNhwc = 1 };

constexpr size_t dtype_size(Dtype dtype) {
  constexpr size_t kSizes[] = {1, 2, 2, 4, 8};
  return kSizes[static_cast<int32_t>(dtype)];
}

// One sample's place in the batch: channels × height × width elements (kNchw) or height × width ×
// channels (kNhwc), contiguous. Exactly that many elements are written, never one more: neighbours
// belong to other threads.
struct SampleOutput {
  void* data = nullptr;
  int height = 0;
  int width = 0;
  Dtype dtype = Dtype::kUint8;
  Layout layout = Layout::kNchw;
  const void* table = nullptr;  // [channels][256] of dtype: the value of each level of each
                                // channel; nullptr: the level itself (uint8 only)
  int channels = 3;  // 3, or 1: the first of the image's; or 4: as Pillow keeps RGB in memory
                     // (kNhwc, without a table)
};

// Stores `rows` RGBX rows of `source` (width pixels each) as rows y .. y + source.height of the
// sample, starting at column x.
void store_rows(const ConstImageView& source, const SampleOutput& out, int x, int y);

}  // namespace headrace
