#include "deferred/space.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace headrace::deferred {
namespace {

constexpr uint64_t kPage = 4096;  // or a divisor of the page size, which is asked for
// Before the first byte, and readable after the last one, as around memory of malloc's.
constexpr uint64_t kMargin = 64;
// Each slot that is filled costs the kernel two mappings, of which a process may have 65,530.
constexpr int64_t kMostSlots = 12000;

struct SizeRow {
  uint64_t nbytes;
  uint32_t slots;
  uint32_t hidden;  // pieces of hidden memory, whose pages stay with the process
};
constexpr SizeRow kRows[] = {
    {uint64_t{64} << 10, 12000, 64}, {uint64_t{256} << 10, 12000, 64},
    {uint64_t{1} << 20, 12000, 32},  {uint64_t{4} << 20, 12000, 8},
    {uint64_t{16} << 20, 1024, 2},   {uint64_t{64} << 20, 256, 1},
    {uint64_t{512} << 20, 64, 0},
};

uint64_t page_size() {
  static const uint64_t size =
      std::max<uint64_t>(kPage, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  return size;
}

// Bytes of a slot that become accessible.
uint64_t span_of(uint64_t size) {
  const uint64_t page = page_size();
  return (size + 2 * kMargin + page - 1) / page * page;
}

uint8_t* map(uint8_t* at, uint64_t nbytes, int rights) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == nullptr ? 0 : MAP_FIXED);
  void* const mapped = mmap(at, nbytes, rights, flags, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<uint8_t*>(mapped);
}

// In one step: no thread sees only a part of the pages, and no address is without a mapping
// meanwhile. What was mapped at `to` is gone.
bool move_pages(uint8_t* from, uint8_t* to, uint64_t nbytes) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  return mremap(from, nbytes, nbytes, kFlags, to) == to;
}

}  // namespace

const char* Space::reserve() {
  uint64_t all = 0;
  uint64_t hidden = 0;
  for (const SizeRow& row : kRows) {
    all += row.nbytes * row.slots;
    hidden += row.nbytes * row.hidden;
    count_ += row.slots;
  }
  // Zeros are the slots' initial state; pages of those that are never used cost nothing.
  uint8_t* const states = map(nullptr, count_ * sizeof(Slot), PROT_READ | PROT_WRITE);
  uint8_t* at_hidden = map(nullptr, hidden, PROT_READ | PROT_WRITE);
  begin_ = map(nullptr, all, PROT_NONE);
  if (states == nullptr || at_hidden == nullptr || begin_ == nullptr) {
    if (states != nullptr) munmap(states, count_ * sizeof(Slot));
    if (at_hidden != nullptr) munmap(at_hidden, hidden);
    if (begin_ != nullptr) munmap(begin_, all);
    begin_ = nullptr;
    return "the process may not reserve address space (ulimit -v)";
  }
  end_ = begin_ + all;
  slots_ = reinterpret_cast<Slot*>(states);
  uint8_t* at = begin_;
  uint32_t first = 0;
  for (int i = 0; i < kSizes; ++i) {
    const SizeRow& row = kRows[i];
    Sizes& sizes = sizes_[i];
    sizes.nbytes = row.nbytes;
    sizes.first = first;
    sizes.count = row.slots;
    sizes.begin = at;
    sizes.hidden = at_hidden;
    sizes.free.reserve(row.slots);
    sizes.warm.reserve(row.hidden);
    sizes.empty.reserve(row.hidden);
    for (uint32_t k = row.slots; k-- > 0;) sizes.free.push(k);
    for (uint32_t k = row.hidden; k-- > 0;) sizes.empty.push(k);
    at += row.nbytes * row.slots;
    at_hidden += row.nbytes * row.hidden;
    first += row.slots;
  }
  return works() ? nullptr : "the kernel can't move pages (Linux 5.7 or later is needed)";
}

// Whether pages can be moved to a slot and back.
bool Space::works() {
  const uint32_t number = take(1);
  if (number == Stack::kNone) return false;
  Slot& trial = slot(number);
  trial.size = 1;
  trial.fill = [](void*, uint8_t* out, uint64_t) -> int32_t {
    *out = 7;
    return 0;
  };
  fill(number);
  const bool moved = trial.now() == State::kFilled && *bytes_of(number) == 7;
  fills_.store(0);
  filled_nbytes_.store(0);
  if (moved) put_back(number);
  return moved;
}

