// The inner loops of the store, one set per instruction set. All sets give equal bytes and write
// exactly what they say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace headrace {

// Writes table[levels[i]] to out[i]. `stream`: past the caches, for results that are far larger
// than they; the caller then publishes them.
using Lookup = void (*)(const uint8_t* levels, size_t count, const void* table, void* out,
                        bool stream);

// Three planes, 64-byte aligned and readable up to the next multiple of 64 bytes, to triples.
using Interleave = void (*)(const void* const planes[3], size_t count, void* out, bool stream);

struct StoreKernels {
  void (*rgb)(const uint8_t* rgbx, int width, uint8_t* out);              // 3 * width bytes
  void (*planes)(const uint8_t* rgbx, int width, uint8_t* const out[3]);  // width bytes each
  Lookup lookup16;                                                        // of 2-byte values
  Lookup lookup32;                                                        // of 4-byte values
  Interleave interleave16;
  Interleave interleave32;
  void (*publish)();  // makes streamed values visible to other threads before whatever is stored
                      // later
};

// For sets without gather loads, and without stores past the caches. Internal linkage, as each file
// that includes this is compiled for another instruction set.
template <typename Value>
static void lookup_one_by_one(const uint8_t* levels, size_t count, const void* table, void* out,
                              bool) {
  const auto* values = static_cast<const uint8_t*>(table);
  auto* to = static_cast<uint8_t*>(out);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * sizeof(Value), values + levels[i] * sizeof(Value), sizeof(Value));
  }
}
template <typename Value>
static void interleave_one_by_one(const void* const planes[3], size_t count, void* out, bool) {
  auto* to = static_cast<uint8_t*>(out);
  for (size_t i = 0; i < count; ++i) {
    for (int c = 0; c < 3; ++c, to += sizeof(Value))
      std::memcpy(to, static_cast<const uint8_t*>(planes[c]) + i * sizeof(Value), sizeof(Value));
  }
}
static inline void nothing_to_publish() {}

extern const StoreKernels kScalarStore;
#if defined(__x86_64__)
extern const StoreKernels kAvx2Store;
extern const Lookup kAvx512Lookup16, kAvx512Lookup32;
#elif defined(__aarch64__)
extern const StoreKernels kNeonStore;
#endif

}  // namespace headrace
