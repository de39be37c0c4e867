// The error channel of the C ABI: a status code returned, and a sentence kept for the calling
// thread.
#pragma once

#include <new>
#include <string>
#include <system_error>

#include "status.h"

namespace headrace {

// Keeps `detail` (or the code's own sentence) for hr_last_error() and returns the code as the ABI
// gives it.
int32_t fail(Code code, const char* detail = nullptr) noexcept;

const char* last_error() noexcept;

// Runs the body of a C function: nothing thrown inside ever crosses the ABI.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(Code::kOutOfMemory);
  } catch (const std::system_error& error) {
    return fail(Code::kInternal, error.what());
  } catch (const std::exception& error) {
    return fail(Code::kInternal, error.what());
  } catch (...) {
    return fail(Code::kInternal);
  }
}

}  // namespace headrace
