#include "../cpu.h"
#include "own_entropy_impl.h"

namespace headrace::jpeg::own {

const EntropyKernels kPlainEntropy = {skip, decode, decode_two};

const EntropyKernels& entropy_kernels() {
#if defined(__x86_64__)
  if (simd_active() != Simd::kScalar) return kBmi2Entropy;
#endif
  return kPlainEntropy;
}

}  // namespace headrace::jpeg::own
