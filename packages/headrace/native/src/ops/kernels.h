// The arithmetic of torchvision's augmentations, bit for bit: what Pillow's C code computes on
// images, and torch on uint8 tensors. Pixels are RGBX. The fourth byte of a pixel is undefined
// before and after. No function allocates, except through the buffers that a class below keeps from
// image to image.
#pragma once

#include <cstdint>

#include "../geometry.h"
#include "../image.h"
#include "../resize/resize.h"
#include "../status.h"

namespace headrace::ops {

struct OpencvFilter;

// --- Colour, in place (colour.cpp) -------------------------------------------------------------

// ImageEnhance.Brightness, Contrast and Color. A factor of 1 leaves the image as it is.
void adjust_brightness(const ImageView& image, double factor);
void adjust_contrast(const ImageView& image, double factor);
void adjust_saturation(const ImageView& image, double factor);

// torchvision's adjust_hue: to HSV, hue + uint8(factor * 255) modulo 256, back to RGB. The way
// through HSV changes pixels even where the factor is 0. factor: [-0.5, 0.5].
void adjust_hue(const ImageView& image, double factor);

// ITU-R 601 luma, as convert("L"), in all three channels.
void grayscale(const ImageView& image);

// Channel c of the result is channel order[c] of the image.
void permute_channels(const ImageView& image, const int order[3]);

// ImageEnhance.Sharpness from `source` to `out` of the same size.
void adjust_sharpness(const ImageView& source, double factor, const ImageView& out);

// Adjustments in one arithmetic. Brightness is the same in both.
struct ColourArithmetic {
  // kUnsupported: as LevelTable::append_torch_contrast.
  Code (*contrast)(const ImageView& image, double factor);
  void (*saturation)(const ImageView& image, double factor);
  void (*hue)(const ImageView& image, double factor);  // [-0.5, 0.5]
};
extern const ColourArithmetic kPillowColour;
extern const ColourArithmetic kTorchColour;

// From `first` towards `second`, which becomes the result, as Image.blend. factor: 0 to 1.
void blend(const ImageView& first, double factor, const ImageView& second);

// --- Look-ups (levels.cpp) ---------------------------------------------------------------------

// A function of each channel's level. Consecutive look-ups are appended to one table and applied
// once.
struct LevelTable {
  uint8_t level[3][256];

