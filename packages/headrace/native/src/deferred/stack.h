// A stack of small numbers that several threads, a signal handler and a forked child may use: no
// lock that one of them could find taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace headrace::deferred {

class Stack {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Makes room for the numbers below `count`. The stack is empty then.
  void reserve(uint32_t count) { below_.reset(new std::atomic<uint32_t>[count]); }

  // Only while no other thread uses it.
  void clear() { top_.store(kNone); }

  // `number` must not be on the stack.
  void push(uint32_t number) {
    uint64_t top = top_.load(std::memory_order_relaxed);
    do {
      below_[number].store(number_of(top), std::memory_order_relaxed);
    } while (!top_.compare_exchange_weak(top, changed(top, number), std::memory_order_release,
                                         std::memory_order_relaxed));
  }

  // The number that was pushed last, or kNone if the stack is empty.
  uint32_t pop() {
    uint64_t top = top_.load(std::memory_order_acquire);
    while (number_of(top) != kNone) {
      const uint32_t next = below_[number_of(top)].load(std::memory_order_relaxed);
      if (top_.compare_exchange_weak(top, changed(top, next), std::memory_order_acquire,
                                     std::memory_order_acquire))
        return number_of(top);
    }
    return kNone;
  }

 private:
  static uint32_t number_of(uint64_t top) { return static_cast<uint32_t>(top); }
  // The upper half counts changes, so that a thread which has looked at an old top fails even if
  // the same number is on top again.
  static uint64_t changed(uint64_t top, uint32_t number) {
    return (((top >> 32) + 1) << 32) | number;
  }

  std::atomic<uint64_t> top_{kNone};
  std::unique_ptr<std::atomic<uint32_t>[]> below_;
};

}  // namespace headrace::deferred
