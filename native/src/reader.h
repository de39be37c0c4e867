// Whole files into memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image.h"
#include "status.h"

namespace headrace {

struct Bytes {
  const uint8_t* data = nullptr;  // readable for Buffer::kPadding bytes past size
  size_t size = 0;
  int64_t mtime_ns =
      0;  // of the file, in nanoseconds since 1970; 0 for bytes that come from memory
};

// Reads all of the regular file `path` into `buffer`. kReadFailed sets *sys_errno; kTooLarge: over
// 1 GiB.
Code read_file(const char* path, Buffer* buffer, Bytes* bytes, int* sys_errno);

}  // namespace headrace