  LevelTable();  // the identity
  void append_invert();
  void append_posterize(int bits);  // 0 to 8
  void append_solarize(double threshold);
  void append_solarize_add(int amount, int threshold);  // to levels below the threshold
  void append_brightness(double factor);
  // Of an image whose histogram *before* this table was `counts`.
  void append_autocontrast(const int64_t counts[3][256]);
  void append_equalize(const int64_t counts[3][256]);
  // torch's, of uint8 tensors, in torchvision's v1 or v2; `image` is what the table makes of it.
  // kUnsupported: its mean, which depends on the order in which torch adds, may change a level.
  void append_torch_autocontrast(const int64_t counts[3][256], bool v2);
  Code append_torch_contrast(const ImageView& image, double factor, bool v2);
};

void count_levels(const ImageView& image, int64_t counts[3][256]);
void look_up(const ImageView& image, const LevelTable& table);

// --- Warps, from `source` to `out` (warp.cpp) --------------------------------------------------

// Where pixel (x, y) of the result is taken from: with u = x + 0.5 and v = y + 0.5 at
// (m0 u + m1 v + m2, m3 u + m4 v + m5), both divided by (m6 u + m7 v + 1) where it is a
// perspective.
struct Map {
  double m[8] = {1, 0, 0, 0, 1, 0, 0, 0};
  bool perspective = false;
};

// Image.transform(AFFINE or PERSPECTIVE) with fillcolor. filter: kNearest, kBilinear, kBicubic.
void warp(const ImageView& source, const Map& map, Filter filter, const uint8_t fill[3],
          const ImageView& out);

// Quarter turns counter-clockwise, as Image.transpose(ROTATE_90, ROTATE_180, ROTATE_270) for 1, 2
// and 3; 0 copies. `out` has the turned size.
void turn(const ImageView& source, int quarters, const ImageView& out);

// What Image.rotate does to an image of one size.
struct Rotation {
  int width = 0;  // of the result
  int height = 0;
  int quarters = -1;  // >= 0: turn() by so many; -1: warp() by `map`
  Map map;
};

// degrees: counter-clockwise. center: x, y in pixels; nullptr: the image's.
Rotation plan_rotation(int width, int height, double degrees, bool expand, const double* center);
void rotate(const ImageView& source, const Rotation& rotation, Filter filter, const uint8_t fill[3],
            const ImageView& out);

// torchvision's functional.affine, or that of its v2. degrees: clockwise; translate: x, y in
// pixels; shear: x, y in degrees. center as above.
Map plan_affine(int width, int height, double degrees, const double translate[2], double scale,
                const double shear[2], const double* center, bool v2);

// --- torch's arithmetic (torch_pixels.cpp) -----------------------------------------------------
//
// What torchvision's functional, or that of its v2, makes of uint8 tensors [3, height, width].

void torch_grayscale(const ImageView& image);  // v2's
void torch_saturation(const ImageView& image, double factor, bool v2);
void torch_sharpness(const ImageView& source, double factor, bool v2, const ImageView& out);

// map: plan_affine's for a center that is counted from the image's middle. filter: kNearest or
// kBilinear. fill: nullptr for none, which torch tells from black. fused: whether the matrix
// product that gives the grid is made of fused multiply-adds, which depends on the machine.
struct TorchWarp {
  Map map;
  Filter filter;
  const float* fill;
  bool v2;
  bool fused;
};
void torch_affine(const ImageView& source, const TorchWarp& warp, const ImageView& out);

// The sum of `count` images of the size of `out`, each with its weight, truncated.
constexpr int kMostMixed = 32;
void mix(const ImageView* images, const float* weights, int count, const ImageView& out);

// --- OpenCV's arithmetic (opencv_pixels.cpp) ---------------------------------------------------

void opencv_grayscale(const ImageView& image);
double opencv_mean(const ImageView& image);  // of its luma
// addWeighted of the image and its luma, or NumKong's blend. factor: of the image, at most 1e6.
void opencv_saturation(const ImageView& image, double factor, bool numkong);
void opencv_to_hsv(const ImageView& image);
// vector: how many pixels of a row OpenCV computes together, which depends on the processor. It
// rounds those that are left at the end otherwise.
void opencv_from_hsv(const ImageView& image, int vector);

// warpAffine and warpPerspective. m: what gives the place in the source, in rows of three; the last
// row is used of a perspective only. mode: what is seen outside, `fill` where it is constant.
// version: OpenCV's, 4 or 5.
struct OpencvWarp {
  double m[9];
  bool perspective;
  bool linear;  // rather than nearest
  PaddingMode mode;
  uint8_t fill[3];
  int version;
};
void opencv_warp(const ImageView& source, const OpencvWarp& warp, const ImageView& out);

// --- Blurs, from `source` to `out` of the same size (blur.cpp) ---------------------------------

// Keeps rows from image to image; one instance serves one thread.
class Blur {
 public:
  // torchvision's functional.gaussian_blur of a PIL image: torch's depthwise convolution with the
  // product of two one-dimensional kernels of odd sizes, whose result is a chain of float32 fused
  // multiply-adds over the kernel in row-major order, rounded to even. Edges are reflected.
  // kUnsupported: a kernel reaches further than the image, for which torch raises.
  Code gaussian(const ImageView& source, const float* kernel_x, int size_x, const float* kernel_y,
                int size_y, const ImageView& out);

  // ImageFilter.GaussianBlur with these standard deviations: box blurs, three times along each
  // axis.
  Code pillow_gaussian(const ImageView& source, double radius_x, double radius_y,
                       const ImageView& out);

  // OpenCV's GaussianBlur of uint8 with symmetric weights of 8 bits, which add up to 257 at most.
  // Edges are reflected.
  Code opencv(const ImageView& source, const uint16_t* weights_x, int size_x,
              const uint16_t* weights_y, int size_y, const ImageView& out);
  // The same in float32: OpenCV's sepFilter2D.
  Code opencv_filter(const ImageView& source, const OpencvFilter& x, const OpencvFilter& y,
                     const ImageView& out);

 private:
  // row(padded, scratch, kept) and column(rows, scratch, out). The scratch, of 4 bytes for each of
  // the padded values, has room for one vector more.
  template <typename Value, typename Scratch, typename Row, typename Column>
  Code filter(const ImageView& source, int size_x, int size_y, const Row& row, const Column& column,
              const ImageView& out);
  struct Rings;
  bool reserve(const ImageView& source, int size_x, int size_y, Rings* rings);
  Code repeated_box(const ImageView& source, float radius_x, float radius_y, int passes,
                    const ImageView& out);

  Buffer rows_;
  Image turned_[2];
};

}  // namespace headrace::ops
