// Deferred memory under everything that a program may do to it: threads, forks, signals, other
// handlers. The laws: nobody sees bytes other than those of the fill or of a later write; nothing
// hangs; a fault that isn't ours, or a fill that fails, ends the process.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "headrace.h"

// A forked child starts a thread, which ThreadSanitizer forbids by default.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace {

// An address that is never mapped. The compiler doesn't know it, and so doesn't warn.
volatile int* nowhere() {
  static volatile uintptr_t address = 8;
  return reinterpret_cast<volatile int*>(address);
}

enum State { kUntouched = 1, kFilled = 3 };

std::atomic<int> fill_milliseconds{0};

// What a fill writes: bytes that depend on the place and on the context.
uint8_t byte_at(uint64_t i, uint64_t seed) { return static_cast<uint8_t>(i * 31 + seed * 7 + 1); }

int32_t fill_pattern(void* context, uint8_t* out, uint64_t size) {
  const auto seed = reinterpret_cast<uint64_t>(context);
  for (uint64_t i = 0; i < size; ++i) {
    out[i] = byte_at(i, seed);
    if (i == size / 2 && fill_milliseconds > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(fill_milliseconds));
  }
  return HR_OK;
}

uint8_t* take(uint64_t size, uint64_t seed) {
  return static_cast<uint8_t*>(hr_deferred_take(size, fill_pattern, reinterpret_cast<void*>(seed)));
}

bool is_right(const volatile uint8_t* memory, uint64_t size, uint64_t seed) {
  for (uint64_t i = size; i-- > 0;)
    if (memory[i] != byte_at(i, seed)) return false;
  return true;
}

// How a forked child ends that calls `body`: its exit code, or 128 + the signal.
template <typename Body>
int outcome(const Body& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);
    const int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, STDERR_FILENO);
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A sanitizer's own handler ends the process by an exit code; a hang would end by SIGALRM.
bool died(int outcome) { return outcome != 0 && outcome != 128 + SIGALRM; }

void test_first_touch_fills() {
  for (const uint64_t size : {1, 4000, 4096, 65408, 65409, 600000, 5000000, 60000000}) {
    uint8_t* memory = take(size, size);
    CHECK(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 64 == 0);
    CHECK(hr_deferred_state(memory) == kUntouched);
    CHECK(is_right(memory, size, size));
    CHECK(hr_deferred_state(memory) == kFilled);
    memory[size - 1] = 99;
    CHECK(memory[size - 1] == 99);
    hr_deferred_give_back(memory);
    CHECK(hr_deferred_state(memory) == 0);
  }
  CHECK(take(uint64_t{1} << 30, 0) == nullptr);
  uint8_t* written = take(1000, 3);
  written[10] = 5;  // the first touch may be a write
  CHECK(written[10] == 5 && is_right(written, 10, 3) && written[11] == byte_at(11, 3));
  hr_deferred_give_back(written);
}

void test_slots_are_used_again() {
  hr_deferred_counts before{}, after{};
  hr_deferred_count(&before);
  for (uint64_t i = 0; i < 3000; ++i) {
    uint8_t* memory = take(100000 + i, i);
    if (i % 3 != 0) CHECK(memory[0] == byte_at(0, i) && memory[99999] == byte_at(99999, i));
    if (i % 3 == 1) std::memset(memory, 0xEE, 100000);
    hr_deferred_give_back(memory);
  }
  hr_deferred_count(&after);
  CHECK(after.live == before.live && after.fills - before.fills == 2000);
}

void test_many_alive() {
  std::vector<uint8_t*> all;
  for (uint64_t i = 0; i < 10000; ++i) all.push_back(take(5000 + i, i));
  for (uint64_t i = 0; i < all.size(); i += 2) CHECK(is_right(all[i], 5000, i));
  for (uint64_t i = 1; i < all.size(); i += 2) CHECK(hr_deferred_state(all[i]) == kUntouched);
  for (uint64_t i = 0; i < all.size(); ++i) hr_deferred_give_back(all[i * 7919 % all.size()]);
  while (uint8_t* memory = take(10, 0)) all.push_back(memory);  // until there are none
  for (size_t i = 10000; i < all.size(); ++i) hr_deferred_give_back(all[i]);
  CHECK(all.size() > 20000);
}

