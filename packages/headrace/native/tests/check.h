// A condition that must hold, or the test program ends.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "error.h"

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, \
                   #condition, headrace::last_error());                                  \
      std::_Exit(1);                                                                     \
    }                                                                                    \
  } while (false)
