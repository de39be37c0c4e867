// The body of the entropy decoder, compiled once for the baseline processor and once with BMI2.
// Everything here has internal linkage: the two must not be merged by the linker.
#include <cstring>

#include "own_entropy.h"

namespace headrace::jpeg::own {
namespace {

struct Reader {
  const uint8_t* data;
  uint64_t bits;
  uint32_t count;

  // At least 56 bits, without a branch: bits that are loaded again are the same ones.
  void refill() {
    uint64_t next;
    std::memcpy(&next, data, sizeof next);
    bits |= __builtin_bswap64(next) >> count;
    data += (63 - count) >> 3;
    count |= 56;
  }
  uint32_t peek(int n) const { return static_cast<uint32_t>(bits >> (64 - n)); }
  void consume(uint32_t n) {
    bits <<= n & 63;
    count -= n;
  }
};

// One symbol by its code's length. At least 16 bits must be there. -1: no code begins so.
inline int read_symbol(const HuffmanTable& table, Reader* in) {
  const int code = static_cast<int>(in->peek(16));
  for (int length = 1; length <= 16; ++length) {
    if (code >= table.limit[length]) continue;
    in->consume(static_cast<uint32_t>(length));
    return table.symbols[((code >> (16 - length)) + table.offset[length]) & 255];
  }
  return -1;
}

inline int read_value(int size, Reader* in) {
  const int bits = static_cast<int>(in->bits >> 1 >> (63 - size));
  in->consume(static_cast<uint32_t>(size));
  return size != 0 && bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

// The DC difference; needs 27 bits.
inline bool read_dc(const HuffmanTable& table, Reader* in, int* difference) {
  const Lookup entry = table.lookup[in->peek(kLookupBits)];
  if (__builtin_expect((entry >> 8 & 0xFF) != kNotInTable, 1)) {
    in->consume(entry & 0xFF);
    *difference = static_cast<int32_t>(entry) >> 16;
    return true;
  }
  const int size = read_symbol(table, in);
  if (size < 0 || size > 11) return false;
  *difference = read_value(size, in);
  return true;
}

// A symbol that the lookup doesn't hold, at position k; needs 26 bits. Returns the position after
// it, 0 where it is invalid. End-of-block returns kEndOfBlock.
inline uint32_t read_long(const HuffmanTable& table, Reader* in, uint32_t k, int16_t* block) {
  const int symbol = read_symbol(table, in);
  if (symbol == 0) return kEndOfBlock;
  const uint32_t run = static_cast<uint32_t>(symbol) >> 4;
  const int size = symbol & 15;
  if (symbol < 0 || size > 10 || (size == 0 && run != 15) || k + run > 63) return 0;
  const int value = read_value(size, in);
  if (block != nullptr) block[kZigzag[k + run]] = static_cast<int16_t>(value);
  return k + run + 1;
}

// Coefficients 1 to 63. Returns how many of the 64 may be other than zero, 0 at an invalid code.
inline uint32_t read_ac(const HuffmanTable& table, Reader* in, int16_t* block) {
  uint32_t k = 1;
  Lookup entry;
  while (true) {
    in->refill();
    for (int i = 0; i < 4; ++i) {  // 3 x 10 bits, then at most 26: 56
      entry = table.lookup[in->peek(kLookupBits)];
      const uint32_t next = k + (entry >> 8 & 0xFF);
      if (__builtin_expect(next > 63, 0)) goto special;
      block[kZigzag[next - 1]] = static_cast<int16_t>(entry >> 16);
      in->consume(entry & 0xFF);
      k = next;
    }
    continue;

  special:
    const uint32_t advance = entry >> 8 & 0xFF;
    if (advance == kEndOfBlock) {
      in->consume(entry & 0xFF);
      return k;
    }
    if (advance == kNotInTable) {
      const uint32_t next = read_long(table, in, k, block);
      if (next == kEndOfBlock) return k;
      if (next == 0 || next == 64) return next;
      k = next;
      continue;
    }
    if (k + advance != 64) return 0;
    block[63] = static_cast<int16_t>(entry >> 16);
    in->consume(entry & 0xFF);
    return 64;
  }
}

inline bool skip_ac(const HuffmanTable& table, Reader* in) {
  uint32_t k = 1;
  while (true) {
    in->refill();
    for (int i = 0; i < 3; ++i) {  // 2 x 12 bits, then at most 26
      const uint32_t several = table.skip[in->peek(kSkipBits)];
      const uint32_t next = k + (several >> 8 & 0x7F);
      if (__builtin_expect(several != 0 && next <= 63, 1)) {
        in->consume(several & 0xFF);
        k = next;
        if ((several & 0x8000) != 0) return true;
        continue;
      }
      // Too long for the table, or the block may end within these symbols: one at a time.
      k = read_long(table, in, k, nullptr);
      if (k == kEndOfBlock || k == 64) return true;
      if (k == 0) return false;
      break;
    }
  }
}

bool skip(const McuLayout& layout, Stream* stream, int mcus) {
  Reader in = {stream->data, stream->bits, stream->count};
  for (int mcu = 0; mcu < mcus; ++mcu) {
    for (int i = 0; i < layout.blocks; ++i) {
      const McuLayout::Block& each = layout.block[i];
      int difference;
      in.refill();
      if (!read_dc(*each.dc, &in, &difference)) return false;
      int16_t& dc = stream->dc[each.component];
      dc = static_cast<int16_t>(dc + difference);
      if (!skip_ac(*each.ac, &in)) return false;
      if (in.data - (in.count >> 3) > stream->end) return false;
    }
  }
  stream->data = in.data;
  stream->bits = in.bits;
  stream->count = in.count;
  return true;
}

bool decode(const McuLayout& layout, Stream* stream, Block* blocks, uint8_t* extents) {
  Reader in = {stream->data, stream->bits, stream->count};
  for (int i = 0; i < layout.blocks; ++i) {
    const McuLayout::Block& each = layout.block[i];
    int difference;
    in.refill();
    if (!read_dc(*each.dc, &in, &difference)) return false;
    int16_t& dc = stream->dc[each.component];
    dc = static_cast<int16_t>(dc + difference);
    blocks[i].coefficient[0] = dc;
    const uint32_t extent = read_ac(*each.ac, &in, blocks[i].coefficient);
    if (extent == 0 || in.data - (in.count >> 3) > stream->end) return false;
    extents[i] = static_cast<uint8_t>(extent);
  }
  stream->data = in.data;
  stream->bits = in.bits;
  stream->count = in.count;
  return true;
}

}  // namespace
}  // namespace headrace::jpeg::own
