#include "status.h"

namespace headrace {

const char* describe(Code code) {
  switch (code) {
    case Code::kOk:
      return "no error";
    case Code::kInvalidArgument:
      return "an argument broke the function's contract";
    case Code::kOutOfMemory:
      return "out of memory: lower the batch size or the number of batches in flight";
    case Code::kReadFailed:
      return "the file could not be read";
    case Code::kUnsupported:
      return "not an image of a kind that native code decodes: it is left to Pillow";
    case Code::kCorrupt:
      return "the file breaks a rule of its format; Pillow decides what that means";
    case Code::kTooLarge:
      return "more pixels than Pillow's limit (PIL.Image.MAX_IMAGE_PIXELS)";
    case Code::kCancelled:
      return "cancelled before it was begun";
    case Code::kTimeout:
      return "not done within the time given";
    case Code::kInternal:
      return "a bug in the native library: please report it with the file that shows it";
  }
  return "an unknown code";
}

}  // namespace headrace
