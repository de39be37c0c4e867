#include <numeric>

#include "ops.h"

namespace headrace {
namespace {

// p: the probability, and whether a number that equals it counts. v: 1 where the ops inside are
// applied.
const char* check(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a RandomApply's probability must be 0 to 1";
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  const float unit = random->uniform(0.0f, 1.0f);
  const auto probability = static_cast<float>(p[0]);
  v[0] = unit < probability || (p[1] != 0 && unit == probability) ? 1 : 0;
  return Code::kOk;
}

int order(const double*, const double* v, int count, int* out) {
  if (v[0] == 0) return 0;
  std::iota(out, out + count, 0);
  return count;
}

}  // namespace

const Op kRandomApply = {"random_apply", check, draw, nullptr, nullptr, nullptr, nullptr, order};

}  // namespace headrace
