#include "render.h"

#include <cstring>

#include "geometry.h"
#include "jpeg/own_frame.h"
#include "resize/store.h"

namespace headrace {
namespace {

bool inside(const int32_t* rect, int width, int height) {
  return rect[0] >= 0 && rect[1] >= 0 && rect[2] >= 1 && rect[3] >= 1 && rect[2] <= width &&
         rect[3] <= height && rect[0] <= width - rect[2] && rect[1] <= height - rect[3];
}

}  // namespace

const char* check_render_job(const hr_render_job& job) {
  if (job.width < 1 || job.height < 1 || job.width > kMaxEdge || job.height > kMaxEdge)
    return "the size of a resized crop is out of range";
  if (job.filter < 0 || job.filter > 5) return "the filter is unknown";
  if (!inside(job.crop, kMaxEdge, kMaxEdge)) return "the crop is empty or out of range";
  if (!inside(job.window, job.width, job.height))
    return "the window is empty or leaves the resized crop";
  return nullptr;
}

Renderer::Renderer() {
  for (const jpeg::DecoderVariant& variant : jpeg::decoder_variants())
    decoders_.push_back(variant.make());
}

Code Renderer::check(const uint8_t* data, size_t size) {
  jpeg::Header header;
  const Code code = jpeg::parse_header(data, size, &header);
  if (code != Code::kOk) return code;
  jpeg::own::Frame frame;
  if (!jpeg::own::make_frame(header, &frame) || !header.ends_with_eoi) return Code::kUnsupported;
  if (tables_.read(data, header) != Code::kOk) return Code::kCorrupt;
  const uint8_t* at = data + header.scan_offset;
  const uint8_t* const end = data + size - 2;  // the end marker
  while (at < end) {
    at = static_cast<const uint8_t*>(std::memchr(at, 0xFF, static_cast<size_t>(end - at)));
    if (at == nullptr) return Code::kOk;
    const bool restart = header.restart_interval > 0 && at[1] >= 0xD0 && at[1] <= 0xD7;
    if (at[1] != 0 && !restart) return Code::kCorrupt;
    at += 2;
  }
  return at == end ? Code::kOk : Code::kCorrupt;
}

Code Renderer::render(const uint8_t* data, size_t size, const hr_render_job& job, uint8_t* rgb) {
  uint8_t* const padded = padded_.reserve(size);
  if (padded == nullptr) return Code::kOutOfMemory;
  std::memcpy(padded, data, size);
  jpeg::File file;
  file.data = padded;
  file.size = size;
  Code code = jpeg::parse_header(padded, size, &file.header);
  if (code != Code::kOk) return code;
  if (!inside(job.crop, file.header.width, file.header.height)) return Code::kInvalidArgument;

  ResizeJob resize;
  resize.in_w = job.crop[2];
  resize.in_h = job.crop[3];
  resize.out_w = job.width;
  resize.out_h = job.height;
  resize.filter = static_cast<Filter>(job.filter);
  resize.window = {job.window[0], job.window[1], job.window[2], job.window[3]};
  resize.flip_x = job.flip_x != 0;
  resize.flip_y = job.flip_y != 0;
  const PillowRules rules = {job.pillow_vertical_first != 0};
  const Rect footprint = resize_footprint(resize, rules);
  const Rect rect = {job.crop[0] + footprint.x, job.crop[1] + footprint.y, footprint.w,
                     footprint.h};
  const ImageView pixels = decoded_.reshape(rect.w, rect.h);
  const ImageView window = resized_.reshape(resize.window.w, resize.window.h);
  if (pixels.data == nullptr || window.data == nullptr) return Code::kOutOfMemory;

  code = Code::kUnsupported;
  for (size_t i = 0; i < decoders_.size() && code != Code::kOk; ++i) {
    if ((job.decoders >> i & 1u) == 0 || !decoders_[i]->supports(file)) continue;
    code = decoders_[i]->decode(file, rect, pixels);
    if (code == Code::kOutOfMemory) return code;
  }
  if (code != Code::kOk) return code;
  code = resizer_.run(resize, rules, footprint, pixels, window);
  if (code != Code::kOk) return code;
  store_rows(window, {rgb, window.height, window.width, Dtype::kUint8, Layout::kNhwc, nullptr}, 0,
             0);
  return Code::kOk;
}

}  // namespace headrace
