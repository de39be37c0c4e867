#include "own_tables.h"

#include <algorithm>
#include <cstring>

namespace headrace::jpeg::own {

const uint8_t kZigzag[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                             12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                             35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                             58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

namespace {

constexpr uint8_t kDht = 0xC4;
constexpr uint8_t kDqt = 0xDB;
constexpr uint8_t kSof0 = 0xC0;
constexpr uint8_t kSof1 = 0xC1;
constexpr uint8_t kDnl = 0xDC;
constexpr uint8_t kDri = 0xDD;
constexpr uint8_t kApp0 = 0xE0;
constexpr uint8_t kApp15 = 0xEF;
constexpr uint8_t kComment = 0xFE;
constexpr int kMaxDcSize = 11;  // magnitudes of 8-bit baseline; more is left to libjpeg
constexpr int kMaxAcSize = 10;

// What a symbol does to the position in the block.
struct Symbol {
  bool valid;
  int size;          // appended bits
  uint32_t advance;  // see Lookup
};

Symbol meaning(bool is_ac, int symbol) {
  if (!is_ac) return {symbol <= kMaxDcSize, symbol, 0};
  const int run = symbol >> 4;
  const int size = symbol & 15;
  if (size == 0 && run == 0) return {true, 0, kEndOfBlock};
  if (size == 0) return {run == 15, 0, 16};
  return {size <= kMaxAcSize, size, static_cast<uint32_t>(run + 1)};
}

// The coefficient that `size` appended bits stand for (T.81, F.2.2.1).
int extend(int bits, int size) {
  return size != 0 && bits < 1 << (size - 1) ? bits - (1 << size) + 1 : bits;
}

// False where the counts describe no prefix code. Of all ones no code may consist: libjpeg refuses
// that, too.
bool build_canonical(const HuffmanSpec& spec, HuffmanTable* table) {
  int code = 0;
  int index = 0;
  for (int length = 1; length <= 16; ++length) {
    const int count = spec.counts[length - 1];
    table->offset[length] = index - code;
    code += count;
    index += count;
    if (code >= 1 << length) return false;
    table->limit[length] = code << (16 - length);
    code <<= 1;
  }
  std::memcpy(table->symbols, spec.symbols, sizeof spec.symbols);
  return true;
}

// The coefficients whose code, together with the appended bits, fits; from position `code` of the
// lookup, which is the code's own, left-aligned.
void fill_ac(Lookup* first, int length, int raw, const Symbol& symbol) {
  const int total = length + symbol.size;
  if (!symbol.valid || total > kLookupBits) {
    const int stated = symbol.valid ? length : 0;
    const Lookup entry =
        static_cast<uint32_t>(raw) << 16 | kNotInTable << 8 | static_cast<uint32_t>(stated);
    for (int i = 0; i < 1 << (kLookupBits - length); ++i) first[i] = entry;
    return;
  }
  const int spare = kLookupBits - total;
  for (int bits = 0; bits < 1 << symbol.size; ++bits) {
    const auto value = static_cast<uint32_t>(extend(bits, symbol.size)) << 16;
    const Lookup entry = value | symbol.advance << 8 | static_cast<uint32_t>(total);
    for (int i = 0; i < 1 << spare; ++i) first[(bits << spare) + i] = entry;
  }
}

void fill_dc(Lookup* first, int length, const Symbol& symbol) {
  const Lookup entry = static_cast<uint32_t>(symbol.size) << 8 | static_cast<uint32_t>(length);
  for (int i = 0; i < 1 << (kLookupBits - length); ++i) first[i] = symbol.valid ? entry : 0;
}

void build_lookup(const HuffmanSpec& spec, bool is_ac, HuffmanTable* table) {
  for (Lookup& each : table->lookup) each = is_ac ? kNotInTable << 8 : 0;
  int code = 0;
  int index = 0;
  for (int length = 1; length <= kLookupBits; ++length, code <<= 1) {
    for (int i = 0; i < spec.counts[length - 1]; ++i, ++code, ++index) {
      const int raw = spec.symbols[index];
      Lookup* first = table->lookup + (code << (kLookupBits - length));
      if (is_ac)
        fill_ac(first, length, raw, meaning(true, raw));
      else
        fill_dc(first, length, meaning(false, raw));
    }
  }
}

PairLookup make_pair(uint32_t used, uint32_t first, uint32_t both, Lookup a, Lookup b) {
  return static_cast<uint64_t>(used | first << 8 | both << 16) |
         static_cast<uint64_t>(a >> 16) << 32 | static_cast<uint64_t>(b >> 16) << 48;
}

void build_pairs(HuffmanTable* table) {
  constexpr uint32_t kMask = (1U << kLookupBits) - 1;
  for (uint32_t bits = 0; bits <= kMask; ++bits) {
    const Lookup a = table->lookup[bits];
    const uint32_t used = a & 0xFF;
    const uint32_t first = a >> 8 & 0xFF;
    PairLookup& pair = table->pairs[bits];
    if (first == kNotInTable || first == kEndOfBlock) {
      pair = make_pair(used, 0, first, a, a);
      continue;
    }
    const Lookup b = table->lookup[bits << used & kMask];
    const uint32_t second = b >> 8 & 0xFF;
    const bool fits = second != kNotInTable && used + (b & 0xFF) <= kLookupBits;
    if (fits && second == kEndOfBlock)
      pair = make_pair(used + (b & 0xFF), first, kEndOfBlock + first, a, a);
    else if (fits && first + second <= 63)
      pair = make_pair(used + (b & 0xFF), first, first + second, a, b);
    else
      pair = make_pair(used, first, first, a, a);
  }
}

// The AC symbols whose codes have at most kSkipBits bits, in the order of their codes.
struct ShortCodes {
  struct Code {
    uint32_t length;
    Symbol symbol;
  } code[256];
  int count = 0;
};

void list_short_codes(const HuffmanSpec& spec, ShortCodes* codes) {
  for (uint32_t length = 1; length <= kSkipBits; ++length) {
    for (int i = 0; i < spec.counts[length - 1]; ++i, ++codes->count)
      codes->code[codes->count] = {length, meaning(true, spec.symbols[codes->count])};
  }
}

// The 1 << left entries at `at`, whose first kSkipBits - left bits are symbols that were taken
// already: `used` bits with what they append, `advance` coefficients. Codes come in the order of
// their bits, so that each symbol has a run of entries; what is left over begins a longer code.
void fill_skip(const ShortCodes& codes, uint32_t left, uint32_t used, uint32_t advance,
               uint16_t* at) {
  const auto taken = static_cast<uint16_t>(used | advance << 8);
  uint16_t* const end = at + (ptrdiff_t{1} << left);
  for (int i = 0; i < codes.count && codes.code[i].length <= left; ++i) {
    const Symbol& symbol = codes.code[i].symbol;
    const uint32_t total = codes.code[i].length + static_cast<uint32_t>(symbol.size);
    const ptrdiff_t span = ptrdiff_t{1} << (left - codes.code[i].length);
    const bool ends = symbol.valid && symbol.advance == kEndOfBlock;
    // A coefficient that can't share a block with those before it is left to the next entry.
    if (ends) {
      std::fill_n(at, span, static_cast<uint16_t>((used + total) | advance << 8 | 0x8000));
    } else if (!symbol.valid || advance + symbol.advance > 63) {
      std::fill_n(at, span, taken);
    } else if (total >= left) {
      std::fill_n(at, span,
                  static_cast<uint16_t>((used + total) | (advance + symbol.advance) << 8));
    } else {
      const ptrdiff_t part = ptrdiff_t{1} << (left - total);
      fill_skip(codes, left - total, used + total, advance + symbol.advance, at);
      for (ptrdiff_t done = part; done < span; done += part) std::copy_n(at, part, at + done);
    }
    at += span;
  }
  std::fill(at, end, taken);
}

void build_skip(const HuffmanSpec& spec, HuffmanTable* table) {
  ShortCodes codes;
  list_short_codes(spec, &codes);
  fill_skip(codes, kSkipBits, 0, 0, table->skip);
}

// Sizes over 15 in a DC table are an error to libjpeg, even where no code uses them.
bool sizes_valid(const HuffmanSpec& spec) {
  for (const uint8_t size : spec.symbols)
    if (size > 15) return false;
  return true;
}

bool build(const HuffmanSpec& spec, bool is_ac, HuffmanTable* table) {
  if (!build_canonical(spec, table) || (!is_ac && !sizes_valid(spec))) return false;
  build_lookup(spec, is_ac, table);
  if (is_ac) {
    build_pairs(table);
    build_skip(spec, table);
  }
  return true;
}

// Segments that a baseline file may hold before its scan, beside tables; libjpeg stops at any
// other.
bool is_expected(uint8_t marker) {
  return marker == kDri || marker == kDnl || marker == kSof0 || marker == kSof1 ||
         marker == kComment || (marker >= kApp0 && marker <= kApp15);
}

}  // namespace

bool Tables::read_quantisers(const uint8_t* data, size_t size) {
  while (size > 0) {
    const int id = data[0] & 15;
    const size_t wide = data[0] >> 4;
    const size_t bytes = 1 + 64 * (1 + wide);
    if (id > 3 || wide > 1 || size < bytes) return false;
    for (size_t k = 0; k < 64; ++k) {
      const int value = wide != 0 ? data[1 + 2 * k] << 8 | data[2 + 2 * k] : data[1 + k];
      quantiser_[id][kZigzag[k]] = static_cast<int16_t>(value);
    }
    quantiser_seen_[id] = true;
    data += bytes;
    size -= bytes;
  }
  return true;
}

bool Tables::read_huffman(const uint8_t* data, size_t size) {
  while (size > 0) {
    const int id = data[0] & 15;
    const int kind = data[0] >> 4;
    if (id > 3 || kind > 1 || size < 17) return false;
    Slot& slot = huffman_[kind][id];
    slot.seen = HuffmanSpec();
    size_t count = 0;
    for (size_t i = 0; i < 16; ++i) count += slot.seen.counts[i] = data[1 + i];
    if (count > 256 || size < 17 + count) return false;
    std::memcpy(slot.seen.symbols, data + 17, count);
    slot.is_seen = true;
    data += 17 + count;
    size -= 17 + count;
  }
  return true;
}

bool Tables::prepare(int kind, int id) {
  if (id > 3) return false;
  Slot& slot = huffman_[kind][id];
  if (!slot.is_seen) return false;
  if (slot.is_built && std::memcmp(&slot.built, &slot.seen, sizeof slot.seen) == 0) return true;
  slot.built = slot.seen;
  slot.is_built = build(slot.seen, kind == 1, &slot.table);
  return slot.is_built;
}

Code Tables::read(const uint8_t* data, const Header& header) {
  for (auto& kind : huffman_)
    for (Slot& slot : kind) slot.is_seen = false;
  for (bool& seen : quantiser_seen_) seen = false;
  const bool usual = for_each_segment(data, header.sos_offset,
                                      [this](uint8_t marker, const uint8_t* content, size_t size) {
                                        if (marker == kDqt) return read_quantisers(content, size);
                                        if (marker == kDht) return read_huffman(content, size);
                                        return is_expected(marker);
                                      });
  if (!usual) return Code::kCorrupt;
  for (int i = 0; i < header.components; ++i) {
    const Component& c = header.component[i];
    if (c.tq > 3 || !quantiser_seen_[c.tq]) return Code::kCorrupt;
    if (!prepare(0, c.td) || !prepare(1, c.ta)) return Code::kCorrupt;
  }
  return Code::kOk;
}

}  // namespace headrace::jpeg::own
