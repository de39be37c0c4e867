#include "cpu.h"

#include <atomic>
#include <initializer_list>

namespace headrace {
namespace {

constexpr int kNotForced = -1;

std::atomic<int> forced{kNotForced};

#if defined(__x86_64__)
// The sets that the build's flags for *_avx2.cpp and *_avx512.cpp name (CMakeLists.txt), all of
// them.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}
#endif

}  // namespace

const char* simd_name(Simd simd) {
  switch (simd) {
    case Simd::kScalar:
      return "scalar";
    case Simd::kAvx2:
      return "avx2";
    case Simd::kAvx512:
      return "avx512";
    case Simd::kNeon:
      return "neon";
  }
  return "unknown";
}

bool simd_available(Simd simd) {
#if defined(__x86_64__)
  static const bool avx2 = has_avx2();
  static const bool avx512 = has_avx512();
  return simd == Simd::kScalar || (simd == Simd::kAvx2 && avx2) ||
         (simd == Simd::kAvx512 && avx512);
#elif defined(__aarch64__)
  return simd == Simd::kScalar || simd == Simd::kNeon;
#else
  return simd == Simd::kScalar;
#endif
}

Simd simd_active() {
  const int wanted = forced.load(std::memory_order_relaxed);
  if (wanted != kNotForced) return static_cast<Simd>(wanted);
  for (const Simd simd : {Simd::kAvx512, Simd::kAvx2, Simd::kNeon}) {
    if (simd_available(simd)) return simd;
  }
  return Simd::kScalar;
}

bool simd_force(Simd simd) {
  if (!simd_available(simd)) return false;
  forced.store(static_cast<int>(simd), std::memory_order_relaxed);
  return true;
}

void simd_unforce() { forced.store(kNotForced, std::memory_order_relaxed); }

}  // namespace headrace
