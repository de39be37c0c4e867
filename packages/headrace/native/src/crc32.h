// The checksum of images in a pack's index.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// CRC-32 as zlib, gzip and PNG have it; a build without PNG has no libdeflate.
uint32_t crc32(const uint8_t* data, size_t size);

}  // namespace headrace
