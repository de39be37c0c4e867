// Functions of a level that are applied with a probability, p[0].
#include "kernels.h"
#include "ops.h"
#include "pixel_op.h"

namespace headrace {
namespace {

// p[1]: bits that are kept.
const char* check_posterize(const double* p) {
  return whole_between(p[1], 1, 8) ? check_chance(p) : "posterizing keeps 1 to 8 bits";
}

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
  return append_counted(&ops::LevelTable::append_autocontrast, canvas);
}

Code torch_autocontrast(const double*, const double*, Canvas* canvas) {
  return append_torch_autocontrast(true, canvas);
}

Code equalize(const double*, const double*, Canvas* canvas) {
  return append_counted(&ops::LevelTable::append_equalize, canvas);
}

using Pixels = Code (*)(const double* p, const double* v, Canvas* canvas);

constexpr Op look_up(const char* name, Pixels pixels,
                     const char* (*check)(const double* p) = check_chance) {
  return {name, check, draw_chance, not_applied, nullptr, nullptr, pixels};
}

}  // namespace

const Op kRandomInvert = look_up("random_invert", invert);
const Op kRandomPosterize = look_up("random_posterize", posterize, check_posterize);
const Op kRandomSolarize = look_up("random_solarize", solarize);
const Op kRandomAutocontrast = look_up("random_autocontrast", autocontrast);
const Op kRandomTensorAutocontrast = look_up("random_tensor_autocontrast", torch_autocontrast);
const Op kRandomEqualize = look_up("random_equalize", equalize);

}  // namespace headrace
