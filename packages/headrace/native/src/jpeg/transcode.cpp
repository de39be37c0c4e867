#include "transcode.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "libjpeg_guard.h"

// After jpeglib.h.
#include <jerror.h>

namespace headrace::jpeg {
namespace {

constexpr int kMaxRestartInterval = 65535;
constexpr unsigned kMaxMarkerLength = 65535;

// Memory that libjpeg writes to. jpeg_mem_dest() would lose its buffer when an error jumps.
struct Sink {
  jpeg_destination_mgr manager;  // first: libjpeg hands its address back
  uint8_t* memory;
  size_t capacity;

  size_t size() const { return capacity - manager.free_in_buffer; }
};

void grow(j_compress_ptr cinfo, size_t capacity) {
  auto* sink = reinterpret_cast<Sink*>(cinfo->dest);
  auto* memory = static_cast<uint8_t*>(std::realloc(sink->memory, capacity));
  if (memory == nullptr) ERREXIT1(cinfo, JERR_OUT_OF_MEMORY, 0);
  sink->manager.next_output_byte = memory + sink->capacity;
  sink->manager.free_in_buffer = capacity - sink->capacity;
  sink->memory = memory;
  sink->capacity = capacity;
}

// libjpeg calls this when the buffer is full, whatever free_in_buffer says.
boolean on_full(j_compress_ptr cinfo) {
  grow(cinfo, 2 * reinterpret_cast<Sink*>(cinfo->dest)->capacity);
  return TRUE;
}

void on_start_or_end(j_compress_ptr /*cinfo*/) {}

// Larger coefficients than 8-bit samples have find no code in the standard tables, and libjpeg
// would write the file without them. Of the DC only differences are coded, so a black block's -1024
// has one; at other places it has none.
bool block_in_range(const JBLOCK& block) {
  const auto has_code = [](int value) { return value >= -1023 && value <= 1023; };
  return block[0] >= -1024 && block[0] <= 1023 &&
         std::all_of(block + 1, block + DCTSIZE2, has_code);
}

// What a jump out of libjpeg must find again.
class Transcoding {
 public:
  explicit Transcoding(const TranscodeOptions& options) : options_(options) {}
  Transcoding(const Transcoding&) = delete;
  Transcoding& operator=(const Transcoding&) = delete;
  ~Transcoding();

  Code run(const uint8_t* data, size_t size);
  const uint8_t* begin() const { return sink_.memory; }
  const uint8_t* end() const { return sink_.memory + sink_.size(); }

 private:
  // These run under setjmp: nothing in them may have a destructor.
  Code read(const uint8_t* data, size_t size);
  jpeg_saved_marker_ptr last_marker() const;
  bool in_range();
  void write(size_t capacity);
  void write_markers();
  int restart_interval() const;

