// Which instruction sets this machine has, which of them the kernels use, and how to force one.
#pragma once

namespace headrace {

enum class Simd : int { kScalar = 0, kAvx2 = 1, kAvx512 = 2, kNeon = 3 };

constexpr int kSimdCount = 4;

const char* simd_name(Simd simd);  // "scalar", "avx2", "avx512", "neon"
bool simd_available(Simd simd);    // compiled in, and this processor has it
Simd simd_active();                // the best available one, or the forced one
bool simd_force(Simd simd);        // false, and nothing changes, where it is not available
void simd_unforce();

}  // namespace headrace
