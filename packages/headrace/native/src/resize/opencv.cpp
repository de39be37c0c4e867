#include "opencv.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace headrace {
namespace {

// --- where outputs are taken from ---

struct Axis {
  int in, out;
  bool is_area;  // areas that grow are interpolated, in another place than `linear`

  // The source's pixels per output, as OpenCV rounds it.
  double scale() const { return 1.0 / inverse(); }
  double inverse() const { return static_cast<double>(out) / in; }
};

// An output is the sum of source pixels `first` and `first` + 1, the latter with `weight`.
struct Pair {
  int first;
  float weight;
};

Pair pair_of(const Axis& axis, int output) {
  if (axis.is_area) {
    const int first = static_cast<int>(std::floor(output * axis.scale()));
    const auto weight = static_cast<float>((output + 1) - (first + 1) * axis.inverse());
    return {first, weight <= 0 ? 0.0f : weight - std::floor(weight)};
  }
  const auto place = static_cast<float>((output + 0.5) * axis.scale() - 0.5);
  const float first = std::floor(place);
  return {static_cast<int>(first), place - first};
}

// The source pixels under an output that is as wide as several of them, and their weights. All but
// the first and the last have the same.
struct Cell {
  int first, end;
  float head, body, tail;

  float weight(int i) const { return i == first ? head : i == end - 1 ? tail : body; }
};

Cell cell_of(const Axis& axis, int output) {
  constexpr double kLeast = 1e-3;
  const double scale = axis.scale(), begin = output * scale, end = begin + scale;
  const double width = std::min(scale, axis.in - begin);
  const int last = std::min(static_cast<int>(std::floor(end)), axis.in - 1);
  const int first = std::min(static_cast<int>(std::ceil(begin)), last);
  const auto body = static_cast<float>(1.0 / width);
  Cell cell = {first, last, body, body, body};
  if (first - begin > kLeast) {
    --cell.first;
    cell.head = static_cast<float>((first - begin) / width);
  }
  if (end - last > kLeast) {
    ++cell.end;
    const auto tail = static_cast<float>(std::min(std::min(end - last, 1.0), width) / width);
    (cell.end - 1 == cell.first ? cell.head : cell.tail) = tail;
  }
  return cell;
}

enum class Method { kNearest, kLinear, kArea, kWhole };

// `whole`: the number of source pixels under an output, where it is the same for all of them.
int whole_ratio(const Axis& axis) {
  const double scale = axis.scale();
  const auto rounded = static_cast<int>(std::nearbyint(scale));
  return std::fabs(scale - rounded) < 2.220446049250313e-16 ? rounded : 0;
}

Method method_of(const ResizeJob& job) {
  if (job.filter == Filter::kOpencvNearest) return Method::kNearest;
  const Axis x = {job.in_w, job.out_w, false}, y = {job.in_h, job.out_h, false};
  const int whole_x = whole_ratio(x), whole_y = whole_ratio(y);
  const bool area = job.filter == Filter::kOpencvArea && x.scale() >= 1 && y.scale() >= 1;
  if (whole_x >= 1 && whole_y >= 1 && (area || (whole_x == 2 && whole_y == 2)))
    return Method::kWhole;
  return area ? Method::kArea : Method::kLinear;
}

int nearest_of(const Axis& axis, int output) {
  return std::min(static_cast<int>(std::floor(output * axis.scale())), axis.in - 1);
}

// The first source pixel that an output needs, and that after the last one.
struct Reach {
  int first, end;
};

Reach reach_of(Method method, const Axis& axis, int output) {
  if (method == Method::kNearest) {
    const int at = nearest_of(axis, output);
    return {at, at + 1};
  }
  if (method == Method::kWhole) {
    const int ratio = whole_ratio(axis);
    return {output * ratio, output * ratio + ratio};
  }
  if (method == Method::kArea) {
    const Cell cell = cell_of(axis, output);
    return {cell.first, cell.end};
  }
  const int first = pair_of(axis, output).first, last = axis.in - 1;
  return {std::clamp(first, 0, last), std::clamp(first + 1, 0, last) + 1};
}

// Both ends of what a window of outputs needs, which only grow from output to output.
Reach reach_of(Method method, const Axis& axis, int first, int count) {
  return {reach_of(method, axis, first).first, reach_of(method, axis, first + count - 1).end};
}

Axis x_axis(const ResizeJob& job) {
  return {job.in_w, job.out_w, job.filter == Filter::kOpencvArea};
}
Axis y_axis(const ResizeJob& job) {
  return {job.in_h, job.out_h, job.filter == Filter::kOpencvArea};
}

// --- rows ---

struct LinearTap {
  int32_t offset;  // in bytes
  int16_t weights[2];
};

int16_t fixed(float weight) { return static_cast<int16_t>(std::nearbyint(weight * 2048.0f)); }

// Sums of 11 bits more than a level, of which the lowest 4 don't count.
void linear_row(const uint8_t* source, const LinearTap* taps, int width, int16_t* out) {
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  for (int x = 0; x < width; ++x, out += 4) {
    const auto* from = reinterpret_cast<const __m128i*>(source + taps[x].offset);
    const __m128i two = _mm_loadl_epi64(from);
    const __m128i pairs = _mm_unpacklo_epi8(_mm_unpacklo_epi8(two, _mm_srli_si128(two, 4)), zero);
    int32_t both;
    std::memcpy(&both, taps[x].weights, 4);
    const __m128i sums = _mm_srai_epi32(_mm_madd_epi16(pairs, _mm_set1_epi32(both)), 4);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packs_epi32(sums, sums));
  }
#else
  for (int x = 0; x < width; ++x, out += 4) {
    const uint8_t* from = source + taps[x].offset;
    for (int c = 0; c < 4; ++c)
      out[c] = static_cast<int16_t>(
          (from[c] * taps[x].weights[0] + from[c + 4] * taps[x].weights[1]) >> 4);
  }
#endif
}

