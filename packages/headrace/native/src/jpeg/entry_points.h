// Places in a JPEG's entropy-coded data where decoding can start, kept beside the unchanged file.
//
// Layout of an index, little-endian:
//   0   'H', 'J', version, components (1 or 3)
//   4   uint32  size of the file
//   8   uint32  checksum of the file's bytes before the entropy-coded data
//   12  uint32  MCUs from one entry to the next; every row of MCUs begins with one
//   16  uint32  checksum of all the rest of the index
//   20  the entries, row by row, each of 4 + 2 × components bytes:
//       uint32  position in the entropy-coded data as it lies in the file, stuffing included:
//               8 × byte + bit, bit 0 being the highest
//       int16   DC predictor of each component
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../status.h"
#include "decoder.h"

namespace headrace::jpeg {

// Makes the index of `file` by one pass over its data. every_n_mcus 0: the smallest distance, at
// least 4 MCUs, that keeps the index within 2 % of the file. kUnsupported: a file that the own
// decoder does not take, one that has restart markers and needs no index, or (with 0) one so small
// that not even an entry per row of MCUs stays within 2 %. kCorrupt: any oddity in the data. `out`
// is empty unless kOk.
Code build_entry_points(const File& file, int every_n_mcus, std::vector<uint8_t>* out);

// Reads an index, which may be anything: every answer is checked against the file.
class EntryIndex {
 public:
  struct Entry {
    size_t offset = 0;  // in the file
    uint32_t bit = 0;
    int16_t dc[3] = {};
  };

  // False where the index is none, is malformed, or belongs to another file.
  bool open(const File& file, int mcus_per_row, int mcu_rows);

  int distance() const { return distance_; }

  // Entry `i` of a row of MCUs: that of MCU i × distance(). One past the row's last is the next
  // row's first; past the image's last it is where the file ends.
  Entry entry(int row, int i) const;

 private:
  const uint8_t* entries_ = nullptr;
  size_t entry_size_ = 0;
  size_t scan_offset_ = 0;
  size_t scan_size_ = 0;
  int distance_ = 0;
  int per_row_ = 0;
  int rows_ = 0;
  int components_ = 0;
};

}  // namespace headrace::jpeg
