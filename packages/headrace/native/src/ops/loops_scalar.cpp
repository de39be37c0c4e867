// The loops of the augmentations for the compiler's default instruction set, NEON where that is
// ARM's.
#define HEADRACE_LOOPS kScalarLoops
#include "loops_impl.h"
