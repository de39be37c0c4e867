#include "sample.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace headrace {
namespace {

// Adds the time of a scope to one stage.
class StageTimer {
 public:
  StageTimer(Tally* tally, Stage stage) : tally_(tally), stage_(stage), start_(now_nanoseconds()) {}
  ~StageTimer() { tally_->nanoseconds[stage_] += now_nanoseconds() - start_; }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  Tally* tally_;
  Stage stage_;
  int64_t start_;
};

void mirror_columns(const ImageView& image) {
  for (int y = 0; y < image.height; ++y) {
    auto* row = reinterpret_cast<uint32_t*>(image.row(y));
    std::reverse(row, row + image.width);
  }
}

void mirror_rows(const ImageView& image) {
  for (int top = 0, bottom = image.height - 1; top < bottom; ++top, --bottom) {
    std::swap_ranges(image.row(top), image.row(top) + size_t{4} * image.width, image.row(bottom));
  }
}

void fill_pixels(const ImageView& image, const uint8_t* rgb) {
  uint32_t pixel = 0;
  std::memcpy(&pixel, rgb, 3);
  for (int y = 0; y < image.height; ++y) {
    std::fill_n(reinterpret_cast<uint32_t*>(image.row(y)), image.width, pixel);
  }
}

// The same pixels in the source image's coordinates: `rect` is in those of the crop as it will be
// resized.
Rect in_source(const Geometry& geometry, const Rect& rect) {
  const Rect& crop = geometry.crop;
  const int x = geometry.mirror_x ? crop.w - rect.x - rect.w : rect.x;
  const int y = geometry.mirror_y ? crop.h - rect.y - rect.h : rect.y;
  return {crop.x + x, crop.y + y, rect.w, rect.h};
}

SampleOutput output_of(const hr_request& request, int64_t position) {
  const hr_pipeline& p = *request.pipeline;
  const size_t bytes = size_t{3} * static_cast<size_t>(p.height) * static_cast<size_t>(p.width) *
                       dtype_size(static_cast<Dtype>(p.dtype));
  return output_at(p,
                   static_cast<uint8_t*>(request.output) + bytes * static_cast<size_t>(position));
}

jpeg::EntryPoints entries_of(const hr_source& source, int64_t index, const Bytes& bytes,
                             Tally* tally) {
  if (source.entries == nullptr) return {};
  const uint64_t begin = source.entry_begins[index], end = source.entry_ends[index];
  const int64_t mtime_ns = source.entry_mtimes == nullptr ? 0 : source.entry_mtimes[index];
  // An index that was damaged may say anything.
  if (begin >= end || end > source.entries_size) return {};
  if (mtime_ns != bytes.mtime_ns) {
    ++tally->stale_entries;
    return {};
  }
  return {source.entries + begin, static_cast<size_t>(end - begin)};
}

}  // namespace

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

SampleOutput output_at(const hr_pipeline& pipeline, void* data) {
  return {data,
          pipeline.height,
          pipeline.width,
          static_cast<Dtype>(pipeline.dtype),
          static_cast<Layout>(pipeline.layout),
          pipeline.table};
}

SampleMaker::SampleMaker() {
  for (const jpeg::DecoderVariant& variant : jpeg::decoder_variants())
    decoders_.push_back(variant.make());
}

void SampleMaker::make(const hr_request& request, int64_t position, const Bytes& bytes,
                       Tally* tally) {
  hr_status status = {};
  status.decoder = -1;
  const Code code = produce(request, position, bytes, &status, tally);
  status.code = static_cast<int32_t>(code);
  ++(code == Code::kOk ? tally->samples : tally->failed);
  request.statuses[position] = status;
}

