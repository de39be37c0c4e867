// The image data of a PNG that isn't interlaced: inflated at once by libdeflate, rows unfiltered as
// they are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../image.h"
#include "../status.h"
#include "png_file.h"

namespace headrace::png {

// Keeps its memory from file to file; one instance serves one thread.
class ImageData {
 public:
  ImageData();
  ~ImageData();
  ImageData(const ImageData&) = delete;
  ImageData& operator=(const ImageData&) = delete;

  // Inflates all image data of a file. kCorrupt: they are anything but as many rows as the header
  // says, each with a filter that there is, and their right checksum.
  Code open(const uint8_t* data, const Header& header);

  // Undoes the filters of `count` rows from `first` on, each as far as its first `bytes` bytes.
  // To be called once after open().
  void unfilter(int first, int count, size_t bytes);

  // As in the PNG specification, 7.2: pixels of less than 8 bits are packed.
  const uint8_t* row(int y) const { return rows_ + static_cast<size_t>(y) * stride_ + 1; }

 private:
  struct Library;

  // Where the compressed data are in one piece; nullptr: memory is short.
  const uint8_t* joined(const uint8_t* data, const Header& header, size_t* size);

  std::unique_ptr<Library> library_;
  Buffer joined_;
  Buffer memory_;
  uint8_t* rows_ = nullptr;  // of the first row's filter
  size_t stride_ = 0;        // bytes of a row and its filter
  int height_ = 0;
  int pixel_ = 0;  // bytes of a pixel, at least 1
};

std::string libdeflate_version();

}  // namespace headrace::png
