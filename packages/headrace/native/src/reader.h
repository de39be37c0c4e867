// Files, or parts of them, into memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "image.h"
#include "status.h"

namespace headrace {

struct Bytes {
  const uint8_t* data = nullptr;  // readable for Buffer::kPadding bytes past size
  size_t size = 0;
  int64_t mtime_ns = 0;  // of a whole file, in nanoseconds since 1970; otherwise 0
};

// Reads all of the regular file `path` into `buffer`. kReadFailed sets *sys_errno; kTooLarge: over
// 1 GiB.
Code read_file(const char* path, Buffer* buffer, Bytes* bytes, int* sys_errno);

// Reads the `size` bytes from `begin` on. kReadFailed with *sys_errno 0: the file ends before.
Code read_extent(const char* path, uint64_t begin, uint64_t size, Buffer* buffer, Bytes* bytes,
                 int* sys_errno);

}  // namespace headrace