void blend_linear_rows(const int16_t* upper, const int16_t* lower, const int16_t weights[2],
                       int width, uint8_t* out) {
  const int count = 4 * width;
  int i = 0;
#if defined(__SSE2__)
  const __m128i a = _mm_set1_epi16(weights[0]), b = _mm_set1_epi16(weights[1]);
  const __m128i two = _mm_set1_epi16(2);
  const auto blended = [=](int at) {
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(upper + at));
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lower + at));
    const __m128i sum = _mm_add_epi16(_mm_mulhi_epi16(high, a), _mm_mulhi_epi16(low, b));
    return _mm_srai_epi16(_mm_add_epi16(sum, two), 2);
  };
  for (; i + 16 <= count; i += 16)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_packus_epi16(blended(i), blended(i + 8)));
#endif
  for (; i < count; ++i) {
    const int sum = ((upper[i] * weights[0]) >> 16) + ((lower[i] * weights[1]) >> 16);
    out[i] = static_cast<uint8_t>(std::clamp((sum + 2) >> 2, 0, 255));
  }
}

// Pixels of a row as floats, four for each, summed in the order of the source.
void area_row(const uint8_t* source, const Cell* cells, int width, float* out) {
  for (int x = 0; x < width; ++x, out += 4) {
    const Cell& cell = cells[x];
    float sums[4] = {};
    for (int i = cell.first; i < cell.end; ++i) {
      const float weight = cell.weight(i);
      const uint8_t* from = source + size_t{4} * static_cast<size_t>(i);
      for (int c = 0; c < 4; ++c) sums[c] += static_cast<float>(from[c]) * weight;
    }
    std::memcpy(out, sums, sizeof sums);
  }
}

uint8_t to_level(float value) {
  return static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0f, 255.0f));
}

// A resize, with what its rows have in common.
struct Work {
  const ResizeJob& job;
  const Rect& footprint;
  const ConstImageView& source;
  const ImageView& out;

  int column(int x) const {  // of the result, that is seen in column x
    return job.window.x + (job.flip_x ? job.window.w - 1 - x : x);
  }
  int line(int y) const { return job.window.y + (job.flip_y ? job.window.h - 1 - y : y); }
  const uint8_t* row(int y) const { return source.row(y - footprint.y); }
};

template <typename T>
T* reserve(Buffer* buffer, int count) {
  return reinterpret_cast<T*>(buffer->reserve(static_cast<size_t>(count) * sizeof(T)));
}

Code nearest(const Work& work, Buffer* buffer) {
  const int width = work.job.window.w;
  auto* columns = reserve<int32_t>(buffer, width);
  if (columns == nullptr) return Code::kOutOfMemory;
  const Axis x = x_axis(work.job), y = y_axis(work.job);
  for (int i = 0; i < width; ++i) columns[i] = nearest_of(x, work.column(i)) - work.footprint.x;
  for (int i = 0; i < work.job.window.h; ++i) {
    const uint8_t* from = work.row(nearest_of(y, work.line(i)));
    uint8_t* to = work.out.row(i);
    for (int k = 0; k < width; ++k)
      std::memcpy(to + 4 * k, from + size_t{4} * static_cast<size_t>(columns[k]), 4);
  }
  return Code::kOk;
}

