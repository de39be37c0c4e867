// Which files the built-in decoder takes, and how their MCUs are laid out.
#pragma once

#include "header.h"
#include "own_entropy.h"
#include "own_tables.h"

namespace headrace::jpeg::own {

enum class Sampling { kGray, kFull, kH2v1, kH2v2, kH1v2 };

struct Frame {
  Sampling sampling = Sampling::kGray;
  int h = 1;  // luma blocks in an MCU, across and down
  int v = 1;
  int mcus_per_row = 0;
  int mcu_rows = 0;
  int chroma_width = 0;  // true size of the chroma planes; libjpeg repeats their last samples
  int chroma_height = 0;

  bool halves_columns() const { return h == 2; }
  bool halves_rows() const { return v == 2; }
};

// False: left to libjpeg. Looks at the header only.
bool make_frame(const Header& header, Frame* frame);

// The order of blocks within an MCU.
void make_layout(const Header& header, const Frame& frame, const Tables& tables, McuLayout* layout);

}  // namespace headrace::jpeg::own
