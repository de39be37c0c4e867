#include "error.h"

#include <cstdio>

namespace headrace {
namespace {

thread_local char message[512] = "no error";

}  // namespace

int32_t fail(Code code, const char* detail) noexcept {
  std::snprintf(message, sizeof message, "%s", detail != nullptr ? detail : describe(code));
  return static_cast<int32_t>(code);
}

const char* last_error() noexcept { return message; }

}  // namespace headrace
