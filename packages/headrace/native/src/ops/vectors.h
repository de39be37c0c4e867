// Pixels in registers, for the loops of the file that includes this.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace headrace::ops {
namespace {

// As many pixels as a register holds, one to a lane, by the vector extension that GCC and Clang
// share: one source for all instruction sets, and no loop that a compiler may fail to vectorize.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;
using Ints = int32_t __attribute__((vector_size(kVectorBytes)));
using Floats = float __attribute__((vector_size(kVectorBytes)));

inline Floats to_float(Ints v) { return __builtin_convertvector(v, Floats); }
inline Ints truncated(Floats v) { return __builtin_convertvector(v, Ints); }
// Of a comparison, whose lanes are 0 or -1.
inline Ints choose(Ints condition, Ints yes, Ints no) {
  return (yes & condition) | (no & ~condition);
}
inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }
inline Ints smaller(Ints a, Ints b) { return a < b ? a : b; }

inline Ints red(Ints p) { return p & 0xFF; }
inline Ints green(Ints p) { return p >> 8 & 0xFF; }
inline Ints blue(Ints p) { return p >> 16 & 0xFF; }
inline Ints pixel_of(Ints r, Ints g, Ints b) { return r | g << 8 | b << 16; }

// Calls `change` with all pixels of a row, and writes what it returns in their place.
template <typename Change>
inline void for_each_pixel(uint8_t* row, int width, const Change& change) {
  Ints pixels = {};
  int x = 0;
  for (; x + kLanes <= width; x += kLanes) {
    std::memcpy(&pixels, row + 4 * x, kVectorBytes);
    pixels = change(pixels);
    std::memcpy(row + 4 * x, &pixels, kVectorBytes);
  }
  if (x == width) return;
  const size_t rest = size_t{4} * (width - x);
  std::memcpy(&pixels, row + 4 * x, rest);
  pixels = change(pixels);
  std::memcpy(row + 4 * x, &pixels, rest);
}

// The sum of what `value` makes of all pixels of a row: at most 255 of each, 0 of black.
template <typename Value>
inline uint64_t sum_pixels(const uint8_t* row, int width, const Value& value) {
  Ints sums = {}, pixels = {};  // of at most 2^20 pixels (kMaxEdge)
  int x = 0;
  for (; x + kLanes <= width; x += kLanes) {
    std::memcpy(&pixels, row + 4 * x, kVectorBytes);
    sums += value(pixels);
  }
  pixels = Ints{};
  std::memcpy(&pixels, row + 4 * x, size_t{4} * (width - x));
  sums += value(pixels);
  uint64_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += static_cast<uint64_t>(sums[i]);
  return sum;
}

// a * b + c, rounded once.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<Floats>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__ARM_NEON)
  return reinterpret_cast<Floats>(vfmaq_f32(reinterpret_cast<float32x4_t>(c),
                                            reinterpret_cast<float32x4_t>(a),
                                            reinterpret_cast<float32x4_t>(b)));
#else
  for (int i = 0; i < kLanes; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
#endif
}

}  // namespace
}  // namespace headrace::ops
