#include "header.h"

#include <algorithm>

namespace headrace::jpeg {
namespace {

constexpr uint8_t kSoi = 0xD8;
constexpr uint8_t kEoi = 0xD9;
constexpr uint8_t kSos = 0xDA;
constexpr uint8_t kDri = 0xDD;
constexpr uint8_t kApp0 = 0xE0;
constexpr uint8_t kApp14 = 0xEE;

// One marker segment: its payload, without marker and length.
struct Segment {
  const uint8_t* data;
  size_t size;

  int byte(size_t i) const { return data[i]; }
  int word(size_t i) const { return data[i] << 8 | data[i + 1]; }
};

// SOF0 to SOF15 but for DHT (C4), JPG (C8) and DAC (CC), which share their range.
bool is_sof(uint8_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

Code read_frame(const Segment& s, uint8_t marker, Header* header) {
  if (header->sof != 0 || s.size < 6) return Code::kCorrupt;
  header->sof = marker;
  header->arithmetic = marker >= 0xC9;
  header->precision = s.byte(0);
  header->height = s.word(1);
  header->width = s.word(3);
  header->components = s.byte(5);
  if (header->components < 1 || header->components > 4) return Code::kUnsupported;
  if (s.size != 6 + size_t{3} * static_cast<size_t>(header->components)) return Code::kCorrupt;
  // A height of 0 comes later, by a DNL marker: nobody writes those.
  if (header->width < 1 || header->height < 1) return Code::kUnsupported;
  for (int i = 0; i < header->components; ++i) {
    Component& c = header->component[i];
    const size_t at = 6 + size_t{3} * static_cast<size_t>(i);
    c.id = static_cast<uint8_t>(s.byte(at));
    c.h = static_cast<uint8_t>(s.byte(at + 1) >> 4);
    c.v = static_cast<uint8_t>(s.byte(at + 1) & 15);
    c.tq = static_cast<uint8_t>(s.byte(at + 2));
    if (c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 || c.tq > 3) return Code::kCorrupt;
  }
  return Code::kOk;
}

Code read_scan(const Segment& s, Header* header) {
  if (header->sof == 0 || s.size < 1) return Code::kCorrupt;
  const int count = s.byte(0);
  if (count < 1 || count > 4 || s.size != 4 + size_t{2} * static_cast<size_t>(count))
    return Code::kCorrupt;
  bool in_order = count == header->components;
  for (int i = 0; i < count; ++i) {
    const int id = s.byte(1 + size_t{2} * static_cast<size_t>(i));
    const int tables = s.byte(2 + size_t{2} * static_cast<size_t>(i));
    Component* end = header->component + header->components;
    Component* c =
        std::find_if(header->component, end, [id](const Component& each) { return each.id == id; });
    if (c == end) return Code::kCorrupt;
    c->td = static_cast<uint8_t>(tables >> 4);
    c->ta = static_cast<uint8_t>(tables & 15);
    in_order = in_order && c == header->component + i;
  }
  header->scan_ss = static_cast<uint8_t>(s.byte(s.size - 3));
  header->scan_se = static_cast<uint8_t>(s.byte(s.size - 2));
  header->scan_ahl = static_cast<uint8_t>(s.byte(s.size - 1));
  header->single_scan = in_order && (header->sof == 0xC0 || header->sof == 0xC1);
  return Code::kOk;
}

bool starts_with(const Segment& s, const char* text, size_t size) {
  return s.size >= size && std::equal(text, text + size, reinterpret_cast<const char*>(s.data));
}

Code read_segment(const Segment& s, uint8_t marker, Header* header) {
  if (is_sof(marker)) return read_frame(s, marker, header);
  if (marker == kDri) {
    if (s.size != 2) return Code::kCorrupt;
    header->restart_interval = s.word(0);
  } else if (marker == kApp0 && starts_with(s, "JFIF\0", 5) && s.size >= 14) {
    header->jfif = true;
  } else if (marker == kApp14 && starts_with(s, "Adobe", 5) && s.size >= 12) {
    header->adobe_transform = s.byte(11);
  }
  return Code::kOk;
}

}  // namespace

Code parse_header(const uint8_t* data, size_t size, Header* header) {
  *header = Header();
  if (size < 4 || data[0] != 0xFF || data[1] != kSoi || data[2] != 0xFF) return Code::kUnsupported;
  header->ends_with_eoi = data[size - 2] == 0xFF && data[size - 1] == kEoi;
  size_t at = 2;
  while (true) {
    const size_t start = at;
    if (at >= size || data[at] != 0xFF) return Code::kCorrupt;
    while (at < size && data[at] == 0xFF) ++at;  // any number of fill bytes
    if (at >= size) return Code::kCorrupt;
    const uint8_t marker = data[at++];
    if (stands_alone(marker)) continue;
    if (marker == 0 || marker == kSoi || marker == kEoi) return Code::kCorrupt;
    if (size - at < 2) return Code::kCorrupt;
    const size_t length = static_cast<size_t>(data[at] << 8 | data[at + 1]);
    if (length < 2 || length > size - at) return Code::kCorrupt;
    const Segment segment = {data + at + 2, length - 2};
    at += length;
    if (marker == kSos) {
      header->sos_offset = start;
      header->scan_offset = at;
      return read_scan(segment, header);
    }
    const Code code = read_segment(segment, marker, header);
    if (code != Code::kOk) return code;
  }
}

}  // namespace headrace::jpeg
