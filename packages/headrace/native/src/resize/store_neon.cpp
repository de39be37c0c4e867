// The store's loops for NEON, whose loads and stores take pixels apart and put them together.
#include "store_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>

namespace headrace {
namespace {

void rgb(const uint8_t* rgbx, int width, uint8_t* out) {
  int x = 0;
  for (; x + 16 <= width; x += 16, rgbx += 64, out += 48) {
    const uint8x16x4_t pixels = vld4q_u8(rgbx);
    vst3q_u8(out, {{pixels.val[0], pixels.val[1], pixels.val[2]}});
  }
  for (; x < width; ++x, rgbx += 4, out += 3) std::memcpy(out, rgbx, 3);
}

void planes(const uint8_t* rgbx, int width, uint8_t* const out[3]) {
  int x = 0;
  for (; x + 16 <= width; x += 16) {
    const uint8x16x4_t pixels = vld4q_u8(rgbx + static_cast<size_t>(x) * 4);
    for (int c = 0; c < 3; ++c) vst1q_u8(out[c] + x, pixels.val[c]);
  }
  for (; x < width; ++x) {
    for (int c = 0; c < 3; ++c) out[c][x] = rgbx[static_cast<size_t>(x) * 4 + c];
  }
}

}  // namespace

const StoreKernels kNeonStore = {rgb,
                                 planes,
                                 lookup_one_by_one<uint16_t>,
                                 lookup_one_by_one<uint32_t>,
                                 interleave_one_by_one<uint16_t>,
                                 interleave_one_by_one<uint32_t>,
                                 nothing_to_publish};

}  // namespace headrace
#endif  // __aarch64__