uint32_t Space::take(uint64_t size) {
  if (live_.fetch_add(1) >= kMostSlots) {
    live_.fetch_sub(1);
    return Stack::kNone;
  }
  for (Sizes& sizes : sizes_) {
    if (size > sizes.nbytes - 2 * kMargin) continue;
    const uint32_t own = sizes.free.pop();
    if (own != Stack::kNone) return sizes.first + own;
    break;
  }
  live_.fetch_sub(1);
  return Stack::kNone;
}

void Space::put_back(uint32_t number) {
  Sizes& sizes = sizes_of(number);
  const uint64_t span = span_of(slots_[number].size);
  uint8_t* const begin = sizes.begin + sizes.nbytes * (number - sizes.first);
  const uint32_t piece = sizes.empty.pop();
  if (piece != Stack::kNone) {
    const bool moved = move_pages(begin, sizes.hidden + sizes.nbytes * piece, span);
    (moved ? sizes.warm : sizes.empty).push(piece);
  }
  // If this fails, the slot stays accessible, and is not used again.
  if (map(begin, span, PROT_NONE) == nullptr) {
    slots_[number].become(State::kFree);
    return;
  }
  put_back_untouched(number);
}

void Space::put_back_untouched(uint32_t number) {
  Sizes& sizes = sizes_of(number);
  slots_[number].become(State::kFree);
  sizes.free.push(number - sizes.first);
  live_.fetch_sub(1);
}

uint32_t Space::find(const void* address) const {
  const auto* const at = static_cast<const uint8_t*>(address);
  if (at < begin_ || at >= end_) return Stack::kNone;
  int i = kSizes - 1;
  while (at < sizes_[i].begin) --i;
  const auto offset = static_cast<uint64_t>(at - sizes_[i].begin);
  const uint32_t number = sizes_[i].first + static_cast<uint32_t>(offset / sizes_[i].nbytes);
  const bool inside = offset % sizes_[i].nbytes < span_of(slots_[number].size);
  return inside && slots_[number].now() != State::kFree ? number : Stack::kNone;
}

uint8_t* Space::bytes_of(uint32_t number) const {
  const Sizes& sizes = sizes_of(number);
  return sizes.begin + sizes.nbytes * (number - sizes.first) + kMargin;
}

const Space::Sizes& Space::sizes_of(uint32_t number) const {
  int i = kSizes - 1;
  while (number < sizes_[i].first) --i;
  return sizes_[i];
}

void Space::fill(uint32_t number) {
  Sizes& sizes = sizes_of(number);
  Slot& slot = slots_[number];
  const uint64_t span = span_of(slot.size);
  uint32_t piece = sizes.warm.pop();
  if (piece == Stack::kNone) piece = sizes.empty.pop();
  uint8_t* own = nullptr;  // if all pieces are with threads that give slots back
  if (piece == Stack::kNone) own = map(nullptr, span, PROT_READ | PROT_WRITE);
  uint8_t* const memory = piece == Stack::kNone ? own : sizes.hidden + sizes.nbytes * piece;
  filling_hidden_.store(piece);
  filling_.store(number);
  bool made = memory != nullptr && slot.fill(slot.context, memory + kMargin, slot.size) == HR_OK;
  {
    const std::lock_guard<std::mutex> guard(publishing_);
    made = made && move_pages(memory, bytes_of(number) - kMargin, span);
    if (made) {
      fills_.fetch_add(1);
      filled_nbytes_.fetch_add(static_cast<int64_t>(slot.size));
    }
    slot.become(made ? State::kFilled : State::kFailed);
    filling_.store(Stack::kNone);
  }
  if (own != nullptr) munmap(own, span);
  if (piece != Stack::kNone) (made ? sizes.empty : sizes.warm).push(piece);
}

void Space::forget_fill() {
  const uint32_t number = filling_.exchange(Stack::kNone);
  const uint32_t piece = filling_hidden_.load();
  if (number != Stack::kNone && piece != Stack::kNone) sizes_of(number).warm.push(piece);
}

}  // namespace headrace::deferred
