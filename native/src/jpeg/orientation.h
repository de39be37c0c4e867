// Which way up an image is: EXIF's orientation tag, as Pillow's exif_transpose() follows it.
#pragma once

#include "../geometry.h"
#include "../image.h"
#include "decoder.h"

namespace headrace::jpeg {

// How a file's image is turned to stand upright: its rows become columns, and it is mirrored first.
struct Orientation {
  bool transposed = false;
  bool mirror_x = false;  // of the file's columns
  bool mirror_y = false;  // of the file's rows

  bool as_stored() const { return !transposed && !mirror_x && !mirror_y; }
};

// False where the file's metadata isn't plain enough to be sure of what Pillow makes of it.
bool read_orientation(const File& file, Orientation* orientation);

// Of the upright image, whose size in the file is `stored`.
Size upright_size(Size stored, const Orientation& orientation);

// The same pixels in the file's image, of stored_size, as `rect` in the upright one.
Rect in_file(Size stored_size, const Orientation& orientation, const Rect& rect);

// `out`, whose pixels are those of `stored` turned.
void turn_upright(const ImageView& stored, const Orientation& orientation, const ImageView& out);

}  // namespace headrace::jpeg
