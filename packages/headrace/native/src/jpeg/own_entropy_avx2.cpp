#include "own_entropy_impl.h"

namespace headrace::jpeg::own {

const EntropyKernels kBmi2Entropy = {skip, decode, decode_two};

}  // namespace headrace::jpeg::own
