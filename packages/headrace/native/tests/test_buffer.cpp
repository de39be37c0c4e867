// Buffer: aligned, padded on both sides, grows and never shrinks, and survives a refusal.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "check.h"
#include "image.h"

namespace {

using headrace::Buffer;
using headrace::Image;
using headrace::ImageView;

// All that SIMD code may touch is there: an address sanitizer sees the rest.
void touch_everything(uint8_t* data, size_t size) {
  for (size_t i = 1; i <= Buffer::kPadding; ++i)
    static_cast<void>(*static_cast<volatile uint8_t*>(data - i));
  std::memset(data, 7, size + Buffer::kPadding);
}

void grows_only_when_it_must() {
  Buffer buffer;
  CHECK(buffer.capacity() == 0);
  size_t capacity = 0;
  for (const size_t size : {0, 1, 63, 64, 65, 1000, 64, 0, 100000, 99999}) {
    const size_t before = buffer.capacity();
    uint8_t* data = buffer.reserve(size);
    CHECK(data != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(data) % 64 == 0);
    CHECK(buffer.capacity() >= size && buffer.capacity() >= capacity);
    CHECK(size > before || buffer.capacity() == before);
    CHECK(buffer.reserve(size) == data);  // at the same place, with its contents
    capacity = buffer.capacity();
    touch_everything(data, size);
  }
}

void contents_stay_while_they_fit() {
  Buffer buffer;
  std::memset(buffer.reserve(100), 42, 100);
  CHECK(buffer.reserve(50)[99] == 42);
  CHECK(buffer.reserve(buffer.capacity())[99] == 42);
}

// A slowly growing series of sizes costs few allocations.
void grows_by_more_than_it_is_asked_for() {
  Buffer buffer;
  int moves = 0;
  for (size_t size = 1000, capacity = 0; size < 10000; ++size) {
    CHECK(buffer.reserve(size) != nullptr);
    moves += buffer.capacity() != capacity;
    capacity = buffer.capacity();
  }
  CHECK(moves < 15);
}

void recovers_from_a_refusal() {
  Buffer buffer;
  CHECK(buffer.reserve(1000) != nullptr);
  CHECK(buffer.reserve(Buffer::kMost + 1) == nullptr);
  CHECK(buffer.reserve(size_t{1} << 60) == nullptr);
  CHECK(buffer.capacity() == 0);
  CHECK(buffer.reserve(~size_t{0}) == nullptr);  // what it would ask for doesn't fit a size_t
  CHECK(buffer.reserve(~size_t{0} / 5 * 4 + 100) == nullptr);
  CHECK(buffer.capacity() == 0);
  touch_everything(buffer.reserve(10), 10);
}

void an_image_has_four_rows_to_spare() {
  Image image;
  const ImageView view = image.reshape(17, 3);
  CHECK(view.width == 17 && view.height == 3);
  CHECK(view.stride >= 17 * 4 && view.stride % 64 == 0);
  std::memset(view.data, 1, view.stride * 7 + Buffer::kPadding);
  CHECK(image.reshape(1 << 30, 1 << 30).data == nullptr);
  CHECK(image.reshape(1, 1).data != nullptr);
}

}  // namespace

int main() {
  grows_only_when_it_must();
  contents_stay_while_they_fit();
  grows_by_more_than_it_is_asked_for();
  recovers_from_a_refusal();
  an_image_has_four_rows_to_spare();
  std::puts("test_buffer: passed");
  return 0;
}
