// The loops of the augmentations for AVX2.
#if defined(__AVX2__)
#define HEADRACE_LOOPS kAvx2Loops
#include "loops_impl.h"
#endif
