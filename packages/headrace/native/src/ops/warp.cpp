// Warps: the matrices of Image.rotate and torchvision's affine, and Image.transform itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels.h"
#include "loops.h"

namespace headrace::ops {
namespace {

constexpr double kPi = 3.141592653589793;  // Python's math.pi

double radians(double degrees) { return degrees * (kPi / 180.0); }

// Python's round(value, 15).
double rounded_to_15_digits(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.15f", value);
  return std::strtod(text, nullptr);
}

// Python's degrees % 360.0.
double wrapped(double degrees) {
  const double rest = std::fmod(degrees, 360.0);
  if (rest == 0.0) return 0.0;
  return rest < 0.0 ? rest + 360.0 : rest;
}

struct Point {
  double x, y;
};

Point transformed(const double* m, double x, double y) {
  return {m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]};
}

// The size of the box around a rotated image; moves the map's origin to the box's corner.
void expand_to(int width, int height, Map* map, Rotation* rotation) {
  const Point corners[4] = {transformed(map->m, 0, 0), transformed(map->m, width, 0),
                            transformed(map->m, width, height), transformed(map->m, 0, height)};
  Point low = corners[0], high = corners[0];
  for (const Point& corner : corners) {
    low = {std::min(low.x, corner.x), std::min(low.y, corner.y)};
    high = {std::max(high.x, corner.x), std::max(high.y, corner.y)};
  }
  rotation->width = static_cast<int>(std::ceil(high.x) - std::floor(low.x));
  rotation->height = static_cast<int>(std::ceil(high.y) - std::floor(low.y));
  const Point origin =
      transformed(map->m, -(rotation->width - width) / 2.0, -(rotation->height - height) / 2.0);
  map->m[2] = origin.x;
  map->m[5] = origin.y;
}

// A part of an output row: pixels [begin, end).
struct Span {
  int begin, end;
};

// Where 0 <= start + i * step < limit, for i in `span`.
Span inside_fixed(int64_t start, int64_t step, int64_t limit, Span span) {
  if (step < 0) {  // mirrored: the same places counted from the other bound
    start = limit - 1 - start;
    step = -step;
  }
  if (step == 0) return start >= 0 && start < limit ? span : Span{0, 0};
  const int64_t first = start >= 0 ? 0 : (-start + step - 1) / step;
  const int64_t end = start >= limit ? 0 : (limit - start + step - 1) / step;
  return {static_cast<int>(std::max<int64_t>(span.begin, std::min<int64_t>(first, span.end))),
          static_cast<int>(std::min<int64_t>(span.end, end))};
}

int64_t to_fixed(double value) { return static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)); }

// Pillow's fixed-point path takes matrices that keep the corners within 16 bits.
bool fits_fixed(const double* m, int width, int height) {
  for (const int x : {0, width}) {
    for (const int y : {0, height}) {
      if (!(std::fabs(x * m[0] + y * m[1] + m[2]) < 32768.0)) return false;
      if (!(std::fabs(x * m[3] + y * m[4] + m[5]) < 32768.0)) return false;
    }
  }
  return true;
}

void warp_fixed(const ImageView& source, const double* m, const ImageView& out) {
  const int64_t dx = to_fixed(m[0]), dy = to_fixed(m[3]);
  int64_t x = to_fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  int64_t y = to_fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  const int64_t limit_x = int64_t{source.width} << 16, limit_y = int64_t{source.height} << 16;
  for (int row = 0; row < out.height; ++row, x += to_fixed(m[1]), y += to_fixed(m[4])) {
    Span span = inside_fixed(x, dx, limit_x, {0, out.width});
    span = inside_fixed(y, dy, limit_y, span);
    if (span.begin >= span.end) continue;
    auto* to = reinterpret_cast<uint32_t*>(out.row(row)) + span.begin;
    active_loops().gather(source, static_cast<int32_t>(x + span.begin * dx),
                          static_cast<int32_t>(y + span.begin * dy), static_cast<int32_t>(dx),
                          static_cast<int32_t>(dy), span.end - span.begin, to);
  }
}

// Places of one part of a row.
constexpr int kPlaces = 256;
struct Places {
  double x[kPlaces];
  double y[kPlaces];
};

// Nearest neighbours, coordinates summed up from pixel to pixel: Pillow's way for pure scalings
// and for what does not fit its fixed point.
void warp_summed(const ImageView& source, const double* m, const ImageView& out) {
  const bool scaling = m[1] == 0 && m[3] == 0;
  double row_x = scaling ? m[2] + m[0] * 0.5 : m[2] + m[1] * 0.5 + m[0] * 0.5;
  double row_y = scaling ? m[5] + m[4] * 0.5 : m[5] + m[4] * 0.5 + m[3] * 0.5;
  for (int row = 0; row < out.height; ++row, row_x += m[1], row_y += m[4]) {
    double x = row_x, y = row_y;
    Places places;
    for (int begin = 0; begin < out.width; begin += kPlaces) {
      const int count = std::min(kPlaces, out.width - begin);
      for (int i = 0; i < count; ++i, x += m[0], y += m[3]) {
        places.x[i] = x;
        places.y[i] = y;
      }
      active_loops().nearest(source, places.x, places.y, count,
                             reinterpret_cast<uint32_t*>(out.row(row)) + begin);
    }
  }
}

