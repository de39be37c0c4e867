// Every instruction set that this machine has, one after the other, against the scalar kernels.
#pragma once

#include <vector>

#include "check.h"
#include "cpu.h"

// What `make()` gives with the scalar kernels must be what it gives with all others. Returns how
// many others there are.
template <typename Make>
int check_equal_to_scalar(Make&& make) {
  using headrace::Simd;
  CHECK(headrace::simd_force(Simd::kScalar));
  const auto expected = make();
  int compared = 0;
  for (int i = 0; i < headrace::kSimdCount; ++i) {
    const auto simd = static_cast<Simd>(i);
    if (simd == Simd::kScalar || !headrace::simd_force(simd)) continue;
    if (make() != expected) {
      std::fprintf(stderr, "%s differs from scalar\n", headrace::simd_name(simd));
      std::_Exit(1);
    }
    ++compared;
  }
  headrace::simd_unforce();
  return compared;
}

// Fails where a test that compared `others` instruction sets with the scalar one should have
// compared more: these architectures always have one.
inline void check_compared(int others) {
#if defined(__aarch64__)
  CHECK(others >= 1);
#else
  if (others == 0) std::puts("nothing to compare: this machine has the scalar kernels only");
#endif
}