void test_threads_touch_one() {
  for (uint64_t round = 0; round < 300; ++round) {
    constexpr uint64_t kSize = 50000;
    uint8_t* memory = take(kSize, round);
    std::atomic<int> ready{0}, wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
      threads.emplace_back([&] {
        for (++ready; ready < 8;) std::this_thread::yield();
        if (!is_right(memory, kSize, round)) ++wrong;
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
    hr_deferred_give_back(memory);
  }
}

void test_threads_take_and_give() {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t)
    threads.emplace_back([t] {
      std::vector<uint8_t*> mine;
      for (uint64_t i = 0; i < 400; ++i) {
        mine.push_back(take(20000, t));
        if (i % 2 == 0) CHECK(is_right(mine[i * 31 % mine.size()], 20000, t));
        if (mine.size() == 10)
          for (; !mine.empty(); mine.pop_back()) hr_deferred_give_back(mine.back());
        if (mine.empty()) i += 10;
      }
      for (uint8_t* memory : mine) hr_deferred_give_back(memory);
    });
  for (std::thread& thread : threads) thread.join();
}

void test_small_stack() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  CHECK(pthread_attr_setstacksize(&attributes, 64 << 10) == 0);
  uint8_t* memory = take(600000, 5);
  pthread_t thread;
  const auto touch = [](void* touched) -> void* {
    return is_right(static_cast<uint8_t*>(touched), 600000, 5) ? touched : nullptr;
  };
  CHECK(pthread_create(&thread, &attributes, touch, memory) == 0);
  void* result = nullptr;
  CHECK(pthread_join(thread, &result) == 0 && result == memory);
  hr_deferred_give_back(memory);
}

[[maybe_unused]] void test_forks() {
  uint8_t* both = take(300000, 1);
  uint8_t* filled = take(300000, 2);
  CHECK(filled[0] == byte_at(0, 2));
  const int child = outcome([&] {
    CHECK(hr_deferred_state(both) == kUntouched);
    CHECK(is_right(both, 300000, 1) && is_right(filled, 300000, 2));
    both[0] = filled[0] = 111;
    uint8_t* own = take(1000, 3);
    CHECK(is_right(own, 1000, 3));
    CHECK(outcome([&] { CHECK(is_right(own, 1000, 3) && both[0] == 111); }) == 0);
  });
  CHECK(child == 0);
  CHECK(hr_deferred_state(both) == kUntouched && filled[0] == byte_at(0, 2));
  CHECK(is_right(both, 300000, 1));
  hr_deferred_give_back(both);
  hr_deferred_give_back(filled);
}

// While other threads touch, and the filling thread is in the middle of something.
[[maybe_unused]] void test_forks_amid_fills() {
  std::atomic<bool> done{false};
  std::atomic<uint8_t*> current{nullptr};
  std::thread busy([&] {
    for (uint64_t i = 0; !done; ++i) {
      uint8_t* memory = take(200000, 4);
      current = memory;
      CHECK(memory[5] == byte_at(5, 4));
      current = nullptr;
      hr_deferred_give_back(memory);
    }
  });
  for (int i = 0; i < 60; ++i) {
    fill_milliseconds = i % 3;
    const int child = outcome([&] {
      fill_milliseconds = 0;
      uint8_t* theirs = current;
      if (theirs != nullptr && hr_deferred_state(theirs) != 0) {
        CHECK(is_right(theirs, 200000, 4));
        hr_deferred_give_back(theirs);
      }
      uint8_t* own = take(200000, 9);
      CHECK(is_right(own, 200000, 9));
      hr_deferred_give_back(own);
    });
    CHECK(child == 0);
  }
  fill_milliseconds = 0;
  done = true;
  busy.join();
}

std::atomic<int> alarms{0};

