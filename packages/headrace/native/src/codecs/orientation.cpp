#include "orientation.h"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr int kTag = 0x0112;
constexpr int kNoTag = 0xFFFF;  // at which torchcodec stops reading
constexpr int kShort = 3;

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

}  // namespace

void OrientationTags::add_exif(std::string_view data) {
  // Pillow joins several segments; nobody writes them.
  unclear_ |= has_exif_;
  has_exif_ = true;
  const std::string_view start = data.substr(0, 4);
  const bool known = start == std::string_view("II*\0", 4) || start == std::string_view("MM\0*", 4);
  if (data.size() < 8 || !known) {
    unclear_ = true;
    return;
  }
  const Tiff tiff(data);
  const size_t directory = tiff.number(4, 4);
  if (directory < 8 || directory > data.size() - 2) {
    unclear_ = true;
    return;
  }
  const size_t count = tiff.number(directory, 2), first = directory + 2;
  // Four bytes more say where the next directory is.
  if (12 * count + 4 > data.size() - first) {
    unclear_ = true;
    return;
  }
  for (size_t at = first; at < first + 12 * count; at += 12) {
    unclear_ |= tiff.number(at, 2) == kNoTag;
    if (tiff.number(at, 2) != kTag) continue;
    unclear_ |= value_ != 0 || tiff.number(at + 2, 2) != kShort || tiff.number(at + 4, 4) != 1;
    value_ = static_cast<int>(tiff.number(at + 8, 2));
    if (value_ == 0) value_ = 1;  // as every other number that means nothing
  }
}

void OrientationTags::add_xmp(std::string_view data) {
  in_xmp_ |= data.find("tiff:Orientation") != std::string_view::npos;
}

bool OrientationTags::find(Orientation* orientation) const {
  if (unclear_ || (value_ == 0 && in_xmp_)) return false;
  orientation->transposed = value_ >= 5 && value_ <= 8;
  orientation->mirror_x = value_ == 2 || value_ == 3 || value_ == 7 || value_ == 8;
  orientation->mirror_y = value_ == 3 || value_ == 4 || value_ == 6 || value_ == 7;
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

}  // namespace headrace
