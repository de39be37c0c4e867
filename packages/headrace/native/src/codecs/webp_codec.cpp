// WebP by libwebp. Its demultiplexer decides, as in Pillow, whether a file is whole and what is in
// it.
#include <webp/decode.h>
#include <webp/demux.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "codec.h"

namespace headrace {
namespace {

Code code_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OK:
      return Code::kOk;
    case VP8_STATUS_OUT_OF_MEMORY:
      return Code::kOutOfMemory;
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return Code::kUnsupported;
    default:
      return Code::kCorrupt;
  }
}

OrientationTags orientation_of(WebPDemuxer* demuxer) {
  constexpr std::string_view kStart("Exif\0\0", 6);
  OrientationTags tags;
  WebPChunkIterator chunk = {};
  const auto content = [&] {
    return std::string_view(reinterpret_cast<const char*>(chunk.chunk.bytes), chunk.chunk.size);
  };
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk)) {
    const std::string_view exif = content();
    const bool starts = exif.substr(0, kStart.size()) == kStart;
    tags.add_exif(starts ? exif.substr(kStart.size()) : exif);
  }
  WebPDemuxReleaseChunkIterator(&chunk);
  if (WebPDemuxGetChunk(demuxer, "XMP ", 1, &chunk)) tags.add_xmp(content());
  WebPDemuxReleaseChunkIterator(&chunk);
  return tags;
}

class WebpCodec final : public Codec {
 public:
  explicit WebpCodec(int number) : number_(number) {}

  Code open(const EncodedImage& file, Size* size) override;
  Code check() override;
  Code decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) override;
  bool read_orientation(Orientation* orientation) const override {
    return orientation_.find(orientation);
  }

 private:
  Rect area_for(const Rect& rect) const;

  int number_;
  WebPData frame_ = {};  // the only frame, in the file's memory
  Size size_ = {0, 0};
  bool lossy_ = false;
  OrientationTags orientation_;
  Image area_;
};

Code WebpCodec::open(const EncodedImage& file, Size* size) {
  const WebPData data = {file.data, file.size};
  WebPDemuxer* const demuxer = WebPDemux(&data);
  if (demuxer == nullptr) return Code::kCorrupt;
  size_ = {static_cast<int>(WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH)),
           static_cast<int>(WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT))};
  *size = size_;
  const bool still = (WebPDemuxGetI(demuxer, WEBP_FF_FORMAT_FLAGS) & ANIMATION_FLAG) == 0 &&
                     WebPDemuxGetI(demuxer, WEBP_FF_FRAME_COUNT) == 1;
  WebPIterator frame;
  const bool found = still && WebPDemuxGetFrame(demuxer, 1, &frame);
  bool whole = false;
  if (found) {
    frame_ = frame.fragment;
    whole = frame.complete && frame.width == size_.width && frame.height == size_.height;
    WebPDemuxReleaseIterator(&frame);
  }
  orientation_ = orientation_of(demuxer);
  WebPDemuxDelete(demuxer);
  if (!found || !whole) return Code::kUnsupported;
  WebPBitstreamFeatures features;
  const Code code = code_of(WebPGetFeatures(frame_.bytes, frame_.size, &features));
  lossy_ = code == Code::kOk && features.format != 2;
  return code;
}

// libwebp keeps no checksums: open() has seen that all bytes are there, and no more can be known.
Code WebpCodec::check() { return Code::kOk; }

// What has to be decoded for `rect`. libwebp makes the edges of a crop as if the image ended there:
// chroma is interpolated from the next sample, two pixels on. Crops begin at even pixels.
Rect WebpCodec::area_for(const Rect& rect) const {
  if (!lossy_) return rect;
  const int left = std::max(0, rect.x - 2) & ~1, top = std::max(0, rect.y - 2) & ~1;
  const int right = std::min(size_.width, rect.x + rect.w + 2);
  const int bottom = std::min(size_.height, rect.y + rect.h + 2);
  return {left, top, right - left, bottom - top};
}

Code WebpCodec::decode(uint32_t allowed, const Rect& rect, const ImageView& out, int32_t* decoder) {
  if ((allowed >> number_ & 1u) == 0) return Code::kUnsupported;
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return Code::kInternal;  // headers of another version
  const Rect area = area_for(rect);
  const bool direct = area.w == rect.w && area.h == rect.h;
  const ImageView view = direct ? out : area_.reshape(area.w, area.h);
  if (view.data == nullptr) return Code::kOutOfMemory;
  config.options.use_cropping = area.w != size_.width || area.h != size_.height;
  config.options.crop_left = area.x;
  config.options.crop_top = area.y;
  config.options.crop_width = area.w;
  config.options.crop_height = area.h;
  config.output.colorspace = MODE_RGBA;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = view.data;
  config.output.u.RGBA.stride = static_cast<int>(view.stride);
  config.output.u.RGBA.size = view.stride * static_cast<size_t>(view.height);
  const Code code = code_of(WebPDecode(frame_.bytes, frame_.size, &config));
  WebPFreeDecBuffer(&config.output);
  if (code != Code::kOk) return code;
  for (int y = 0; !direct && y < rect.h; ++y) {
    std::memcpy(out.row(y), view.row(rect.y - area.y + y) + 4 * (rect.x - area.x),
                size_t{4} * static_cast<size_t>(rect.w));
  }
  *decoder = number_;
  return Code::kOk;
}

}  // namespace

std::unique_ptr<Codec> make_webp_codec(int first) { return std::make_unique<WebpCodec>(first); }

std::string webp_version() {
  const int version = WebPGetDecoderVersion();
  return std::to_string(version >> 16) + "." + std::to_string(version >> 8 & 0xFF) + "." +
         std::to_string(version & 0xFF);
}

}  // namespace headrace
