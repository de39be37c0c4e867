#include "crc32.h"

#include <array>

namespace headrace {
namespace {

constexpr uint32_t kPolynomial = 0xEDB88320;  // bits reversed
constexpr int kStep = 16;                     // bytes at a time

using Tables = std::array<std::array<uint32_t, 256>, kStep>;

// Of table i: what a byte adds to the remainder once i more bytes have followed it.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? kPolynomial : 0);
    tables[0][byte] = rest;
  }
  for (int i = 1; i < kStep; ++i) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[i - 1][byte];
      tables[i][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32(const uint8_t* data, size_t size) {
  uint32_t rest = ~uint32_t{0};
  for (; size >= kStep; data += kStep, size -= kStep) {
    const uint32_t before = rest;
    rest = 0;
    for (int i = 0; i < 4; ++i) rest ^= kTables[kStep - 1 - i][data[i] ^ (before >> 8 * i & 255)];
    for (int i = 4; i < kStep; ++i) rest ^= kTables[kStep - 1 - i][data[i]];
  }
  for (; size > 0; ++data, --size) rest = rest >> 8 ^ kTables[0][(rest ^ *data) & 255];
  return ~rest;
}

}  // namespace headrace
