// Pillow's coefficients. Every expression keeps Pillow's operations and their order: the last bit
// of a double decides how a weight is rounded. So this file must never be compiled with fused
// multiply-add or -ffast-math.
#include "coefficients.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr double kPi = 3.14159265358979323846;

struct Box {
  static constexpr double kSupport = 0.5;
  double operator()(double x) const { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }
};

struct Bilinear {
  static constexpr double kSupport = 1.0;
  double operator()(double x) const {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
  }
};

struct Hamming {
  static constexpr double kSupport = 1.0;
  double operator()(double x) const {
    x = std::fabs(x);
    if (x == 0.0) return 1.0;
    if (x >= 1.0) return 0.0;
    x *= kPi;
    return std::sin(x) / x * (0.54f + 0.46f * std::cos(x));  // Pillow's constants are floats
  }
};

struct Bicubic {
  static constexpr double kSupport = 2.0;
  double operator()(double x) const {
    constexpr double kA = -0.5;
    x = std::fabs(x);
    if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
    if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
    return 0.0;
  }
};

struct Lanczos {
  static constexpr double kSupport = 3.0;
  static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= kPi;
    return std::sin(x) / x;
  }
  double operator()(double x) const { return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0; }
};

double filter_support(Filter filter) {
  switch (filter) {
    case Filter::kLanczos:
    case Filter::kTorchLanczos:
      return Lanczos::kSupport;
    case Filter::kBicubic:
    case Filter::kTorchBicubic:
      return Bicubic::kSupport;
    case Filter::kBox:
      return Box::kSupport;
    case Filter::kHamming:
      return Hamming::kSupport;
    default:
      return Bilinear::kSupport;
  }
}

// The geometry that all outputs of an axis share.
struct Scale {
  explicit Scale(const AxisJob& job)
      : in(job.in),
        scale(static_cast<double>(static_cast<float>(job.in)) / job.out),
        stretch(scale < 1.0 ? 1.0 : scale),
        support(filter_support(job.filter) * stretch) {}

  double center(int output) const { return (output + 0.5) * scale; }

  Span span(double center) const {
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), in);
    return {first, end - first};
  }

  int in;
  double scale;
  double stretch;  // how much wider than in a plain interpolation the filter is
  double support;
};

// The weights of one output's taps, which add up to 1.
template <typename Kernel>
void fill_weights(const Scale& scale, double center, Span span, double* weights) {
  const Kernel kernel;
  const double inverse = 1.0 / scale.stretch;
  double sum = 0.0;
  for (int tap = 0; tap < span.count; ++tap) {
    weights[tap] = kernel((tap + span.first - center + 0.5) * inverse);
    sum += weights[tap];
  }
  if (sum == 0.0) return;  // Pillow does not divide by 0
  for (int tap = 0; tap < span.count; ++tap) weights[tap] /= sum;
}

using FillWeights = void (*)(const Scale&, double center, Span span, double* weights);

FillWeights fill_weights_of(Filter filter) {
  switch (filter) {
    case Filter::kLanczos:
    case Filter::kTorchLanczos:
      return fill_weights<Lanczos>;
    case Filter::kBicubic:
    case Filter::kTorchBicubic:
      return fill_weights<Bicubic>;
    case Filter::kBox:
      return fill_weights<Box>;
    case Filter::kHamming:
      return fill_weights<Hamming>;
    default:
      return fill_weights<Bilinear>;
  }
}

// How many bits of fraction torch gives the weights of an axis: as many as leave the largest one
// within 15 bits. `weights` is scratch for an output.
int torch_weight_bits(const AxisJob& job, double* weights) {
  const Scale scale(job);
  const FillWeights fill = fill_weights_of(job.filter);
  double largest = 0.0;
  for (int output = 0; output < job.out; ++output) {
    const double center = scale.center(output);
    const Span span = scale.span(center);
    fill(scale, center, span, weights);
    for (int tap = 0; tap < span.count; ++tap) largest = std::max(largest, weights[tap]);
  }
  int bits = 0;
  while (bits < kWeightBits && static_cast<int>(0.5 + largest * (1 << (bits + 1))) < 1 << 15)
    ++bits;
  return bits;
}

// A weight in fixed point, of `bits` bits of fraction, in units of kWeightBits: the kernels then
// give what they would for just so many bits.
int32_t to_fixed(double weight, int bits) {
  const auto rounded = static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << bits));
  return rounded * (1 << (kWeightBits - bits));
}

// The source position of each output in turn, from the first one of the window on; it may be past
// the last pixel.
class NearestPositions {
 public:
  explicit NearestPositions(const AxisJob& job)
      : job_(job),
        output_(job.window.first),
        step_(static_cast<double>(static_cast<float>(job.in)) / job.out),
        position_(step_ * 0.5) {
    // Pillow adds up positions, so only walking there gives the same rounding.
    for (int i = 0; i < job.window.first; ++i) position_ += step_;
  }

  int next() {
    const auto output = static_cast<float>(output_++);
    if (is_torchs(job_.filter)) {
      const float scale = static_cast<float>(job_.in) / static_cast<float>(job_.out);
      return std::min(static_cast<int>(output * scale), job_.in - 1);
    }
    const int position = static_cast<int>(position_);
    position_ += step_;
    return position;
  }

