// Finds the way through a file's entropy-coded data: where to start for an MCU, and how to get
// there, with entry points, with restart markers, or with neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../image.h"
#include "../status.h"
#include "decoder.h"
#include "entry_points.h"
#include "own_entropy.h"

namespace headrace::jpeg::own {

// Copies entropy-coded bytes without their stuffing, up to `size` of them or up to a marker.
struct Unstuffed {
  size_t consumed;  // input bytes; data[consumed] is a marker's 0xFF where it is less than `size`
  size_t written;
};
Unstuffed unstuff(const uint8_t* data, size_t size, uint8_t* out);

// All data of a scan without restart markers, which the end of the image must follow, into `bytes`,
// from whose start on the stream reads.
Code open_whole(const File& file, Buffer* bytes, Stream* stream);

class Scan {
 public:
  static constexpr int kLanes = 2;  // streams that can be under way at the same time

  // `past_mcu`: one past the last MCU, in the order of the scan, that will be asked for.
  Code open(const File& file, const McuLayout& layout, const EntropyKernels& kernels,
            int mcus_per_row, int mcu_rows, int past_mcu);

  // Two rows can be decoded side by side, each in its own lane, without stepping over much more
  // than one after the other would.
  bool has_lanes() const {
    return mode_ == Mode::kEntries || (mode_ == Mode::kRestart && interval_ <= mcus_per_row_);
  }

  // An index is under way: what fails may succeed without it.
  bool uses_entries() const { return mode_ == Mode::kEntries; }

  // Brings the lane's stream to the MCU `column` of `row`; MCUs up to `past_column` of that row
  // will be wanted. *run says how many of them can be decoded before seek() must be called again.
  // The caller reports what it has decoded by advance().
  Code seek(int lane, int row, int column, int past_column, int* run);

  Stream* stream(int lane) { return &lanes_[lane].stream; }
  void advance(int lane, int mcus) { lanes_[lane].mcu += mcus; }

 private:
  enum class Mode { kSequential, kRestart, kEntries };

  struct Lane {
    Stream stream;
    int mcu = -1;      // the stream's next one; -1: none
    int segment = -1;  // restart segment that the stream is in
    Buffer bytes;
  };

  // Puts the bytes [begin, end) of the file into the lane.
  Code load(Lane* lane, size_t begin, size_t end, uint32_t bit);
  Code skip_to(Lane* lane, int mcu);
  Code find_segments(int count, int total);
  Code seek_segment(Lane* lane, int mcu);
  Code seek_entry(Lane* lane, int row, int column, int past_column);

  const File* file_ = nullptr;
  const McuLayout* layout_ = nullptr;
  const EntropyKernels* kernels_ = nullptr;
  Mode mode_ = Mode::kSequential;
  int mcus_per_row_ = 0;
  int mcu_rows_ = 0;
  int interval_ = 0;
  EntryIndex index_;
  std::vector<size_t> segments_;  // begin and end of each restart segment's bytes
  Lane lanes_[kLanes];
};

}  // namespace headrace::jpeg::own