Code SampleMaker::produce(const hr_request& request, int64_t position, const Bytes& bytes,
                          hr_status* status, Tally* tally) {
  const hr_pipeline& pipeline = *request.pipeline;
  const int64_t index = request.indices[position];
  const PillowRules rules = {pipeline.pillow_vertical_first != 0};
  jpeg::File file;
  Geometry geometry;
  Rect footprint;
  {
    const StageTimer timer(tally, kParse);
    file.data = bytes.data;
    file.size = bytes.size;
    Code code = jpeg::parse_header(bytes.data, bytes.size, &file.header);
    if (code != Code::kOk) return code;
    const int width = status->width = file.header.width;
    const int height = status->height = file.header.height;
    if (width < 1 || height < 1) return Code::kCorrupt;
    if (pipeline.max_pixels > 0 && int64_t{width} * height > pipeline.max_pixels)
      return Code::kTooLarge;
    file.entries = entries_of(*request.source, index, bytes, tally);
    draws_.resize(static_cast<size_t>(pipeline.step_count));
    const int64_t occurrence = request.occurrences == nullptr ? 0 : request.occurrences[position];
    const RandomKey key = {request.seed, request.epoch, static_cast<uint64_t>(index),
                           static_cast<uint64_t>(occurrence)};
    code = draw_steps(pipeline, key, width, height, draws_.data());
    if (code == Code::kOk) code = fold_steps(pipeline, draws_.data(), width, height, &geometry);
    if (code != Code::kOk) return code;
    footprint = resize_footprint(geometry.job, rules);
  }
  Code code = decode(pipeline, file, in_source(geometry, footprint), status, tally);
  if (code != Code::kOk) return code;
  {
    const StageTimer timer(tally, kResize);
    if (geometry.mirror_x) mirror_columns(pixels_);
    if (geometry.mirror_y) mirror_rows(pixels_);
    code = render(geometry, rules, footprint, pipeline);
    if (code != Code::kOk) return code;
  }
  const StageTimer timer(tally, kStore);
  store_rows(rendered_, output_of(request, position), 0, 0);
  return Code::kOk;
}

Code SampleMaker::decode(const hr_pipeline& pipeline, const jpeg::File& file, const Rect& rect,
                         hr_status* status, Tally* tally) {
  const StageTimer timer(tally, kDecode);
  pixels_ = decoded_.reshape(rect.w, rect.h);
  if (pixels_.data == nullptr) return Code::kOutOfMemory;
  Code code = Code::kUnsupported;
  for (size_t i = 0; i < decoders_.size(); ++i) {
    if ((pipeline.decoders >> i & 1u) == 0 || !decoders_[i]->supports(file)) continue;
    code = decoders_[i]->decode(file, rect, pixels_);
    if (code == Code::kOk) {
      status->decoder = static_cast<int32_t>(i);
      ++tally->decoded_by[i];
      tally->pixels_decoded += int64_t{rect.w} * rect.h;
      return code;
    }
    if (code == Code::kOutOfMemory) return code;
  }
  return code;
}

Code SampleMaker::render(const Geometry& geometry, const PillowRules& rules, const Rect& footprint,
                         const hr_pipeline& pipeline) {
  rendered_ = output_.reshape(pipeline.width, pipeline.height);
  if (rendered_.data == nullptr) return Code::kOutOfMemory;
  if (!geometry.padded) return resizer_.run(geometry.job, rules, footprint, pixels_, rendered_);
  // Apart, because kernels may write a few pixels past the rows they are given.
  const Rect& window = geometry.job.window;
  const ImageView resized = resized_.reshape(window.w, window.h);
  if (resized.data == nullptr) return Code::kOutOfMemory;
  const Code code = resizer_.run(geometry.job, rules, footprint, pixels_, resized);
  if (code != Code::kOk) return code;
  if (geometry.padding_mode != HR_CONSTANT) return gather_padded(geometry, resized, rendered_);
  fill_pixels(rendered_, geometry.fill);
  for (int y = 0; y < window.h; ++y) {
    std::memcpy(rendered_.row(geometry.place.y + y) + size_t{4} * geometry.place.x, resized.row(y),
                size_t{4} * window.w);
  }
  return Code::kOk;
}

Code SampleMaker::gather_padded(const Geometry& geometry, const ImageView& resized,
                                const ImageView& out) {
  for (int y = 0; y < out.height; ++y) {
    const int from_top = geometry.flip_y ? out.height - 1 - y : y;
    const int source_y =
        padded_index(geometry.plane.y + from_top, resized.height, geometry.padding_mode);
    const auto* from = reinterpret_cast<const uint32_t*>(resized.row(source_y));
    auto* to = reinterpret_cast<uint32_t*>(out.row(y));
    for (int x = 0; x < out.width; ++x) {
      const int from_left = geometry.flip_x ? out.width - 1 - x : x;
      to[x] =
          from[padded_index(geometry.plane.x + from_left, resized.width, geometry.padding_mode)];
    }
  }
  return Code::kOk;
}

}  // namespace headrace
