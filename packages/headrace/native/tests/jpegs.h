// JPEGs made on the spot, by libjpeg.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// After <cstdio>, which it needs and does not include.
#include <jpeglib.h>

// What `data` of hr_source and of the single operations must be readable for.
constexpr size_t kReadablePadding = 256;

struct JpegKind {
  int components = 3;
  int restart_interval = 0;
  bool progressive = false;
};

// A JPEG of width × height whose every pixel depends on `seed`.
inline std::vector<uint8_t> make_jpeg(int width, int height, int seed, const JpegKind& kind = {}) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = kind.components;
  info.in_color_space = kind.components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  info.restart_interval = static_cast<unsigned>(kind.restart_interval);
  if (kind.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row(static_cast<size_t>(kind.components) * static_cast<size_t>(width));
  while (info.next_scanline < info.image_height) {
    for (size_t x = 0; x < row.size(); ++x) {
      row[x] = static_cast<uint8_t>(x * static_cast<size_t>(seed + 3) + info.next_scanline * 5);
    }
    JSAMPROW rows = row.data();
    jpeg_write_scanlines(&info, &rows, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::vector<uint8_t> jpeg(memory, memory + size);
  std::free(memory);
  return jpeg;
}
