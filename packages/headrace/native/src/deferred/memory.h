// Deferred memory: bytes that are made when they are first touched, by whatever code in whatever
// thread. Touching a slot without access rights is a fault; its handler asks a thread of ours to
// fill the slot, and waits.
#pragma once

#include <cstdint>

#include "deferred/space.h"

namespace headrace::deferred {

// From now on there is deferred memory in this process. nullptr, or why there can't be any.
const char* start();

// Memory for `size` bytes; nullptr: none is left.
void* take(uint64_t size, hr_fill fill, void* context);
State state_of(const void* memory);
// nullptr if it isn't untouched.
void* untouched_context(const void* memory);
void give_back(void* memory);
void read_counts(hr_deferred_counts* counts);

}  // namespace headrace::deferred
