// The one vocabulary of outcomes: every fallible function returns a Code, never throws, never
// prints.
#pragma once

#include <cstdint>

namespace headrace {

// Values are part of the C ABI (headrace.h, hr_code): append, never renumber.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller broke the contract of the function
  kOutOfMemory = 2,
  kReadFailed = 3,   // the file could not be opened or read; errno is kept beside it
  kUnsupported = 4,  // a valid file, perhaps, that this decoder does not handle: try the next one
  kCorrupt = 5,   // the file broke a rule of its format: the next decoder decides what that means
  kTooLarge = 6,  // more pixels than the limit: Pillow's decompression-bomb check must speak
  kCancelled = 7,
  kTimeout = 8,
  kInternal = 9,  // a bug of ours
};

// A sentence for each code: what happened, and what to do. Never null.
const char* describe(Code code);

}  // namespace headrace
