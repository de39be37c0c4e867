// Which way up an image is: EXIF's orientation tag, as Pillow's exif_transpose() and torchcodec
// follow it.
#pragma once

#include <string_view>

#include "../geometry.h"
#include "../image.h"

namespace headrace {

// How a file's image is turned to stand upright: its rows become columns, and it is mirrored first.
struct Orientation {
  bool transposed = false;
  bool mirror_x = false;  // of the file's columns
  bool mirror_y = false;  // of the file's rows

  bool as_stored() const { return !transposed && !mirror_x && !mirror_y; }
};

// What a file's metadata say of its orientation, collected piece by piece.
class OrientationTags {
 public:
  // EXIF data: a TIFF file.
  void add_exif(std::string_view data);
  // XMP data, which count where EXIF says nothing.
  void add_xmp(std::string_view data);
  // Metadata that an orientation may be taken from, and that aren't read here.
  void add_unknown() { unclear_ = true; }

  // False where the metadata aren't plain enough to be sure that all make the same of them.
  bool find(Orientation* orientation) const;

 private:
  int value_ = 0;  // of the EXIF tag; 0: none
  bool has_exif_ = false;
  bool unclear_ = false;
  bool in_xmp_ = false;
};

// Of the upright image, whose size in the file is `stored`.
Size upright_size(Size stored, const Orientation& orientation);

// The same pixels in the file's image, of stored_size, as `rect` in the upright one.
Rect in_file(Size stored_size, const Orientation& orientation, const Rect& rect);

// `out`, whose pixels are those of `stored` turned.
void turn_upright(const ImageView& stored, const Orientation& orientation, const ImageView& out);

}  // namespace headrace