Code linear(const Work& work, Buffer* tap_buffer, Buffer* row_buffer) {
  const int width = work.job.window.w;
  auto* taps = reserve<LinearTap>(tap_buffer, width);
  auto* kept = reserve<int16_t>(row_buffer, 8 * width);
  if (taps == nullptr || kept == nullptr) return Code::kOutOfMemory;
  const Axis x = x_axis(work.job), y = y_axis(work.job);
  for (int i = 0; i < width; ++i) {
    Pair pair = pair_of(x, work.column(i));
    if (pair.first < 0) pair = {0, 0};
    if (pair.first >= x.in - 1) pair = {x.in - 1, 0};
    taps[i] = {4 * (pair.first - work.footprint.x), {fixed(1 - pair.weight), fixed(pair.weight)}};
  }
  int held[2] = {-1, -1};
  const auto row = [&](int at, int other) {  // which of the two isn't to be replaced
    for (int i = 0; i < 2; ++i)
      if (held[i] == at) return i;
    const int i = other == 0 ? 1 : 0;
    held[i] = at;
    linear_row(work.row(at), taps, width, kept + i * 4 * width);
    return i;
  };
  for (int i = 0; i < work.job.window.h; ++i) {
    const Pair pair = pair_of(y, work.line(i));
    const int16_t weights[2] = {fixed(1 - pair.weight), fixed(pair.weight)};
    const int first = std::clamp(pair.first, 0, y.in - 1);
    const int second = std::clamp(pair.first + 1, 0, y.in - 1);
    const int upper = row(first, held[0] == second ? 0 : 1), lower = row(second, upper);
    blend_linear_rows(kept + upper * 4 * width, kept + lower * 4 * width, weights, width,
                      work.out.row(i));
  }
  return Code::kOk;
}

Code area(const Work& work, Buffer* tap_buffer, Buffer* row_buffer) {
  const int width = work.job.window.w, count = 4 * width;
  auto* cells = reserve<Cell>(tap_buffer, width);
  auto* narrow = reserve<float>(row_buffer, 2 * count);
  if (cells == nullptr || narrow == nullptr) return Code::kOutOfMemory;
  float* const sums = narrow + count;
  const Axis x = x_axis(work.job), y = y_axis(work.job);
  for (int i = 0; i < width; ++i) {
    cells[i] = cell_of(x, work.column(i));
    cells[i].first -= work.footprint.x;
    cells[i].end -= work.footprint.x;
  }
  int held = -1;
  for (int i = 0; i < work.job.window.h; ++i) {
    const Cell cell = cell_of(y, work.line(i));
    for (int at = cell.first; at < cell.end; ++at) {
      if (held != at) area_row(work.row(at), cells, width, narrow);
      held = at;
      const float weight = cell.weight(at);
      if (at == cell.first) {
        for (int k = 0; k < count; ++k) sums[k] = narrow[k] * weight;
      } else {
        for (int k = 0; k < count; ++k) sums[k] += narrow[k] * weight;
      }
    }
    uint8_t* to = work.out.row(i);
    for (int k = 0; k < count; ++k) to[k] = to_level(sums[k]);
  }
  return Code::kOk;
}

// Of whole numbers of pixels along both axes.
Code whole(const Work& work) {
  const int ratio_x = whole_ratio(x_axis(work.job)), ratio_y = whole_ratio(y_axis(work.job));
  const bool four = ratio_x == 2 && ratio_y == 2;  // whose halves OpenCV rounds up
  const float part = 1.0f / static_cast<float>(ratio_x * ratio_y);
  for (int i = 0; i < work.job.window.h; ++i) {
    uint8_t* to = work.out.row(i);
    for (int k = 0; k < work.job.window.w; ++k, to += 4) {
      int sums[4] = {};
      const int left = work.column(k) * ratio_x - work.footprint.x;
      for (int dy = 0; dy < ratio_y; ++dy) {
        const uint8_t* from = work.row(work.line(i) * ratio_y + dy) + size_t{4} * left;
        for (int dx = 0; dx < ratio_x; ++dx, from += 4)
          for (int c = 0; c < 4; ++c) sums[c] += from[c];
      }
      for (int c = 0; c < 4; ++c)
        to[c] = four ? static_cast<uint8_t>((sums[c] + 2) >> 2)
                     : to_level(static_cast<float>(sums[c]) * part);
    }
  }
  return Code::kOk;
}

}  // namespace

Rect opencv_footprint(const ResizeJob& job) {
  const Method method = method_of(job);
  const Reach x = reach_of(method, x_axis(job), job.window.x, job.window.w);
  const Reach y = reach_of(method, y_axis(job), job.window.y, job.window.h);
  return {x.first, y.first, x.end - x.first, y.end - y.first};
}

Code OpencvResizer::run(const ResizeJob& job, const Rect& footprint, const ConstImageView& source,
                        const ImageView& out) {
  const Work work = {job, footprint, source, out};
  switch (method_of(job)) {
    case Method::kNearest:
      return nearest(work, &taps_);
    case Method::kWhole:
      return whole(work);
    case Method::kArea:
      return area(work, &taps_, &rows_);
    default:
      return linear(work, &taps_, &rows_);
  }
}

}  // namespace headrace
