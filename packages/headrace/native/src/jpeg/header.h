// A JPEG file's header: what every decoder must know before the first entropy-coded byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../status.h"

namespace headrace::jpeg {

struct Component {
  uint8_t id = 0;
  uint8_t h = 0;   // horizontal sampling factor, 1..4
  uint8_t v = 0;   // vertical sampling factor, 1..4
  uint8_t tq = 0;  // quantisation table
  uint8_t td = 0;  // DC Huffman table (first scan)
  uint8_t ta = 0;  // AC Huffman table (first scan)
};

struct Header {
  int width = 0;
  int height = 0;
  int components = 0;  // 1..4
  Component component[4];
  int precision = 8;
  uint8_t sof = 0;  // marker byte: 0xC0 baseline, 0xC1 extended, 0xC2 progressive, …
  bool arithmetic = false;
  int restart_interval = 0;  // in MCUs; 0: none
  bool jfif = false;
  int adobe_transform = -1;  // -1: no Adobe marker
  bool single_scan =
      false;  // the first scan holds all components (0xC0/0xC1: nothing else to come)
  uint8_t scan_ss = 0, scan_se = 0,
          scan_ahl = 0;    // spectral selection and approximation of the first scan
  size_t sos_offset = 0;   // of the first SOS marker's 0xFF
  size_t scan_offset = 0;  // of the first entropy-coded byte
  bool ends_with_eoi =
      false;  // the file's last two bytes are an EOI marker: not truncated at its end
};

// Whether a marker has no segment, and so no length, behind it.
inline bool stands_alone(uint8_t marker) {
  return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7);
}

// Reads markers up to and including the first SOS. kUnsupported where `data` does not start as a
// JPEG, kCorrupt where a segment is malformed or the data ends first. Never reads past data + size.
Code parse_header(const uint8_t* data, size_t size, Header* header);

// Calls visit(marker, content, size) with each segment of a file up to `sos_offset`, through which
// parse_header() has gone; false where one of the calls is.
template <typename Visit>
bool for_each_segment(const uint8_t* data, size_t sos_offset, const Visit& visit) {
  for (size_t at = 2; at < sos_offset;) {
    while (data[at] == 0xFF) ++at;
    const uint8_t marker = data[at++];
    if (stands_alone(marker)) continue;
    const size_t length = static_cast<size_t>(data[at] << 8 | data[at + 1]);
    if (!visit(marker, data + at + 2, length - 2)) return false;
    at += length;
  }
  return true;
}

}  // namespace headrace::jpeg
