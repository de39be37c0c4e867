#include <algorithm>

#include "ops.h"

namespace headrace {
namespace {

Rect whole(Size in) { return {0, 0, in.width, in.height}; }

// --- to a size: height, width, filter ---

const char* check(const double* p) {
  if (!is_edge(p[0]) || !is_edge(p[1])) return "a resize's size is out of range";
  return is_filter(p[2]) ? nullptr : "a resize's filter is unknown";
}

Size size(const double* p, const double*, Size) { return {as_int(p[1]), as_int(p[0])}; }

Code fold(const double* p, const double* v, Folder* folder) {
  const Size in = folder->size();
  return folder->resize(whole(in), size(p, v, in), static_cast<Filter>(as_int(p[2])));
}

// --- of the shorter edge: its size, limit of the longer (0: none), filter ---

const char* check_shorter(const double* p) {
  if (!is_edge(p[0])) return "a resize's size is out of range";
  if (!whole_between(p[1], 0, kMaxEdge)) return "a resize's max_size is out of range";
  return is_filter(p[2]) ? nullptr : "a resize's filter is unknown";
}

// torchvision's rule: int(size * long / short), in double precision, truncated. Edges of 0, which
// refuse the input, where one would be longer than kMaxEdge.
Size shorter_size(const double* p, const double*, Size in) {
  const int64_t shorter = std::min(in.width, in.height);
  const int64_t longer = std::max(in.width, in.height);
  const auto scaled = [](int64_t edge, int64_t by, int64_t of) {
    return static_cast<int64_t>(static_cast<double>(edge * by) / static_cast<double>(of));
  };
  const int64_t max_size = as_int(p[1]);
  int64_t new_short = as_int(p[0]);
  int64_t new_long = scaled(new_short, longer, shorter);
  if (max_size > 0 && new_long > max_size) {
    new_short = scaled(max_size, new_short, new_long);
    new_long = max_size;
  }
  if (new_long > kMaxEdge) return {0, 0};
  const auto narrow = static_cast<int>(new_short), wide = static_cast<int>(new_long);
  return in.width <= in.height ? Size{narrow, wide} : Size{wide, narrow};
}

Code fold_shorter(const double* p, const double* v, Folder* folder) {
  const Size in = folder->size();
  return folder->resize(whole(in), shorter_size(p, v, in), static_cast<Filter>(as_int(p[2])));
}

}  // namespace

const Op kResize = {"resize", check, nullptr, nullptr, size, fold};
const Op kResizeShorter = {"resize_shorter", check_shorter, nullptr,
                           nullptr,          shorter_size,  fold_shorter};

}  // namespace headrace
