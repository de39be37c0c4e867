// Address space for deferred memory: slots of several sizes without access rights, and pages that
// were filled in secret and are moved into a slot all at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "deferred/stack.h"
#include "headrace.h"

namespace headrace::deferred {

enum class State : uint32_t {
  kFree = 0,
  kUntouched = 1,
  kWanted = 2,  // a thread waits for its contents
  kFilled = 3,  // ordinary memory
  kFailed = 4,  // it can't be filled: the process ends
};

struct Slot {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> asked;  // the number of the process, counted by forks, that wants it filled
  hr_fill fill;
  void* context;
  uint64_t size;  // in bytes

  State now() const { return static_cast<State>(state.load(std::memory_order_acquire)); }
  void become(State next) { state.store(static_cast<uint32_t>(next), std::memory_order_release); }
  // False if it isn't `from` any more.
  bool change(State from, State to) {
    uint32_t expected = static_cast<uint32_t>(from);
    return state.compare_exchange_strong(expected, static_cast<uint32_t>(to));
  }
};

// One per process. Nothing in it is freed: a signal handler may look at it at any time.
class Space {
 public:
  // nullptr, or why there can't be any.
  const char* reserve();

  // The number of a free slot for `size` bytes, or Stack::kNone if there is none left.
  uint32_t take(uint64_t size);
  // Makes a filled slot inaccessible again, and keeps its pages for the next fill if there is room.
  void put_back(uint32_t number);
  // For a slot that was never filled: no system call.
  void put_back_untouched(uint32_t number);

  // The slot whose bytes, or the rest of whose last page, hold `address`; or Stack::kNone.
  uint32_t find(const void* address) const;
  Slot& slot(uint32_t number) { return slots_[number]; }
  uint8_t* bytes_of(uint32_t number) const;
  uint32_t count() const { return count_; }

  // Fills a slot in pages that nobody else knows, and moves them there: it is then kFilled, or
  // kFailed. Only one thread at a time.
  void fill(uint32_t number);

  // Around a fork: no slot is accessible, but not yet kFilled, in the child, where the thread that
  // fills is gone.
  void before_fork() { publishing_.lock(); }
  void after_fork() { publishing_.unlock(); }
  void forget_fill();

  hr_deferred_counts counts() const {
    return {live_.load(), 0, fills_.load(), filled_nbytes_.load()};
  }

 private:
  // Slots of one size.
  struct Sizes {
    uint64_t nbytes = 0;
    uint32_t first = 0;  // number of its first slot
    uint32_t count = 0;
    uint8_t* begin = nullptr;
    uint8_t* hidden = nullptr;  // memory that is filled before it is moved to a slot
    Stack free;
    Stack warm;   // hidden memory with pages
    Stack empty;  // hidden memory without
  };
  static constexpr int kSizes = 7;

  const Sizes& sizes_of(uint32_t number) const;
  Sizes& sizes_of(uint32_t number) {
    return const_cast<Sizes&>(static_cast<const Space*>(this)->sizes_of(number));
  }
  bool works();

  Sizes sizes_[kSizes];
  Slot* slots_ = nullptr;
  uint32_t count_ = 0;
  uint8_t* begin_ = nullptr;
  uint8_t* end_ = nullptr;
  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> fills_{0};
  std::atomic<int64_t> filled_nbytes_{0};
  std::mutex publishing_;
  std::atomic<uint32_t> filling_{Stack::kNone};         // a slot
  std::atomic<uint32_t> filling_hidden_{Stack::kNone};  // memory of its size
};

}  // namespace headrace::deferred
