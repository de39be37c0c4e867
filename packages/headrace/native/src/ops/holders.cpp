// Ops that hold others.
#include <algorithm>

#include "headrace.h"
#include "ops.h"

namespace headrace {
namespace {

int all_of(int count, int* out) {
  for (int i = 0; i < count; ++i) out[i] = i;
  return count;
}

int group_order(const double*, const double*, int count, int* out) { return all_of(count, out); }

// --- random_apply. p: the probability, and whether a random number of just that counts. v: 1 where
// the ops are applied.

const char* apply_check(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a RandomApply's probability must be 0 to 1";
}

Code apply_draw(const double* p, RandomStream* random, Size, double* v) {
  const auto unit = random->unit();
  v[0] = unit < p[0] || (p[1] != 0 && unit == p[0]);
  return Code::kOk;
}

int apply_order(const double*, const double* v, int count, int* out) {
  return v[0] != 0 ? all_of(count, out) : 0;
}

// --- random_choice. p: how many ops there are, and whether they have weights; then sums of the
// weights up to each op's. v: the place of the one that is applied.

enum : int { kCount, kWeighted, kSums };

constexpr int kMostWeights = HR_PARAMS - kSums;

const char* choice_check(const double* p) {
  if (!whole_between(p[kCount], 1, p[kWeighted] != 0 ? kMostWeights : kMaxEdge))
    return "a choice is between too few or too many ops";
  return nullptr;
}

Code choice_draw(const double* p, RandomStream* random, Size, double* v) {
  const int last = as_int(p[kCount]) - 1;
  const auto unit = random->unit();
  if (p[kWeighted] == 0) {
    v[0] = static_cast<int>(unit * p[kCount]);
    return Code::kOk;
  }
  int place = 0;
  while (place < last && unit * p[kSums + last] >= p[kSums + place]) ++place;
  v[0] = place;
  return Code::kOk;
}

int choice_order(const double*, const double* v, int count, int* out) {
  if (!whole_between(v[0], 0, count - 1)) return 0;
  out[0] = as_int(v[0]);
  return 1;
}

// --- random_order. p: how many ops there are. v: their places in the order in which they are
// applied.

const char* order_check(const double* p) {
  return whole_between(p[0], 0, HR_DRAWS) ? nullptr : "a random order is of too many ops";
}

Code order_draw(const double* p, RandomStream* random, Size, double* v) {
  int places[HR_DRAWS];
  const int count = all_of(as_int(p[0]), places);
  random->shuffle(places, count);
  std::copy_n(places, count, v);
  return Code::kOk;
}

int order_order(const double* p, const double* v, int count, int* out) {
  int used = 0;
  for (int i = 0; i < std::min(count, as_int(p[0])); ++i) {
    if (whole_between(v[i], 0, count - 1)) out[used++] = as_int(v[i]);
  }
  return used;
}

}  // namespace

const Op kGroup = {"group", nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, group_order};
const Op kRandomApply = {"random_apply", apply_check, apply_draw, nullptr,
                         nullptr,        nullptr,     nullptr,    apply_order};
const Op kRandomChoice = {"random_choice", choice_check, choice_draw, nullptr,
                          nullptr,         nullptr,      nullptr,     choice_order};
const Op kRandomOrder = {"random_order", order_check, order_draw, nullptr,
                         nullptr,        nullptr,     nullptr,    order_order};

}  // namespace headrace
