// Lossless transcoding: the same coefficients, so the same pixels, as a baseline file that is
// smaller or has restart markers for crops to start at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../status.h"

namespace headrace::jpeg {

struct TranscodeOptions {
  static constexpr int kLargestDivisor = -1;

  // MCUs from one restart marker to the next, at most 65535; 0: no markers. kLargestDivisor: the
  // largest number up to 4 that divides the MCUs of a row, which is what crops want.
  int restart_interval = kLargestDivisor;
  // Huffman tables made for this file: about 4 % smaller, and twice the time.
  bool optimize = true;
  // All APPn and COM segments, in order. Without, only JFIF and Adobe stay: they say what the
  // colours mean.
  bool copy_markers = true;
};

// Takes every JPEG that libjpeg reads: progressive, arithmetic, any sampling, 1 to 4 components.
// What follows the image's end is dropped. `out` is empty unless kOk; kCorrupt where libjpeg warns:
// it would hide the damage, and nobody would see it again.
Code transcode(const uint8_t* data, size_t size, const TranscodeOptions& options,
               std::vector<uint8_t>* out);

}  // namespace headrace::jpeg
