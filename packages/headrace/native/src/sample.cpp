#include "sample.h"

#include <algorithm>
#include <chrono>

#include "ops/kernels.h"
#include "pixels.h"

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

size_t bytes_of(const hr_pipeline& p) {
  return static_cast<size_t>(p.channels) * static_cast<size_t>(p.height) *
         static_cast<size_t>(p.width) * dtype_size(static_cast<Dtype>(p.dtype));
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

// Opens the sample's file. Of an image that is decoded already, only the size is set.
Code open_sample(const hr_request& request, int64_t index, const Bytes& bytes,
                 ImageDecoder* decoder, Size* size, Tally* tally) {
  const hr_source& source = *request.source;
  if (source.height != 0) {
    *size = {source.width, source.height};
    return Code::kOk;
  }
  const Code code =
      decoder->open({bytes.data, bytes.size, entries_of(source, index, bytes, tally)});
  *size = decoder->size();
  if (code != Code::kOk) return code;
  const int64_t most = request.pipeline->max_pixels;
  return most > 0 && int64_t{size->width} * size->height > most ? Code::kTooLarge : Code::kOk;
}

}  // namespace

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void store_sample(const ConstImageView& rendered, const hr_pipeline& pipeline, void* data) {
  const int views = std::max(1, pipeline.views), height = pipeline.height / views;
  SampleOutput out = {data,
                      height,
                      pipeline.width,
                      static_cast<Dtype>(pipeline.dtype),
                      static_cast<Layout>(pipeline.layout),
                      pipeline.table,
                      pipeline.channels};
  for (int view = 0; view < views; ++view) {
    store_rows(part_of(rendered, {0, view * height, rendered.width, height}), out, 0, 0);
    out.data = static_cast<uint8_t*>(out.data) + bytes_of(pipeline) / static_cast<size_t>(views);
  }
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
  Code code = prepare(request, position, bytes, status, tally);
  if (code == Code::kOk) code = load(pipeline, *request.source, bytes, status, tally);
  if (code != Code::kOk) return code;
  ImageView rendered;
  {
    const StageTimer timer(tally, kResize);
    code = runner_.run(program_, pipeline, draws_.data(), &rendered);
    if (code != Code::kOk) return code;
  }
  const StageTimer timer(tally, kStore);
  store_sample(
      rendered, pipeline,
      static_cast<uint8_t*>(request.output) + bytes_of(pipeline) * static_cast<size_t>(position));
  return Code::kOk;
}

Code SampleMaker::prepare(const hr_request& request, int64_t position, const Bytes& bytes,
                          hr_status* status, Tally* tally) {
  const StageTimer timer(tally, kParse);
  const hr_pipeline& pipeline = *request.pipeline;
  const int64_t index = request.indices[position];
  Code code = open_sample(request, index, bytes, &decoder_, &stored_size_, tally);
  orientation_ = Orientation();
  const bool is_file = request.source->height == 0;
  const bool upright = pipeline.upright != 0 && is_file;
  if (code == Code::kOk && upright && !decoder_.read_orientation(&orientation_))
    return Code::kUnsupported;
  const Size seen = upright_size(stored_size_, orientation_);
  status->width = seen.width;
  status->height = seen.height;
  if (code != Code::kOk) return code;
  draws_.resize(static_cast<size_t>(pipeline.op_count));
  const int64_t occurrence = request.occurrences == nullptr ? 0 : request.occurrences[position];
  const RandomKey key = {request.seed, request.epoch, static_cast<uint64_t>(index),
                         static_cast<uint64_t>(occurrence)};
  Size size;
  code = draw_ops(pipeline, key, seen, draws_.data(), &size);
  return code == Code::kOk ? build_program(pipeline, draws_.data(), seen, &program_) : code;
}

Code SampleMaker::load(const hr_pipeline& pipeline, const hr_source& source, const Bytes& bytes,
                       hr_status* status, Tally* tally) {
  const StageTimer timer(tally, kDecode);
  const Rect rect = Runner::source_rect(program_);
  const ImageView pixels = runner_.input(program_);
  if (pixels.data == nullptr) return Code::kOutOfMemory;
  if (source.height != 0) {
    copy_pixels({bytes.data, source.row_stride, source.column_stride, source.channel_stride}, rect,
                pixels);
    if (pipeline.gray != 0) ops::grayscale(pixels);
    return Code::kOk;
  }
  const Rect stored = in_file(stored_size_, orientation_, rect);
  const bool turned = !orientation_.as_stored();
  const ImageView decoded = turned ? stored_.reshape(stored.w, stored.h) : pixels;
  if (decoded.data == nullptr) return Code::kOutOfMemory;
  const uint32_t decoders = pipeline.decoders & ~(HR_INFLATED | HR_LUMA);
  const Code code = decoder_.decode(decoders, stored, decoded, &status->decoder);
  if (code != Code::kOk) return code;
  ++tally->decoded_by[status->decoder];
  tally->pixels_decoded += int64_t{stored.w} * stored.h;
  if (turned) turn_upright(decoded, orientation_, pixels);
  if (pipeline.gray != 0 && !decoder_.is_gray()) ops::grayscale(pixels);
  return Code::kOk;
}

}  // namespace headrace
