// The inner loops of the augmentations, one set per instruction set, all compiled from
// loops_impl.h. All sets give equal bytes in the first three of a pixel's four.
#pragma once

#include <cstdint>

#include "../geometry.h"
#include "../image.h"

namespace headrace::ops {

struct GaussianRow;
struct GridRow;
struct OpencvAround;
struct OpencvFilter;
struct OpencvRow;

// value * factor + other * rest, as torchvision blends tensors.
struct TorchBlend {
  float factor;
  float rest;  // 1 - factor
  bool v2;     // of torchvision's API
};

struct Loops {
  // Rows of RGBX pixels, in place.
  void (*blend_level)(uint8_t* row, int width, int level, float factor);
  void (*blend_luma)(uint8_t* row, int width, float factor);
  void (*blend_rows)(const uint8_t* from, uint8_t* to, int width, float factor);  // into `to`
  void (*luma)(uint8_t* row, int width);
  void (*permute)(uint8_t* row, int width, const int order[3]);
  void (*shift_hue)(uint8_t* row, int width, int shift);
  void (*look_up)(uint8_t* row, int width, const uint8_t levels[3][256]);
  uint64_t (*sum_luma)(const uint8_t* row, int width);

  // The same in torch's arithmetic; luma as v1 or v2 of torchvision computes it.
  void (*torch_blend_luma)(uint8_t* row, int width, const TorchBlend& blend);
  void (*torch_luma)(uint8_t* row, int width);
  void (*torch_shift_hue)(uint8_t* row, int width, float shift);
  uint64_t (*torch_sum_luma)(const uint8_t* row, int width, bool v2);

  // Pixels 1 to width - 2 of `out`: `row` blended with its smoothed self.
  void (*sharpen)(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
                  float factor, uint8_t* out);

  // One row of a warp: pixel i of `out` from the place (x[i], y[i]) in the source; nothing is
  // written where that is outside.
  using Sample = void (*)(const ImageView& source, const double* x, const double* y, int count,
                          uint32_t* out);
  Sample nearest;
  Sample bilinear;
  Sample bicubic;

  // Pixels from places in 16.16 fixed point, all inside: (x + i dx, y + i dy).
  void (*gather)(const ImageView& source, int32_t x, int32_t y, int32_t dx, int32_t dy, int count,
                 uint32_t* out);

  // `padded` (4 floats a pixel, width + size - 1 of them) convolved with a nearly symmetric kernel.
  void (*convolve_row)(const float* padded, const float* kernel, int size, int width, float* out);

  // Values too near to .5 for the separable sum to be sure of are computed again, exactly.
  void (*gaussian_row)(const GaussianRow& job, int width, uint8_t* out);

  // One row of a vertical box blur, byte by byte: `sums` moves from the window around the row above
  // to this row's. `before` is the row that leaves the window, `last` the one that enters it,
  // `after` the next; rows at both ends count with `edge_weight`, in 24-bit fixed point.
  void (*box_row)(uint32_t* sums, const uint8_t* before, const uint8_t* last, const uint8_t* after,
                  int bytes, uint32_t weight, uint32_t edge_weight, uint8_t* out);

  // torch's arithmetic on uint8 tensors: as `sharpen`; one row of a warp; the sum of `count` rows
  // of pixels with these weights, truncated.
  void (*torch_sharpen)(const uint8_t* above, const uint8_t* row, const uint8_t* below, int width,
                        const TorchBlend& blend, uint8_t* out);
  using Grid = void (*)(const ImageView& source, const GridRow& row, int width, uint32_t* out);
  Grid grid_bilinear;
  Grid grid_nearest;
  void (*mix_rows)(const uint8_t* const* rows, const float* weights, int count, int width,
                   uint8_t* out);

  // OpenCV's arithmetic. Rows of pixels in place; hues are 0 to 179, and the tables 4096 times 255
  // over a level and 30 over a range of levels.
  void (*opencv_luma)(uint8_t* row, int width);
  uint64_t (*opencv_sum_luma)(const uint8_t* row, int width);
  void (*opencv_blend_luma)(uint8_t* row, int width, float factor, float rest, bool numkong);
  void (*opencv_to_hsv)(uint8_t* row, int width, const int32_t saturations[256],
                        const int32_t hues[256]);
  void (*opencv_from_hsv)(uint8_t* row, int width, bool rounded);
  // Pixels of a row of a warp: of OpenCV 4 from their places in 32nds of a pixel, or in pixels if
  // it isn't linear, in arrays of whole registers; of OpenCV 5 those from column `begin` to `end`,
  // where the last ones of a row round otherwise.
  void (*opencv_warp_fixed)(const ImageView& source, const OpencvAround& around, bool linear,
                            const int32_t* x, const int32_t* y, int count, uint32_t* out);
  void (*opencv_warp_floats)(const ImageView& source, const OpencvAround& around,
                             const OpencvRow& row, int begin, int end, bool last, uint32_t* out);
  // The two passes of a blur with symmetric weights, of which `size`, an odd number, add up to 256
  // or 257 at most. `padded` has size - 1 more pixels.
  void (*opencv_blur_row)(const uint8_t* padded, const uint16_t* weights, int size, int width,
                          uint16_t* out);
  void (*opencv_blur_column)(const uint16_t* const* rows, const uint16_t* weights, int size,
                             int width, uint32_t* sums, uint8_t* out);
  // The same in float32, with chains of fused multiply-adds but for the last values of a row.
  // Rows of floats have room for one vector more; `levels` is memory for `padded` as floats.
  void (*opencv_filter_row)(const uint8_t* padded, const OpencvFilter& filter, int width,
                            float* levels, float* out);
  void (*opencv_filter_column)(const float* const* rows, const OpencvFilter& filter, int width,
                               uint8_t* out);
};

// What a warp sees around its source: the source again, or pixels of one color.
struct OpencvAround {
  PaddingMode mode;
  int32_t fill;
};

// How OpenCV counts the values of a row.
struct OpencvValues {
  int channels;     // 1 or 3
  bool blue_first;  // else red
};

// A symmetric kernel of an odd size.
struct OpencvFilter {
  const float* weights;
  int size;
  OpencvValues values;
};

// One row of a warp of OpenCV 5: m gives places in the source, in rows of three.
struct OpencvRow {
  float m[9];
  float y;
  bool perspective, linear;
};

// One row of torch's grid_sample of an affine grid.
struct GridRow {
  float theta[2][3];  // x and y of the source as shares of its half edges
  float half[2];      // of the source's width and height
  float first;        // the first column and this row, from the middle of the output
  float y;
  const float* fill;  // red, green, blue outside of the source; nullptr: black
  bool v2;            // of torchvision's API
  bool fused;         // the grid's matrix product rounds once where it adds a product
};

// What a Gaussian blur needs for one of its rows. Rows of floats have 4 for each pixel.
struct GaussianRow {
  const float* const* padded;     // [size_y] the rows that it covers, with size_x - 1 more pixels
  const float* const* convolved;  // [size_y] the same, along the row, with kernel_x
  const float* kernel_y;          // nearly symmetric
  const float* products;          // kernel_y[i] * kernel_x[j], row after row
  int size_x, size_y;             // odd
  int skipped;                    // leading and trailing taps of kernel_y that count as zero
  float tolerance;                // how far from the exact chain a separable sum may be, at most
};

const Loops& active_loops();

extern const Loops kScalarLoops;
#if defined(__x86_64__)
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;
#endif

}  // namespace headrace::ops
