// From coefficients to pixels: one set of kernels per instruction set, all with equal results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../cpu.h"
#include "own_entropy.h"

namespace headrace::jpeg::own {

// Where the 8 × 8 samples of a block go.
struct BlockTarget {
  const int16_t* quantiser;  // [64], row-major
  uint8_t* samples;          // at a multiple of 8 bytes, as is every row
  size_t stride;
};

// The samples that a row of pixels is made of. `cb` and `cr` are the chroma row that the pixels lie
// in; `cb_far` and `cr_far` the vertical neighbour that is mixed in where chroma has half the rows.
struct RowSamples {
  const uint8_t* luma;
  const uint8_t* cb;
  const uint8_t* cr;
  const uint8_t* cb_far;
  const uint8_t* cr_far;
};

// Makes pixels first to first + count - 1, counted from the samples' start, into RGBX at `rgbx`.
// Reads up to 64 samples past the last one and, of halved rows, one before the first. Writes
// exactly 4 × count bytes.
using RowKernel = void (*)(const RowSamples& in, int first, int count, uint8_t* rgbx);

struct PixelKernels {
  // Inverse DCT of `count` blocks with libjpeg's accurate integer method; zeroes the blocks.
  void (*inverse_dct)(Block* blocks, const uint8_t* extents, const BlockTarget* targets, int count);

  RowKernel gray;  // luma only
  RowKernel full;  // chroma for every pixel
  RowKernel h2v1;  // chroma for every other column, between which libjpeg interpolates
  RowKernel h2v2;  // and for every other row
};

extern const PixelKernels kScalarPixels;
#if defined(__x86_64__)
extern const PixelKernels kAvx2Pixels;
void inverse_dct_avx2(Block* blocks, const uint8_t* extents, const BlockTarget* targets, int count);
#elif defined(__aarch64__)
extern const PixelKernels kNeonPixels;
#endif

const PixelKernels& pixel_kernels();  // the active instruction set's

// One block, for the cases that a vector kernel leaves: `block` is not zeroed.
void inverse_dct_block(const int16_t* block, const BlockTarget& target);

// A block of which only the DC coefficient is not zero: every sample has this level.
uint8_t flat_level(int16_t dc, int16_t quantiser);

}  // namespace headrace::jpeg::own
