// What the AVX2 kernels' files share.
#pragma once

#include "own_kernels.h"

namespace headrace::jpeg::own {

void inverse_dct_avx2(Block* blocks, const uint8_t* extents, const BlockTarget* targets, int count);

}  // namespace headrace::jpeg::own
