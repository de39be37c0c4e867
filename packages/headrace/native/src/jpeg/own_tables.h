// The tables of one baseline JPEG in the form that the built-in decoder reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../status.h"
#include "header.h"

namespace headrace::jpeg::own {

constexpr int kLookupBits = 10;  // four codes of at most 10 bits and one of 16 fit a refill of 56
constexpr int kSkipBits = 12;

// One step of the coefficient decoder for the next kLookupBits bits of the stream:
//   bits 0 to 7    bits consumed: code and appended bits
//   bits 8 to 15   how far the position in the block moves: run + 1, or one of the two below
//   bits 16 to 31  the coefficient, signed
using Lookup = uint32_t;
constexpr uint32_t kEndOfBlock = 0x80;  // position moves past the block: one test catches all ends

// The coefficient is not among the kLookupBits bits. Then bits 0 to 7 are the length of the code
// alone, or 0 where that is longer, too, or no code begins so; bits 16 to 23 are the symbol.
constexpr uint32_t kNotInTable = 0xC0;

// Two steps in one, where both fit kLookupBits bits; else one, said twice:
//   bits 0 to 7    bits consumed by both
//   bits 8 to 15   how far the first moves
//   bits 16 to 23  how far both move; kEndOfBlock + the first's where the second is an end of
//                  block; kNotInTable where there is not even one
//   bits 32 to 47  the first coefficient, bits 48 to 63 the second, signed
using PairLookup = uint64_t;

struct HuffmanTable {
  PairLookup pairs[1 << kLookupBits];  // AC tables

  // AC tables: as above. DC tables: bits 0 to 7 are the length of the code, or 0 as above, and
  // bits 8 to 15 how many bits are appended.
  Lookup lookup[1 << kLookupBits];

  // AC tables, for blocks that are only stepped over: as many symbols as have their codes in
  // kSkipBits bits. Bits 0 to 7 bits consumed (at most kSkipBits + 10), 8 to 14 the sum of run + 1,
  // 15 the last one was end-of-block. 0: not even one symbol fits.
  uint16_t skip[1 << kSkipBits];

  // Canonical codes. A code of `length` bits, left-aligned in 16, lies below limit[length]; its
  // symbol is symbols[(code >> (16 - length)) + offset[length]].
  int32_t limit[17];
  int32_t offset[17];
  uint8_t symbols[256];
};

// What the segment of a Huffman table says; compared to know whether the last file's is still good.
struct HuffmanSpec {
  uint8_t counts[16];
  uint8_t symbols[256];
};

// All that the scan needs to know from the segments between SOI and SOS.
class Tables {
 public:
  // Reads DQT and DHT segments before header.sos_offset and builds what the scan names. Tables left
  // from another file are never used, but not rebuilt where this file's are the same.
  // kCorrupt: malformed, or one is missing.
  Code read(const uint8_t* data, const Header& header);

  const HuffmanTable& dc(int id) const { return huffman_[0][id].table; }
  const HuffmanTable& ac(int id) const { return huffman_[1][id].table; }
  const int16_t* quantiser(int id) const { return quantiser_[id]; }  // [64], natural order

 private:
  struct Slot {
    HuffmanTable table;
    HuffmanSpec built = {};  // what `table` was built from
    HuffmanSpec seen = {};   // what this file says
    bool is_built = false;
    bool is_seen = false;
  };

  bool read_quantisers(const uint8_t* data, size_t size);
  bool read_huffman(const uint8_t* data, size_t size);
  bool prepare(int kind, int id);

  Slot huffman_[2][4];  // DC, AC
  alignas(64) int16_t quantiser_[4][64];
  bool quantiser_seen_[4] = {};
};

// Position of the k-th coefficient in zigzag order within a row-major block.
extern const uint8_t kZigzag[64];

}  // namespace headrace::jpeg::own
