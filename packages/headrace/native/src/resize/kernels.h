// The inner loops of the resize, one set per instruction set. All sets give equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../cpu.h"

namespace headrace {

constexpr int kWeightBits =
    22;  // Pillow's fixed point: 32 bits less 8 of the pixel and 2 for overshoot
constexpr int kTapGroup = 4;  // taps are weighted four at a time
constexpr int kRowGroup = 4;  // rows go through the horizontal pass four at a time

// What each output of one axis reads. Weights past an output's last tap are zero, so kernels may
// take whole groups.
struct AxisTaps {
  int outputs = 0;
  int extent = 0;  // source pixels along the axis; whole groups reach at most 3 pixels past it
  int reach = 0;   // no output reads further apart than this, zero weights included
  int groups = 0;  // of kTapGroup taps, the same for every output
  const int32_t* first = nullptr;   // [outputs]
  const int32_t* count = nullptr;   // [outputs] taps up to the last one that is not zero
  const uint8_t* packed = nullptr;  // [outputs][groups][ResizeKernels::group_bytes]
};

struct ResizeKernels {
  size_t group_bytes;

  // Puts weights, group after group, into the form that this set reads: group_bytes for each. May
  // write 16 bytes past.
  void (*pack)(const int32_t* weights, size_t groups, uint8_t* packed);

  // Four source rows to four output rows of taps.outputs pixels. Pointers may repeat where there
  // are fewer rows. Reads up to 3 pixels past the extent; writes nothing past the outputs.
  void (*horizontal)(const uint8_t* const in[kRowGroup], uint8_t* const out[kRowGroup],
                     const AxisTaps& taps);

  // One output row of `width` pixels from `count` rows. `rows` has pointers for whole groups, all
  // readable, up to 64 bytes past the rows' ends; writes nothing past the width.
  void (*vertical)(const uint8_t* const* rows, const uint8_t* packed, int count, int width,
                   uint8_t* out);
};

extern const ResizeKernels kScalarResize;
#if defined(__x86_64__)
extern const ResizeKernels kAvx2Resize;
extern const ResizeKernels kAvx512Resize;
#elif defined(__aarch64__)
extern const ResizeKernels kNeonResize;
#endif

}  // namespace headrace
