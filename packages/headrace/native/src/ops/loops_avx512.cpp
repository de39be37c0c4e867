// The loops of the augmentations for AVX512.
#if defined(__AVX512F__)
#define HEADRACE_LOOPS kAvx512Loops
#include "loops_impl.h"
#endif