void test_signals_amid_a_fill() {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { ++alarms; };
  sigaction(SIGALRM, &action, &before);
  const itimerval often = {{0, 2000}, {0, 2000}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  fill_milliseconds = 50;
  uint8_t* memory = take(10000, 6);
  CHECK(is_right(memory, 10000, 6));
  fill_milliseconds = 0;
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
#ifndef __SANITIZE_THREAD__  // it holds signals back
  CHECK(alarms > 3);
#endif
  hr_deferred_give_back(memory);
}

void test_kernel_reads_are_errors_or_right() {
  int ends[2];
  CHECK(pipe(ends) == 0);
  uint8_t* memory = take(1000, 8);
  CHECK(write(ends[1], memory, 1000) == -1 && errno == EFAULT);
  CHECK(hr_deferred_state(memory) == kUntouched && memory[0] == byte_at(0, 8));
  CHECK(write(ends[1], memory, 1000) == 1000);
  uint8_t got[1000];
  CHECK(read(ends[0], got, 1000) == 1000 && is_right(got, 1000, 8));
  hr_deferred_give_back(memory);
  close(ends[0]);
  close(ends[1]);
}

void test_other_faults_end_the_process() {
  CHECK(died(outcome([] { *nowhere() = 1; })));
  CHECK(died(outcome([] { raise(SIGSEGV); })));
  uint8_t* memory = take(5000, 1);
  CHECK(died(outcome([&] { CHECK(memory[20000] == 0); })));  // past its end
  hr_deferred_give_back(memory);
  CHECK(died(outcome([&] { CHECK(memory[0] == 0); })));  // freed
  const auto touch = [](hr_fill fill) {
    auto* const failing = static_cast<volatile uint8_t*>(hr_deferred_take(1000, fill, nullptr));
    CHECK(failing != nullptr && failing[0] == 0);
  };
  CHECK(died(outcome(
      [&] { touch([](void*, uint8_t*, uint64_t) -> int32_t { return HR_OUT_OF_MEMORY; }); })));
  CHECK(died(outcome([&] {
    touch([](void*, uint8_t*, uint64_t) -> int32_t {
      *nowhere() = 1;
      return HR_OK;
    });
  })));
}

uint8_t* theirs = nullptr;  // memory that another library makes accessible when it is touched
std::atomic<int> newcomers{0};
struct sigaction before_newcomer;

void newcomer(int number, siginfo_t* info, void* context) {
  ++newcomers;
  if (info->si_addr == theirs) {
    mprotect(theirs, 4096, PROT_READ | PROT_WRITE);
  } else if ((before_newcomer.sa_flags & SA_SIGINFO) != 0) {
    before_newcomer.sa_sigaction(number, info, context);
  }
}

void test_another_handler() {
  void* const mapped = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  theirs = static_cast<uint8_t*>(mapped);
  struct sigaction action = {};
  action.sa_sigaction = newcomer;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGSEGV, &action, &before_newcomer) == 0);
  uint8_t* ours = take(1000, 2);  // from here on ours is in front again
  CHECK(is_right(ours, 1000, 2) && newcomers == 0);
  *static_cast<volatile uint8_t*>(theirs) = 1;
  CHECK(newcomers == 1 && *theirs == 1);
  hr_deferred_give_back(ours);
  // It passes faults back to ours, and ours to what was there before.
  CHECK(died(outcome([] { *nowhere() = 1; })));
  munmap(theirs, 4096);
}

}  // namespace

int main() {
  if (hr_deferred_start() != HR_OK) {
    std::printf("no deferred memory here: %s\n", hr_last_error());
    return 0;
  }
  test_first_touch_fills();
  test_slots_are_used_again();
  test_many_alive();
  test_threads_touch_one();
  test_threads_take_and_give();
  test_small_stack();
#if !defined(__SANITIZE_THREAD__)
  // ThreadSanitizer has no support for threads that a forked child starts, here in a signal
  // handler.
  test_forks();
  test_forks_amid_fills();
#endif
  test_signals_amid_a_fill();
  test_kernel_reads_are_errors_or_right();
  test_other_faults_end_the_process();
  test_another_handler();
  hr_deferred_counts counts{};
  hr_deferred_count(&counts);
  CHECK(counts.live == 0);
  std::printf("deferred memory: %lld fills, %lld faults\n", static_cast<long long>(counts.fills),
              static_cast<long long>(counts.faults));
  return 0;
}
