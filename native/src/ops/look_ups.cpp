// Functions of a level that are applied with a probability, p[0]; v[0] is 1 where they are.
#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

const char* check(const double* p) {
  return between(p[0], 0, 1) ? nullptr : "a look-up's probability must be 0 to 1";
}

// p[1]: bits that are kept.
const char* check_posterize(const double* p) {
  return whole_between(p[1], 1, 8) ? check(p) : "posterizing keeps 1 to 8 bits";
}

Code draw(const double* p, RandomStream* random, Size, double* v) {
  v[0] = happens(random, p[0]);
  return Code::kOk;
}

bool idle(const double*, const double* v) { return v[0] == 0; }

Code invert(const double*, const double*, Canvas* canvas) {
  canvas->levels()->append_invert();
  return Code::kOk;
}

Code posterize(const double* p, const double*, Canvas* canvas) {
  canvas->levels()->append_posterize(as_int(p[1]));
  return Code::kOk;
}

// p[1]: the lowest level that is inverted.
Code solarize(const double* p, const double*, Canvas* canvas) {
  canvas->levels()->append_solarize(p[1]);
  return Code::kOk;
}

Code autocontrast(const double*, const double*, Canvas* canvas) {
  int64_t counts[3][256];
  ops::LevelTable* levels = canvas->levels();
  ops::count_levels(canvas->unfinished(), counts);
  levels->append_autocontrast(counts);
  return Code::kOk;
}

Code equalize(const double*, const double*, Canvas* canvas) {
  int64_t counts[3][256];
  ops::LevelTable* levels = canvas->levels();
  ops::count_levels(canvas->unfinished(), counts);
  levels->append_equalize(counts);
  return Code::kOk;
}

}  // namespace

const Op kRandomInvert = {"random_invert", check, draw, idle, nullptr, nullptr, invert};
const Op kRandomPosterize = {"random_posterize", check_posterize, draw, idle, nullptr, nullptr,
                             posterize};
const Op kRandomSolarize = {"random_solarize", check, draw, idle, nullptr, nullptr, solarize};
const Op kRandomAutocontrast = {"random_autocontrast", check, draw, idle, nullptr, nullptr,
                                autocontrast};
const Op kRandomEqualize = {"random_equalize", check, draw, idle, nullptr, nullptr, equalize};

}  // namespace headrace