 private:
  const AxisJob& job_;
  int output_;
  double step_, position_;
};

Span nearest_footprint(const AxisJob& job) {
  NearestPositions positions(job);
  const int first = std::min(positions.next(), job.in - 1);
  int last = first;
  for (int i = 1; i < job.window.count; ++i) last = std::min(positions.next(), job.in - 1);
  return {first, last - first + 1};
}

}  // namespace

Span axis_footprint(const AxisJob& job) {
  if (job.in == job.out) return job.window;
  if (is_nearest(job.filter)) return nearest_footprint(job);
  const Scale scale(job);
  const Span low = scale.span(scale.center(job.window.first));
  const Span high = scale.span(scale.center(job.window.first + job.window.count - 1));
  return {low.first, high.first + high.count - low.first};
}

void nearest_positions(const AxisJob& job, int origin, int32_t* positions) {
  NearestPositions sources(job);
  for (int i = 0; i < job.window.count; ++i) {
    const int source = sources.next();
    positions[job.flip ? job.window.count - 1 - i : i] = source < job.in ? source - origin : -1;
  }
}

// Fills first, count and weights, without the zeros at an output's ends; returns the largest count.
int Axis::compute_weights(Span footprint, const Arrays& arrays) const {
  const Scale scale(job_);
  const int bits = is_torchs(job_.filter) ? torch_weight_bits(job_, arrays.unrounded) : kWeightBits;
  const FillWeights fill = fill_weights_of(job_.filter);
  const int outputs = job_.window.count;
  int longest = 1;
  for (int i = 0; i < outputs; ++i) {
    const double center = scale.center(job_.window.first + i);
    const Span span = scale.span(center);
    fill(scale, center, span, arrays.unrounded);
    const int slot = job_.flip ? outputs - 1 - i : i;
    int32_t* weights = arrays.weights + static_cast<size_t>(slot) * arrays.stride;
    for (int tap = 0; tap < span.count; ++tap) weights[tap] = to_fixed(arrays.unrounded[tap], bits);
    int begin = 0, end = span.count;
    while (end > 1 && weights[end - 1] == 0) --end;
    while (begin < end - 1 && weights[begin] == 0) ++begin;
    if (begin > 0) std::copy(weights + begin, weights + end, weights);
    arrays.first[slot] = span.first + begin - footprint.first;
    arrays.count[slot] = end - begin;
    longest = std::max(longest, end - begin);
  }
  return longest;
}

// Whole groups must not reach more than three pixels past the extent: outputs near its end start
// earlier, with zeros.
void Axis::align_groups(int extent, int groups, const Arrays& arrays, int32_t* grouped) const {
  const int taps = groups * kTapGroup;
  const int latest = std::max(extent - taps, 0);
  const int32_t* weights = arrays.weights;
  for (int i = 0; i < job_.window.count; ++i, weights += arrays.stride, grouped += taps) {
    const int zeros = std::max(arrays.first[i] - latest, 0);
    arrays.first[i] -= zeros;
    std::fill(grouped, grouped + zeros, 0);
    std::copy(weights, weights + arrays.count[i], grouped + zeros);
    arrays.count[i] += zeros;
    std::fill(grouped + arrays.count[i], grouped + taps, 0);
  }
}

namespace {

template <typename T>
T* reserve(Buffer* buffer, size_t count) {
  return reinterpret_cast<T*>(buffer->reserve(count * sizeof(T)));
}

}  // namespace

Code Axis::prepare(const AxisJob& job, const ResizeKernels& kernels) {
  kernels_ = nullptr;
  job_ = job;
  const Span footprint = axis_footprint(job);
  const auto outputs = static_cast<size_t>(job.window.count);
  const double reach = std::ceil(Scale(job).support) * 2 + 1;
  Arrays arrays;
  arrays.stride = reach < footprint.count ? static_cast<size_t>(reach) : footprint.count;
  arrays.first = reserve<int32_t>(&first_, outputs);
  arrays.count = reserve<int32_t>(&count_, outputs);
  arrays.weights = reserve<int32_t>(&weights_, outputs * arrays.stride);
  // torch's weights depend on those of the whole axis, which may have more taps than the window.
  const auto widest = static_cast<size_t>(std::min<double>(reach, job.in));
  arrays.unrounded = reserve<double>(&unrounded_, widest);
  if (!arrays.first || !arrays.count || !arrays.weights || !arrays.unrounded) {
    return Code::kOutOfMemory;
  }
  const int groups = (compute_weights(footprint, arrays) + kTapGroup - 1) / kTapGroup;
  auto* grouped = reserve<int32_t>(&grouped_, outputs * groups * kTapGroup);
  uint8_t* packed = packed_.reserve(outputs * groups * kernels.group_bytes);
  if (grouped == nullptr || packed == nullptr) return Code::kOutOfMemory;
  align_groups(footprint.count, groups, arrays, grouped);
  kernels.pack(grouped, outputs * groups, packed);
  taps_ = {job.window.count, footprint.count, static_cast<int>(arrays.stride), groups, arrays.first,
           arrays.count,     packed};
  kernels_ = &kernels;
  return Code::kOk;
}

}  // namespace headrace
