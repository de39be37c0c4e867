#include "own_entropy_impl.h"

namespace headrace::jpeg::own {

const EntropyKernels kPlainEntropy = {skip, decode};

}  // namespace headrace::jpeg::own
