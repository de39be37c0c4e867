#include "own_frame.h"

namespace headrace::jpeg::own {
namespace {

// libjpeg's guess: a JFIF marker means YCbCr, else an Adobe marker says, else the identifiers do.
bool is_ycbcr(const Header& header) {
  if (header.jfif) return true;
  if (header.adobe_transform >= 0) return header.adobe_transform == 1;
  return !(header.component[0].id == 'R' && header.component[1].id == 'G' &&
           header.component[2].id == 'B');
}

bool distinct_ids(const Header& header) {
  const Component* c = header.component;
  return c[0].id != c[1].id && c[0].id != c[2].id && c[1].id != c[2].id;
}

bool find_sampling(const Header& header, Frame* frame) {
  const Component* c = header.component;
  if (header.components == 1) {
    frame->sampling = Sampling::kGray;  // one component: its factors mean nothing
    return true;
  }
  if (header.components != 3 || !is_ycbcr(header) || !distinct_ids(header)) return false;
  if (c[1].h != 1 || c[1].v != 1 || c[2].h != 1 || c[2].v != 1) return false;
  if (c[0].h > 2 || c[0].v > 2) return false;
  frame->h = c[0].h;
  frame->v = c[0].v;
  if (frame->h == 2)
    frame->sampling = frame->v == 2 ? Sampling::kH2v2 : Sampling::kH2v1;
  else
    frame->sampling = frame->v == 2 ? Sampling::kH1v2 : Sampling::kFull;
  return true;
}

}  // namespace

bool make_frame(const Header& header, Frame* frame) {
  *frame = Frame();
  if (header.sof != 0xC0 && header.sof != 0xC1) return false;
  if (header.precision != 8 || header.arithmetic || !header.single_scan) return false;
  if (header.scan_ss != 0 || header.scan_se != 63 || header.scan_ahl != 0) return false;
  if (!header.ends_with_eoi || header.width < 1 || header.height < 1) return false;
  if (!find_sampling(header, frame)) return false;
  frame->mcus_per_row = (header.width + 8 * frame->h - 1) / (8 * frame->h);
  frame->mcu_rows = (header.height + 8 * frame->v - 1) / (8 * frame->v);
  frame->chroma_width = (header.width + frame->h - 1) / frame->h;
  frame->chroma_height = (header.height + frame->v - 1) / frame->v;
  return true;
}

void make_layout(const Header& header, const Frame& frame, const Tables& tables,
                 McuLayout* layout) {
  layout->blocks = 0;
  for (int i = 0; i < header.components; ++i) {
    const Component& c = header.component[i];
    const int count = i == 0 ? frame.h * frame.v : 1;
    for (int j = 0; j < count; ++j)
      layout->block[layout->blocks++] = {i, &tables.dc(c.td), &tables.ac(c.ta)};
  }
}

}  // namespace headrace::jpeg::own
