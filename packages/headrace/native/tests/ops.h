// Ops by name, for tests and fuzz targets.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "headrace.h"
#include "ops/op.h"

inline hr_op make_op(const char* name, const std::vector<double>& params) {
  hr_op op = {};
  op.id = headrace::find_op_id(name);
  if (op.id < 0) {
    std::fprintf(stderr, "there is no op %s\n", name);
    std::_Exit(1);
  }
  std::copy(params.begin(), params.end(), op.params);
  return op;
}

// Height, width, filter, bounds of the area's share, of log(width / height), of width / height.
inline hr_op random_resized_crop(int height, int width, int filter = 2) {
  return make_op("random_resized_crop",
                 {static_cast<double>(height), static_cast<double>(width),
                  static_cast<double>(filter), 0.08F, 1.0F, -0.28768F, 0.28768F, 0.75, 4.0 / 3.0});
}
