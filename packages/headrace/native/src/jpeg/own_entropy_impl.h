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
  void consume(uint32_t n) {  // bits 0 to 7 of n count, as tables hold more in the others
    bits <<= n & 63;
    count -= n & 0xFF;
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

// The value of `size` appended bits (T.81, F.2.2.1), without a branch: 0 and 1 are equally likely.
inline int read_value(uint32_t size, Reader* in) {
  const int bits = static_cast<int>(in->bits >> 1 >> (63 - size));
  const int below_zero = static_cast<int>(~static_cast<int64_t>(in->bits) >> 63);
  in->consume(size);
  return bits + (below_zero & (1 - (1 << size)));
}

// The DC difference; needs 27 bits.
inline bool read_dc(const HuffmanTable& table, Reader* in, int* difference) {
  const Lookup entry = table.lookup[in->peek(kLookupBits)];
  uint32_t size = entry >> 8;
  if (__builtin_expect((entry & 0xFF) != 0, 1)) {
    in->consume(entry);
  } else {
    const int symbol = read_symbol(table, in);
    if (symbol < 0 || symbol > 11) return false;
    size = static_cast<uint32_t>(symbol);
  }
  *difference = read_value(size, in);
  return true;
}

// A symbol that the lookup doesn't hold, at position k; needs 26 bits. Returns the position after
// it, 0 where it is invalid. End-of-block returns kEndOfBlock.
inline uint32_t read_long(const HuffmanTable& table, Lookup entry, Reader* in, uint32_t k,
                          int16_t* block) {
  int symbol = static_cast<int>(entry >> 16);
  if (__builtin_expect((entry & 0xFF) != 0, 1))
    in->consume(entry);
  else
    symbol = read_symbol(table, in);
  if (symbol == 0) return kEndOfBlock;
  const uint32_t run = static_cast<uint32_t>(symbol) >> 4;
  const uint32_t size = static_cast<uint32_t>(symbol) & 15;
  if (symbol < 0 || size > 10 || (size == 0 && run != 15) || k + run > 63) return 0;
  const int value = read_value(size, in);
  block[kZigzag[k + run]] = static_cast<int16_t>(value);
  return k + run + 1;
}

// A run of blocks that is being decoded from one stream.
struct Run {
  Reader in;
  uint32_t k;                 // position in the block under way
  int16_t* block;             // its coefficients
  const HuffmanTable* table;  // for its AC coefficients

  const McuLayout* layout;
  int16_t* dc;  // predictors, by component
  int in_mcu;   // index of the block in its MCU
  uint8_t* extents;
  int left;  // blocks, the one under way included
  const uint8_t* end;

  void begin(const McuLayout& blocks_of_mcu, Stream* stream, const BlockRun& to) {
    in = {stream->data, stream->bits, stream->count};
    layout = &blocks_of_mcu;
    dc = stream->dc;
    in_mcu = 0;
    block = to.blocks->coefficient;
    extents = to.extents;
    left = to.mcus * blocks_of_mcu.blocks;
    end = stream->end;
  }
  void finish(Stream* stream) const {
    stream->data = in.data;
    stream->bits = in.bits;
    stream->count = in.count;
  }
};

// Reads the DC coefficient of the run's next block.
inline bool begin_block(Run* run) {
  const McuLayout::Block& each = run->layout->block[run->in_mcu];
  int difference;
  run->in.refill();
  if (!read_dc(*each.dc, &run->in, &difference)) return false;
  int16_t& dc = run->dc[each.component];
  dc = static_cast<int16_t>(dc + difference);
  run->block[0] = dc;
  run->table = each.ac;
  run->k = 1;
  return true;
}

enum class Step { kGoOn, kDone, kBad };

// Ends the block under way and begins the next.
inline Step end_block(Run* run, uint32_t extent) {
  if (run->in.data - (run->in.count >> 3) > run->end) return Step::kBad;
  *run->extents++ = static_cast<uint8_t>(extent);
  run->block += 64;
  if (++run->in_mcu == run->layout->blocks) run->in_mcu = 0;
  if (--run->left == 0) return Step::kDone;
  return begin_block(run) ? Step::kGoOn : Step::kBad;
}

// Takes one symbol, whatever it is. Needs 26 bits.
inline Step take_one(Run* run) {
  const Lookup entry = run->table->lookup[run->in.peek(kLookupBits)];
  const uint32_t advance = entry >> 8 & 0xFF;
  uint32_t next = run->k + advance;
  if (advance == kEndOfBlock) {
    next = kEndOfBlock;
    run->in.consume(entry);
  } else if (advance == kNotInTable) {
    next = read_long(*run->table, entry, &run->in, run->k, run->block);
  } else if (next <= 64) {
    run->block[kZigzag[next - 1]] = static_cast<int16_t>(entry >> 16);
    run->in.consume(entry);
  }
  if (next == kEndOfBlock) return end_block(run, run->k);
  if (next == 64) return end_block(run, 64);
  run->k = next;
  return next != 0 && next < 64 ? Step::kGoOn : Step::kBad;
}

// Takes a pair that moves past position 63: most often a coefficient and an end of block.
inline Step take_special(Run* run, PairLookup pair) {
  const auto advance = static_cast<uint32_t>(pair >> 16 & 0xFF);
  const uint32_t extent = run->k + (advance & (kEndOfBlock - 1));
  if (advance < kEndOfBlock || advance == kNotInTable || extent > 63) return take_one(run);
  if (extent != run->k) run->block[kZigzag[extent - 1]] = static_cast<int16_t>(pair >> 32);
  run->in.consume(static_cast<uint32_t>(pair));
  return end_block(run, extent);
}

constexpr int kLookupsPerRefill = 4;  // 3 of 10 bits, then at most 26: 56

// From the middle of a block to the end of the run.
inline bool decode_rest(Run* run) {
  Step step = Step::kGoOn;
  while (step == Step::kGoOn) {
    Reader in = run->in;
    uint32_t k = run->k;
    int16_t* const block = run->block;
    const PairLookup* const pairs = run->table->pairs;
    PairLookup pair;
    while (true) {
      in.refill();
      for (int i = 0; i < kLookupsPerRefill; ++i) {
        pair = pairs[in.peek(kLookupBits)];
        const uint32_t first = k + static_cast<uint32_t>(pair >> 8 & 0xFF);
        const uint32_t next = k + static_cast<uint32_t>(pair >> 16 & 0xFF);
        if (__builtin_expect(next > 63, 0)) goto special;
        block[kZigzag[first - 1]] = static_cast<int16_t>(pair >> 32);
        block[kZigzag[next - 1]] = static_cast<int16_t>(pair >> 48);
        in.consume(static_cast<uint32_t>(pair));
        k = next;
      }
    }
  special:
    run->in = in;
    run->k = k;
    step = take_special(run, pair);
  }
  return step == Step::kDone;
}

// One symbol of a block that is stepped over, at position k; needs 26 bits. Returns as read_long().
inline uint32_t skip_one(const HuffmanTable& table, Reader* in, uint32_t k) {
  const int symbol = read_symbol(table, in);
  if (symbol == 0) return kEndOfBlock;
  const uint32_t run = static_cast<uint32_t>(symbol) >> 4;
  const uint32_t size = static_cast<uint32_t>(symbol) & 15;
  if (symbol < 0 || size > 10 || (size == 0 && run != 15) || k + run > 63) return 0;
  in->consume(size);
  return k + run + 1;
}

inline bool skip_ac(const HuffmanTable& table, Reader* in) {
  uint32_t k = 1;
  while (true) {
    in->refill();
    for (int i = 0; i < 2; ++i) {  // 22 bits, then at most 26
      const uint32_t several = table.skip[in->peek(kSkipBits)];
      const uint32_t next = k + (several >> 8 & 0x7F);
      if (__builtin_expect(several == 0 || next > 63, 0)) {
        // Too long for the table, or the block may end within these symbols: one at a time.
        k = skip_one(table, in, k);
        if (k == kEndOfBlock || k == 64) return true;
        if (k == 0) return false;
        break;
      }
      in->consume(several);
      k = next;
      if ((several & 0x8000) != 0) return true;
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

bool decode(const McuLayout& layout, Stream* stream, const BlockRun& to) {
  Run run;
  run.begin(layout, stream, to);
  if (!begin_block(&run) || !decode_rest(&run)) return false;
  run.finish(stream);
  return true;
}

// The hot part of two runs side by side: each symbol waits for the one before it, so a second
// stream is nearly free.
Step decode_both(Run* first, Run* second) {
  Reader a = first->in, b = second->in;
  uint32_t a_k = first->k, b_k = second->k;
  int16_t* a_block = first->block;
  int16_t* b_block = second->block;
  const PairLookup* a_pairs = first->table->pairs;
  const PairLookup* b_pairs = second->table->pairs;
  Step step = Step::kGoOn;
  while (step == Step::kGoOn) {
    PairLookup pair;
    a.refill();
    b.refill();
    for (int i = 0; i < kLookupsPerRefill; ++i) {
      pair = a_pairs[a.peek(kLookupBits)];
      const uint32_t a_first = a_k + static_cast<uint32_t>(pair >> 8 & 0xFF);
      const uint32_t a_next = a_k + static_cast<uint32_t>(pair >> 16 & 0xFF);
      if (__builtin_expect(a_next > 63, 0)) goto special_a;
      a_block[kZigzag[a_first - 1]] = static_cast<int16_t>(pair >> 32);
      a_block[kZigzag[a_next - 1]] = static_cast<int16_t>(pair >> 48);
      a.consume(static_cast<uint32_t>(pair));
      a_k = a_next;

      pair = b_pairs[b.peek(kLookupBits)];
      const uint32_t b_first = b_k + static_cast<uint32_t>(pair >> 8 & 0xFF);
      const uint32_t b_next = b_k + static_cast<uint32_t>(pair >> 16 & 0xFF);
      if (__builtin_expect(b_next > 63, 0)) goto special_b;
      b_block[kZigzag[b_first - 1]] = static_cast<int16_t>(pair >> 32);
      b_block[kZigzag[b_next - 1]] = static_cast<int16_t>(pair >> 48);
      b.consume(static_cast<uint32_t>(pair));
      b_k = b_next;
    }
    continue;

  special_a:
    first->in = a;
    first->k = a_k;
    step = take_special(first, pair);
    a = first->in;
    a_k = first->k;
    a_block = first->block;
    a_pairs = first->table->pairs;
    continue;

  special_b:
    second->in = b;
    second->k = b_k;
    step = take_special(second, pair);
    b = second->in;
    b_k = second->k;
    b_block = second->block;
    b_pairs = second->table->pairs;
  }
  first->in = a;
  first->k = a_k;
  second->in = b;
  second->k = b_k;
  return step;
}

bool decode_two(const McuLayout& layout, Stream* const streams[2], const BlockRun to[2]) {
  Run runs[2];
  for (int i = 0; i < 2; ++i) {
    runs[i].begin(layout, streams[i], to[i]);
    if (!begin_block(&runs[i])) return false;
  }
  if (decode_both(&runs[0], &runs[1]) == Step::kBad) return false;
  for (int i = 0; i < 2; ++i) {
    if (runs[i].left > 0 && !decode_rest(&runs[i])) return false;
    runs[i].finish(streams[i]);
  }
  return true;
}

}  // namespace
}  // namespace headrace::jpeg::own
