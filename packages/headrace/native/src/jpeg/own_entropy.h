// Huffman decoding of MCUs: into coefficients, or stepped over.
#pragma once

#include <cstddef>
#include <cstdint>

#include "own_tables.h"

namespace headrace::jpeg::own {

constexpr int kMaxBlocks = 6;  // in an MCU of 4:2:0

// Zero bytes that must follow the last byte of a stream's data: one block of the longest codes
// there are (208 bytes), and one load, may be read past it before the overrun is noticed.
constexpr size_t kStreamPadding = 320;

// The blocks of one MCU in the order of the scan, and what each is decoded with.
struct McuLayout {
  int blocks = 0;
  struct Block {
    int component = 0;
    const HuffmanTable* dc = nullptr;
    const HuffmanTable* ac = nullptr;
  } block[kMaxBlocks];
};

// A place in entropy-coded data from which byte stuffing and markers have been removed. The first
// `count` bits of `bits` are the next ones; `data` is what follows them.
struct Stream {
  const uint8_t* data = nullptr;
  const uint8_t* end = nullptr;
  uint64_t bits = 0;
  uint32_t count = 0;
  int16_t dc[3] = {};  // predictors, by component; modulo 2^16 as libjpeg stores coefficients

  // From the `bit`-th bit (0 to 7, from the top) of *begin on.
  void start(const uint8_t* begin, const uint8_t* past, uint32_t bit) {
    data = begin + 1;
    end = past;
    bits = static_cast<uint64_t>(*begin) << (56 + bit);
    count = 8 - bit;
    dc[0] = dc[1] = dc[2] = 0;
  }

  // Bits between `begin` and the next one.
  int64_t position(const uint8_t* begin) const { return (data - begin) * 8 - count; }
};

// A block's coefficients (row-major), and how many in zigzag order may be other than zero: 1 for DC
// only.
struct alignas(64) Block {
  int16_t coefficient[64];
};

// Where the blocks of some MCUs go, one after the other. They must be zero.
struct BlockRun {
  Block* blocks;
  uint8_t* extents;
  int mcus;  // at least 1
};

struct EntropyKernels {
  // All return false at an invalid code or where the data ends first; the streams are then lost.
  bool (*skip)(const McuLayout& layout, Stream* stream, int mcus);
  bool (*decode)(const McuLayout& layout, Stream* stream, const BlockRun& to);

  // The same from two streams at once, which takes less time than one after the other.
  bool (*decode_two)(const McuLayout& layout, Stream* const streams[2], const BlockRun to[2]);
};

extern const EntropyKernels kPlainEntropy;
#if defined(__x86_64__)
extern const EntropyKernels kBmi2Entropy;
#endif

const EntropyKernels& entropy_kernels();  // the active instruction set's

}  // namespace headrace::jpeg::own
