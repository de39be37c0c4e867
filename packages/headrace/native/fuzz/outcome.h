// What targets and the runner have in common.
#pragma once

#include <cstddef>
#include <cstdint>

// Defined by every target; how many inputs so far gave pixels.
extern size_t inputs_decoded;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// What a target may choose by: bytes that depend on all of the input, so that a seed is just a
// file. (FNV-1a.)
struct Choices {
  uint8_t byte[8];

  Choices(const uint8_t* data, size_t size) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 0x100000001B3u;
    hash ^= hash >> 29;
    for (int i = 0; i < 8; ++i) byte[i] = static_cast<uint8_t>(hash >> 8 * i);
  }
};