// Any map and filter, every place computed from its own pixel.
void warp_placed(const ImageView& source, const Map& map, Loops::Sample sample,
                 const ImageView& out) {
  const double* m = map.m;
  for (int row = 0; row < out.height; ++row) {
    const double v = row + 0.5;
    Places places;
    for (int begin = 0; begin < out.width; begin += kPlaces) {
      const int count = std::min(kPlaces, out.width - begin);
      for (int i = 0; i < count; ++i) {
        const double u = begin + i + 0.5;
        places.x[i] = m[0] * u + m[1] * v + m[2];
        places.y[i] = m[3] * u + m[4] * v + m[5];
      }
      if (map.perspective) {
        for (int i = 0; i < count; ++i) {
          const double u = begin + i + 0.5;
          const double depth = m[6] * u + m[7] * v + 1;
          places.x[i] /= depth;
          places.y[i] /= depth;
        }
      }
      sample(source, places.x, places.y, count, reinterpret_cast<uint32_t*>(out.row(row)) + begin);
    }
  }
}

void fill_with(const ImageView& image, const uint8_t fill[3]) {
  uint32_t pixel = 0;
  std::memcpy(&pixel, fill, 3);
  for (int y = 0; y < image.height; ++y)
    std::fill_n(reinterpret_cast<uint32_t*>(image.row(y)), image.width, pixel);
}

}  // namespace

void warp(const ImageView& source, const Map& map, Filter filter, const uint8_t fill[3],
          const ImageView& out) {
  fill_with(out, fill);
  if (filter == Filter::kBilinear) return warp_placed(source, map, active_loops().bilinear, out);
  if (filter == Filter::kBicubic) return warp_placed(source, map, active_loops().bicubic, out);
  if (map.perspective) return warp_placed(source, map, active_loops().nearest, out);
  const bool scaling = map.m[1] == 0 && map.m[3] == 0;
  if (!scaling && fits_fixed(map.m, out.width, out.height)) return warp_fixed(source, map.m, out);
  warp_summed(source, map.m, out);
}

void turn(const ImageView& source, int quarters, const ImageView& out) {
  for (int y = 0; y < out.height; ++y) {
    auto* to = reinterpret_cast<uint32_t*>(out.row(y));
    if (quarters == 0) {
      std::memcpy(to, source.row(y), size_t{4} * out.width);
    } else if (quarters == 2) {
      const auto* from = reinterpret_cast<const uint32_t*>(source.row(out.height - 1 - y));
      std::reverse_copy(from, from + out.width, to);
    } else {
      const int column = quarters == 1 ? source.width - 1 - y : y;
      for (int x = 0; x < out.width; ++x) {
        const int row = quarters == 1 ? x : source.height - 1 - x;
        to[x] = reinterpret_cast<const uint32_t*>(source.row(row))[column];
      }
    }
  }
}

Rotation plan_rotation(int width, int height, double degrees, bool expand, const double* center) {
  Rotation rotation;
  rotation.width = width;
  rotation.height = height;
  const double angle = wrapped(degrees);
  if (center == nullptr) {
    if (angle == 0) rotation.quarters = 0;
    if (angle == 180) rotation.quarters = 2;
    if ((angle == 90 || angle == 270) && (expand || width == height)) {
      rotation.quarters = angle == 90 ? 1 : 3;
      std::swap(rotation.width, rotation.height);
    }
    if (rotation.quarters >= 0) return rotation;
  }
  const double x = center == nullptr ? width / 2.0 : center[0];
  const double y = center == nullptr ? height / 2.0 : center[1];
  const double turned = -radians(angle);
  double* m = rotation.map.m;
  m[0] = m[4] = rounded_to_15_digits(std::cos(turned));
  m[1] = rounded_to_15_digits(std::sin(turned));
  m[3] = rounded_to_15_digits(-std::sin(turned));
  m[2] = m[5] = 0.0;
  const Point origin = transformed(m, -x, -y);
  m[2] = origin.x + x;
  m[5] = origin.y + y;
  if (expand) expand_to(width, height, &rotation.map, &rotation);
  return rotation;
}

void rotate(const ImageView& source, const Rotation& rotation, Filter filter, const uint8_t fill[3],
            const ImageView& out) {
  if (rotation.quarters >= 0) return turn(source, rotation.quarters, out);
  warp(source, rotation.map, filter, fill, out);
}

Map plan_affine(int width, int height, double degrees, const double translate[2], double scale,
                const double shear[2], const double* center, bool v2) {
  const double turned = radians(degrees), shear_x = radians(shear[0]), shear_y = radians(shear[1]);
  const double center_x = center == nullptr ? width * 0.5 : center[0];
  const double center_y = center == nullptr ? height * 0.5 : center[1];
  const double cosine = std::cos(turned - shear_y), sine = std::sin(turned - shear_y);
  const double a = cosine / std::cos(shear_y);
  const double c = sine / std::cos(shear_y);
  // The two namespaces round in different places.
  const double slope = std::tan(shear_x);
  const double b =
      v2 ? -(a * slope + std::sin(turned)) : -cosine * slope / std::cos(shear_y) - std::sin(turned);
  const double d =
      v2 ? std::cos(turned) - c * slope : -sine * slope / std::cos(shear_y) + std::cos(turned);
  Map map;
  double* m = map.m;
  m[0] = d / scale;
  m[1] = -b / scale;
  m[3] = -c / scale;
  m[4] = a / scale;
  const double x = center_x + translate[0], y = center_y + translate[1];
  if (v2) {
    m[2] = center_x - m[0] * x - m[1] * y;
    m[5] = center_y - m[3] * x - m[4] * y;
  } else {
    m[2] = m[0] * -x + m[1] * -y + center_x;
    m[5] = m[3] * -x + m[4] * -y + center_y;
  }
  return map;
}

}  // namespace headrace::ops
