#include "ops.h"

#include <cstring>
#include <iterator>

namespace headrace {
namespace {

#define HEADRACE_ADDRESS(Name) &k##Name,
const Op* const kOps[] = {HEADRACE_OPS(HEADRACE_ADDRESS)};

constexpr int32_t kCount = static_cast<int32_t>(std::size(kOps));

}  // namespace

const Op* find_op(int32_t id) { return id >= 0 && id < kCount ? kOps[id] : nullptr; }

int32_t find_op_id(const char* name) {
  for (int32_t id = 0; id < kCount; ++id) {
    if (std::strcmp(kOps[id]->name, name) == 0) return id;
  }
  return -1;
}

}  // namespace headrace
