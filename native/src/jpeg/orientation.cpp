#include "orientation.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace headrace::jpeg {
namespace {

constexpr uint8_t kApp1 = 0xE1;
constexpr std::string_view kExif("Exif\0\0", 6);
constexpr std::string_view kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
constexpr int kTag = 0x0112;
constexpr int kShort = 3;

// What a file says of its orientation.
struct Found {
  int value = 0;  // of the EXIF tag; 0: none
  bool has_exif = false;
  bool unclear = false;
  bool in_xmp = false;
};

// A TIFF file: numbers at places that have been checked.
class Tiff {
 public:
  explicit Tiff(std::string_view data) : data_(data), big_(data[0] == 'M') {}

  uint32_t number(size_t at, int size) const {
    uint32_t value = 0;
    for (int i = 0; i < size; ++i) {
      const auto byte = static_cast<uint8_t>(data_[at + static_cast<size_t>(i)]);
      value |= uint32_t{byte} << 8 * (big_ ? size - 1 - i : i);
    }
    return value;
  }

 private:
  std::string_view data_;
  bool big_;
};

void read_exif(std::string_view data, Found* found) {
  // Pillow joins several segments; nobody writes them.
  found->unclear |= found->has_exif;
  found->has_exif = true;
  const std::string_view start = data.substr(0, 4);
  const bool known = start == std::string_view("II*\0", 4) || start == std::string_view("MM\0*", 4);
  if (data.size() < 8 || !known) {
    found->unclear = true;
    return;
  }
  const Tiff tiff(data);
  const size_t directory = tiff.number(4, 4);
  if (directory < 8 || directory > data.size() - 2) {
    found->unclear = true;
    return;
  }
  const size_t count = tiff.number(directory, 2), first = directory + 2;
  // Four bytes more say where the next directory is.
  if (12 * count + 4 > data.size() - first) {
    found->unclear = true;
    return;
  }
  for (size_t at = first; at < first + 12 * count; at += 12) {
    if (tiff.number(at, 2) != kTag) continue;
    found->unclear |=
        found->value != 0 || tiff.number(at + 2, 2) != kShort || tiff.number(at + 4, 4) != 1;
    found->value = static_cast<int>(tiff.number(at + 8, 2));
    if (found->value == 0) found->value = 1;  // as every other number that means nothing
  }
}

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

}  // namespace

bool read_orientation(const File& file, Orientation* orientation) {
  Found found;
  // As parse_header() went through the same segments.
  for (size_t at = 2; at < file.header.sos_offset;) {
    while (file.data[at] == 0xFF) ++at;
    const uint8_t marker = file.data[at++];
    if (stands_alone(marker)) continue;
    const size_t length = static_cast<size_t>(file.data[at] << 8 | file.data[at + 1]);
    const std::string_view segment(reinterpret_cast<const char*>(file.data) + at + 2, length - 2);
    at += length;
    if (marker != kApp1) continue;
    if (starts_with(segment, kExif)) read_exif(segment.substr(kExif.size()), &found);
    found.in_xmp |=
        starts_with(segment, kXmp) && segment.find("tiff:Orientation") != std::string_view::npos;
  }
  if (found.unclear || (found.value == 0 && found.in_xmp)) return false;
  const int value = found.value;
  orientation->transposed = value >= 5 && value <= 8;
  orientation->mirror_x = value == 2 || value == 3 || value == 7 || value == 8;
  orientation->mirror_y = value == 3 || value == 4 || value == 6 || value == 7;
  return true;
}

Size upright_size(Size stored, const Orientation& orientation) {
  return orientation.transposed ? Size{stored.height, stored.width} : stored;
}

Rect in_file(Size stored_size, const Orientation& orientation, const Rect& rect) {
  Rect stored = orientation.transposed ? Rect{rect.y, rect.x, rect.h, rect.w} : rect;
  if (orientation.mirror_x) stored.x = stored_size.width - stored.x - stored.w;
  if (orientation.mirror_y) stored.y = stored_size.height - stored.y - stored.h;
  return stored;
}

void turn_upright(const ImageView& stored, const Orientation& orientation, const ImageView& out) {
  const auto row = static_cast<ptrdiff_t>(stored.stride);
  const ptrdiff_t right = orientation.mirror_x ? -4 : 4;
  const ptrdiff_t down = orientation.mirror_y ? -row : row;
  const uint8_t* first = stored.row(orientation.mirror_y ? stored.height - 1 : 0);
  if (orientation.mirror_x) first += ptrdiff_t{4} * (stored.width - 1);
  const ptrdiff_t along = orientation.transposed ? down : right;
  const ptrdiff_t across = orientation.transposed ? right : down;
  for (int y = 0; y < out.height; ++y, first += across) {
    const uint8_t* from = first;
    uint8_t* to = out.row(y);
    for (int x = 0; x < out.width; ++x, from += along, to += 4) std::memcpy(to, from, 4);
  }
}

}  // namespace headrace::jpeg