  const TranscodeOptions& options_;
  LibjpegGuard guard_ = {};
  jpeg_decompress_struct source_ = {};
  jpeg_compress_struct target_ = {};
  jvirt_barray_ptr* coefficients_ = nullptr;
  Sink sink_ = {};
};

Transcoding::~Transcoding() {
  jpeg_destroy_compress(&target_);
  jpeg_destroy_decompress(&source_);
  std::free(sink_.memory);
}

Code Transcoding::run(const uint8_t* data, size_t size) {
  source_.err = target_.err = guard_.install();
  if (setjmp(guard_.escape) != 0) return guard_.code();
  jpeg_create_decompress(&source_);
  guard_.limit(&source_);
  jpeg_create_compress(&target_);
  const Code code = read(data, size);
  if (code != Code::kOk) return code;
  write(size + size / 8 + 1024);
  return guard_.warnings() > 0 ? Code::kCorrupt : Code::kOk;
}

Code Transcoding::read(const uint8_t* data, size_t size) {
  jpeg_save_markers(&source_, JPEG_COM, kMaxMarkerLength);
  for (int i = 0; i < 16; ++i) jpeg_save_markers(&source_, JPEG_APP0 + i, kMaxMarkerLength);
  jpeg_mem_src(&source_, data, static_cast<unsigned long>(size));
  if (jpeg_read_header(&source_, TRUE) != JPEG_HEADER_OK) return Code::kCorrupt;
  if (source_.data_precision != 8) return Code::kUnsupported;
  const jpeg_saved_marker_ptr last = last_marker();
  coefficients_ = jpeg_read_coefficients(&source_);
  if (coefficients_ == nullptr || guard_.warnings() > 0) return Code::kCorrupt;
  // Markers between scans would move in front of the first, where they may change the colours.
  if (lacks_scans(source_) || last_marker() != last) return Code::kUnsupported;
  return in_range() ? Code::kOk : Code::kCorrupt;
}

jpeg_saved_marker_ptr Transcoding::last_marker() const {
  jpeg_saved_marker_ptr last = source_.marker_list;
  while (last != nullptr && last->next != nullptr) last = last->next;
  return last;
}

bool Transcoding::in_range() {
  auto* common = reinterpret_cast<j_common_ptr>(&source_);
  for (int i = 0; i < source_.num_components; ++i) {
    const jpeg_component_info& component = source_.comp_info[i];
    for (JDIMENSION y = 0; y < component.height_in_blocks; ++y) {
      JBLOCKARRAY rows = source_.mem->access_virt_barray(common, coefficients_[i], y, 1, FALSE);
      if (!std::all_of(rows[0], rows[0] + component.width_in_blocks, block_in_range)) return false;
    }
  }
  return true;
}

void Transcoding::write(size_t capacity) {
  sink_.manager.init_destination = on_start_or_end;
  sink_.manager.empty_output_buffer = on_full;
  sink_.manager.term_destination = on_start_or_end;
  target_.dest = &sink_.manager;
  grow(&target_, capacity);
  jpeg_copy_critical_parameters(&source_, &target_);
  target_.optimize_coding = options_.optimize ? TRUE : FALSE;
  target_.restart_interval = static_cast<unsigned>(restart_interval());
  target_.restart_in_rows = 0;
  // The source's own are written instead: its colours must mean what they meant.
  target_.write_JFIF_header = FALSE;
  target_.write_Adobe_marker = FALSE;
  jpeg_write_coefficients(&target_, coefficients_);
  write_markers();
  jpeg_finish_compress(&target_);
}

void Transcoding::write_markers() {
  for (jpeg_saved_marker_ptr each = source_.marker_list; each != nullptr; each = each->next) {
    const bool jfif = each->marker == JPEG_APP0 && each->data_length >= 5 &&
                      std::memcmp(each->data, "JFIF", 5) == 0;
    const bool adobe = each->marker == JPEG_APP0 + 14 && each->data_length >= 5 &&
                       std::memcmp(each->data, "Adobe", 5) == 0;
    if (options_.copy_markers || jfif || adobe)
      jpeg_write_marker(&target_, each->marker, each->data, each->data_length);
  }
}

int Transcoding::restart_interval() const {
  if (options_.restart_interval != TranscodeOptions::kLargestDivisor)
    return options_.restart_interval;
  // A scan of one component isn't interleaved: its MCUs are blocks, whatever the sampling.
  const int h = source_.num_components == 1 ? 1 : source_.max_h_samp_factor;
  const int mcu_width = DCTSIZE * h;
  const int columns = (static_cast<int>(source_.image_width) + mcu_width - 1) / mcu_width;
  int interval = 4;
  while (columns % interval != 0) --interval;
  return interval;
}

}  // namespace

Code transcode(const uint8_t* data, size_t size, const TranscodeOptions& options,
               std::vector<uint8_t>* out) {
  out->clear();
  if (options.restart_interval < TranscodeOptions::kLargestDivisor ||
      options.restart_interval > kMaxRestartInterval) {
    return Code::kInvalidArgument;
  }
  Transcoding transcoding(options);
  const Code code = transcoding.run(data, size);
  if (code == Code::kOk) out->assign(transcoding.begin(), transcoding.end());
  return code;
}

}  // namespace headrace::jpeg
